"""Where shadow arms run: a pool's endpoints, what their probes found, whether live work waits there."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from comparator.records import Digest
from engines.base import (
    Capability,
    Engine,
    EngineError,
    EngineInvalid,
    EngineRefused,
    EngineTimeout,
    EngineUnavailable,
    Load,
    Probe,
)
from proxy.mirror.settings import MirrorSettings

_LOG = logging.getLogger(__name__)

LOAD_AGE_S = 1.0
"""How long a reading of an endpoint's load is believed."""
LOAD_TIMEOUT_S = 2.0
"""How long an endpoint may take to tell it; then it is unknown, and an arm will find out what is wrong."""
KV_CACHE_LIMIT = 0.9
"""KV-cache use above which no shadow starts on an endpoint that serves live work."""


class ShadowEndpoint(Protocol):
    """One endpoint, as the judge watches it."""

    @property
    def engine(self) -> Engine: ...

    @property
    def probe(self) -> Probe | None:
        """What its last successful probe found; None before the first."""
        ...

    @property
    def error(self) -> str | None:
        """Why it was not probed successfully, last time, or why an arm could not use it since."""
        ...

    def answered(self) -> None:
        """An arm, or a reading of its load, got an answer just now."""
        ...

    def not_answering(self, why: str) -> None:
        """An arm, or a reading of its load, got none: it should be probed soon."""
        ...


def note_end(endpoint: ShadowEndpoint, error: Exception | None) -> None:
    """Tell an endpoint's watcher what a call to it showed: that it lives, or that it gave no answer.

    A refusal and an invalid answer are answers. One that came too late may be load alone: the probe that
    follows will tell.
    """
    if isinstance(error, EngineUnavailable | EngineTimeout):
        endpoint.not_answering(str(error))
    elif error is None or isinstance(error, EngineRefused | EngineInvalid):
        endpoint.answered()


class ShadowPool(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a comparison."""

    name: str
    endpoints: tuple[ShadowEndpoint, ...]
    dedicated: bool = False
    """They serve no live work (``shadow_endpoints``): shadows need not wait for a lull."""
    declared_digest: Digest | None = None
    """The environment that answers there, as declared; None asks for no proof."""


class ShadowRollout(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison to be made of captured traffic."""

    name: str
    baseline: ShadowPool
    candidate: ShadowPool
    settings: MirrorSettings
    global_seed: str
    """Keys every derived seed; 64 bytes at most."""


class Picker:
    """Picks endpoints of one pool for arms, the least loaded by our own count."""

    def __init__(self, pool: ShadowPool, monotonic: Callable[[], float]) -> None:
        self.pool = pool
        self._monotonic = monotonic
        self._arms = [0] * len(pool.endpoints)
        self._turn = 0
        self._loads: list[tuple[float, str | None]] = [(float("-inf"), None)] * len(pool.endpoints)
        self._unreadable: set[int] = set()

    @property
    def probed(self) -> bool:
        """Whether any endpoint has ever answered a probe."""
        return any(endpoint.probe is not None for endpoint in self.pool.endpoints)

    def trouble(self) -> str:
        """Why none is probed, in words."""
        errors = [endpoint.error for endpoint in self.pool.endpoints if endpoint.error]
        return f"pool {self.pool.name}: {errors[0] if errors else 'no endpoint has answered a probe yet'}"

    def pick(self) -> int:
        """Index of the endpoint for the next arm: a probed one, not busy, with the fewest arms of ours."""
        count = len(self.pool.endpoints)
        self._turn = (self._turn + 1) % count
        order = [(self._turn + step) % count for step in range(count)]
        return min(
            order,
            key=lambda i: (
                self.pool.endpoints[i].probe is None,
                self._loads[i][1] is not None,
                self._arms[i],
            ),
        )

    def begin(self, index: int) -> ShadowEndpoint:
        self._arms[index] += 1
        return self.pool.endpoints[index]

    def end(self, index: int) -> None:
        self._arms[index] -= 1

    async def busy(self) -> str | None:
        """Why no shadow may start on this pool now, in words; None when one may (design rule 10)."""
        if self.pool.dedicated:
            return None
        now_s = self._monotonic()
        for index, endpoint in enumerate(self.pool.endpoints):
            read_s, _ = self._loads[index]
            if endpoint.probe is not None and now_s - read_s >= LOAD_AGE_S:
                self._loads[index] = (now_s, await self._read(index, endpoint))
        reasons = [
            reason
            for (_, reason), endpoint in zip(self._loads, self.pool.endpoints, strict=True)
            if endpoint.probe is not None
        ]
        if reasons and all(reason is not None for reason in reasons):
            return f"pool {self.pool.name}: {reasons[0]}"
        return None

    async def _read(self, index: int, endpoint: ShadowEndpoint) -> str | None:
        engine = endpoint.engine
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                load = await engine.load()
        except (EngineError, TimeoutError) as error:
            if index not in self._unreadable:
                _LOG.warning(
                    "load unknown, shadows do not wait for live work there: %s", error or engine.base_url
                )
                self._unreadable.add(index)
            if isinstance(error, EngineError):
                note_end(endpoint, error)
            else:
                endpoint.not_answering(f"its load was not told within {LOAD_TIMEOUT_S:g} s")
            return None
        endpoint.answered()
        self._unreadable.discard(index)
        return _busy(engine.base_url, load)


def _busy(where: str, load: Load) -> str | None:
    if load.waiting > 0:
        return f"{where} has {load.waiting} requests waiting"
    used = load.kv_cache_usage.value
    if used is not None and used > KV_CACHE_LIMIT:
        return f"{where} uses {used:.0%} of its KV cache, more than {KV_CACHE_LIMIT:.0%}"
    return None


def logprobs_depth(asked: int, probes: Sequence[Probe | None]) -> int:
    """The top-k that every arm can give: the same on all, since asking may change tokens."""
    for probe in probes:
        if probe is not None:
            asked = min(asked, probe.max_logprobs if Capability.LOGPROBS in probe.has else 0)
    return asked
