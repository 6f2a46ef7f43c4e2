"""How busy a pool's endpoints are: by their own word, and by our count of arms there.

An endpoint's own count of running requests is up to :data:`LOAD_AGE_S` old and holds our arms of that moment.
So what is not ours is taken from it (its count less the arms that we had there then), and our arms of now are
added. What began or ended within that second is missed, and so are arms that the engine still keeps
waiting: enough to tell bands of concurrency, whose borders lie a factor of two apart, no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable

import msgspec

from comparator.records import Fact
from engines.base import EngineError, Load
from proxy.mirror.pools import ShadowEndpoint, ShadowPool, note_end
from proxy.mirror.refusals import Refusal

_LOG = logging.getLogger(__name__)

LOAD_AGE_S = 1.0
"""How long a reading of an endpoint's load is believed; while arms run there it is read anew as often."""
LOAD_TIMEOUT_S = 2.0
"""How long an endpoint may take to tell it; then it is unknown, and an arm will find out what is wrong."""


class Busy(msgspec.Struct, frozen=True):
    """Why no shadow starts somewhere now."""

    refusal: Refusal
    detail: str
    """In words."""


class _Reading(msgspec.Struct, frozen=True):
    asked_s: float
    load: Load | None
    """None: it was not told."""
    ours: int
    """Arms that we had there as we asked, or as the answer came where they were more by then: on an idle
    endpoint an arm of ours is then never taken for somebody else's."""


class PoolLoads:
    """Readings of one pool's endpoints, shared by whoever waits for a lull and whoever counts."""

    def __init__(self, pool: ShadowPool, monotonic: Callable[[], float], kv_cache_percent: float) -> None:
        """
        Args:
            kv_cache_percent: of its KV cache in use, above which no shadow starts on an endpoint that serves
                live work.
        """
        self._pool = pool
        self._kv_cache_percent = kv_cache_percent
        self._monotonic = monotonic
        self._readings: list[_Reading | None] = [None] * len(pool.endpoints)
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._arms = [0] * len(pool.endpoints)
        self._unreadable: set[int] = set()
        self._keeper: asyncio.Task[None] | None = None
        self._nudge = asyncio.Event()

    async def refresh(self, indices: Iterable[int]) -> None:
        """Read those that are probed and not read within :data:`LOAD_AGE_S`. Raises nothing."""
        now_s = self._monotonic()
        for index in indices:
            reading = self._readings[index]
            fresh = reading is not None and now_s - reading.asked_s < LOAD_AGE_S
            if index not in self._asking and not fresh and self._pool.endpoints[index].probe is not None:
                task = asyncio.create_task(self._read(index), name=f"load of {self._pool.name}")
                self._asking[index] = task
        if self._asking:  # waited for, not awaited: who is cancelled here cancels nobody's reading
            await asyncio.wait(tuple(self._asking.values()))

    def busy(self, index: int) -> Busy | None:
        """Why no shadow should start there by the last reading (design rule 10)."""
        reading = self._readings[index]
        if self._pool.dedicated or reading is None or reading.load is None:
            return None
        load, where = reading.load, self._pool.endpoints[index].engine.base_url
        if load.waiting > 0:
            return Busy(Refusal.WAITING_REQUESTS, f"{where} has {load.waiting} requests waiting")
        used = load.kv_cache_usage.value
        if used is not None and used > self._kv_cache_percent / 100:
            limit = f"{self._kv_cache_percent:g} %"
            return Busy(Refusal.KV_CACHE, f"{where} uses {used:.0%} of its KV cache, more than {limit}")
        return None

    def waiting(self, index: int, since_s: float) -> int | None:
        """Requests that waited there, by a reading asked for at ``since_s`` or later; None where there is
        none, or the endpoint does not tell."""
        reading = self._readings[index]
        if reading is None or reading.asked_s < since_s or reading.load is None:
            return None
        return reading.load.waiting

    def keep(self, wanted: Callable[[], Iterable[int]]) -> None:
        """Read ``wanted()`` now, and again and again until it is empty, off everybody's road."""
        self._nudge.set()
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep(wanted), name=f"loads of {self._pool.name}")

    def arm_starts(self, index: int) -> Fact:
        """Count an arm in. Returns how many requests run there now, itself included, or why that is unknown.

        Endpoints that serve no live work and tell no load have our arms alone.
        """
        self._arms[index] += 1
        ours, reading = self._arms[index], self._readings[index]
        old_s = None if reading is None else self._monotonic() - reading.asked_s
        if reading is not None and reading.load is not None and old_s is not None:
            if old_s <= LOAD_AGE_S + LOAD_TIMEOUT_S:
                return Fact(value=max(0, reading.load.running - reading.ours) + ours)
            why = f"the endpoint's own count was {old_s:.1f} s old"
        else:
            why = "the endpoint did not tell its load"
        if self._pool.dedicated:
            return Fact(value=ours)
        return Fact(unknown=f"{why}, and live work runs there too")

    def arms(self, index: int) -> int:
        """Our arms that run there."""
        return self._arms[index]

    def arm_ends(self, index: int) -> None:
        self._arms[index] -= 1

    async def close(self) -> None:
        """Read no more."""
        tasks = [task for task in (self._keeper, *self._asking.values()) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _keep(self, wanted: Callable[[], Iterable[int]]) -> None:
        while indices := tuple(wanted()):
            self._nudge.clear()
            await self.refresh(indices)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOAD_AGE_S + 0.01):  # by then the reading is old
                    await self._nudge.wait()

    async def _read(self, index: int) -> None:
        endpoint, ours, asked_s = self._pool.endpoints[index], self._arms[index], self._monotonic()
        try:
            load = await self._ask(index, endpoint)
        finally:
            del self._asking[index]
        self._readings[index] = _Reading(asked_s, load, max(ours, self._arms[index]))

    async def _ask(self, index: int, endpoint: ShadowEndpoint) -> Load | None:
        engine = endpoint.engine
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                load = await engine.load()
        except (EngineError, TimeoutError) as error:
            if index not in self._unreadable:
                _LOG.warning(
                    "load unknown, our own count of arms stands in for it"
                    if self._pool.dedicated
                    else "load unknown, shadows do not wait for live work there",
                    extra={"endpoint": engine.base_url, "error": str(error)},
                )
                self._unreadable.add(index)
            if isinstance(error, EngineError):
                note_end(endpoint, error)
            else:
                endpoint.not_answering(f"its load was not told within {LOAD_TIMEOUT_S:g} s")
            return None
        except Exception:  # an adapter that raises anything else has a bug; the arms go on without
            _LOG.exception("a load could not be read", extra={"endpoint": engine.base_url})
            return None
        endpoint.answered()
        self._unreadable.discard(index)
        return load
