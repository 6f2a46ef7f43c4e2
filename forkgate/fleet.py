"""The engines behind every pool: opened once, probed until they answer, watched for what they lack."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from comparator.records import Digest
from engines.base import Engine, EngineError, EngineOptions, Probe
from forkgate.config.model import Config, PoolSection
from proxy.mirror import ShadowPool

log = logging.getLogger(__name__)

RETRY_S = 5.0
"""Between probes of an endpoint that did not answer, and at least between any two."""
REFRESH_S = 300.0
"""Between probes of one that did: a server that is replaced in place is noticed. An arm that gets no answer
there has it probed sooner."""
PROBE_TIMEOUT_S = 120.0


class OpenEngine(Protocol):
    """:func:`engines.open_engine`, or a test's own."""

    def __call__(
        self,
        base_url: str,
        options: EngineOptions,
        *,
        tls: ssl.SSLContext | None = None,
        server_name: str | None = None,
    ) -> Engine: ...


class Endpoint:
    """One engine, what its last probe found, and whether it has answered since.

    Implements :class:`proxy.mirror.ShadowEndpoint`: arms say what they met, which is how a dead engine is
    known long before its next probe is due. Only a probe clears what they say.
    """

    def __init__(self, url: str, engine: Engine, kind: str) -> None:
        self.url = url
        self.engine = engine
        self.kind = kind
        self.probe: Probe | None = None
        self.error: str | None = "not probed yet"
        self.doubted = asyncio.Event()
        """An arm got no answer: probe soon."""
        self._answered_s: float | None = None
        self._silent_since_unix_s: float | None = None

    def answered(self) -> None:
        self._answered_s = time.monotonic()

    def not_answering(self, why: str) -> None:
        if self._silent_since_unix_s is None:
            self._silent_since_unix_s = time.time()
            log.warning("engine does not answer", extra={"endpoint": self.url, "error": why})
        self.error = why
        self.doubted.set()

    def probed(self, probe: Probe) -> None:
        """It answers."""
        self.probe, self.error, self._silent_since_unix_s = probe, None, None
        self.answered()

    def not_probed(self, why: str) -> None:
        """A probe failed."""
        self.error = why
        if self.probe is not None and self._silent_since_unix_s is None:
            self._silent_since_unix_s = time.time()

    @property
    def trouble(self) -> str | None:
        """Why it is of no use now, in words; None while it answers."""
        if self.error is None:
            return None
        why = self.error.removeprefix(f"{self.url}: ")
        since_s = self._silent_since_unix_s
        if self.probe is None or since_s is None:
            return why  # it never answered
        since = datetime.datetime.fromtimestamp(since_s, tz=datetime.UTC)
        return f"not answering since {since:%Y-%m-%d %H:%M:%S} UTC: {why}"

    def view(self) -> dict[str, Any]:
        """For ``/v1/status``."""
        probe = self.probe
        return {
            "url": self.url,
            "engine": probe.engine if probe is not None else self.kind,
            "version": probe.version if probe is not None else None,
            "model": probe.model if probe is not None else None,
            "has": sorted(one.value for one in probe.has) if probe is not None else [],
            "missing": {one.value: why for one, why in probe.missing.items()} if probe is not None else {},
            "max_logprobs": probe.max_logprobs if probe is not None else None,
            "facts": {name: _fact(fact) for name, fact in probe.facts.items()} if probe is not None else {},
            "error": self.error,
            "trouble": self.trouble,
            "answered_s": None if self._answered_s is None else time.monotonic() - self._answered_s,
            "silent_since_unix_s": self._silent_since_unix_s,
        }


def _fact(fact: Any) -> Any:
    return {"value": fact.value} if fact.unknown is None else {"unknown": fact.unknown}


class FleetError(Exception):
    """A pool whose engines cannot be opened: what, where, what to do."""


def _context(pool: PoolSection) -> ssl.SSLContext | None:
    """The pool's own trust and client certificate; None leaves the system's trust in place.

    Raises:
        FleetError: a file cannot be used.
    """
    tls = pool.tls
    if tls is None:
        return None
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.client_cert_file is not None:
            context.load_cert_chain(tls.client_cert_file, tls.client_key_file)
    except OSError as error:  # ssl.SSLError is one
        files = ", ".join(file for file in (tls.ca_file, tls.client_cert_file, tls.client_key_file) if file)
        raise FleetError(f"pool {pool.name}: tls: {files}: cannot be used: {error}") from error
    return context


class Fleet:
    """Endpoints of every pool that a rollout compares."""

    def __init__(self, config: Config, open_engine: OpenEngine) -> None:
        """Raises FleetError when a pool's TLS files cannot be used."""
        self.on_probe: Callable[[str, Endpoint], None] | None = None
        """Told of every probe that was answered, with the pool's name."""
        self._pools: dict[str, tuple[PoolSection, tuple[Endpoint, ...]]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        for pool in config.pools:
            urls = pool.shadow_endpoints or pool.endpoints
            tls = _context(pool)
            server_name = pool.tls.server_name if pool.tls is not None else None
            endpoints = tuple(
                Endpoint(
                    url, open_engine(url, pool.engine, tls=tls, server_name=server_name), pool.engine.kind
                )
                for url in (one.rstrip("/") for one in urls)
            )
            self._pools[pool.name] = (pool, endpoints)

    def endpoints(self, pool: str) -> Sequence[Endpoint]:
        """Where shadow arms of this pool run. Raises KeyError."""
        return self._pools[pool][1]

    def start(self) -> None:
        """Probe them all, each at its own pace; nobody waits."""
        for name, (_, endpoints) in self._pools.items():
            self._tasks += [
                asyncio.create_task(self._watch(name, one), name=f"probe {one.url}") for one in endpoints
            ]

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for _, endpoints in self._pools.values():
            for one in endpoints:
                with contextlib.suppress(Exception):
                    await one.engine.close()

    def view(self, home: str) -> list[dict[str, Any]]:
        """For ``/v1/status``."""
        return [
            {
                "name": name,
                "home": name == home,
                "environment_digest": pool.environment_digest,
                "shadow_endpoints": bool(pool.shadow_endpoints),
                "endpoints": [one.view() for one in endpoints],
            }
            for name, (pool, endpoints) in self._pools.items()
        ]

    def unprobed(self) -> list[str]:
        """Endpoints whose engine has never answered a probe: what readiness waits for."""
        return [line for one, line in self._troubles() if one.probe is None]

    def troubles(self) -> list[str]:
        """Those, and the endpoints that have answered before and do not now."""
        return [line for _, line in self._troubles()]

    def _troubles(self) -> list[tuple[Endpoint, str]]:
        return [
            (one, f"pool {name}: {one.url}: {one.trouble}")
            for name, (_, endpoints) in self._pools.items()
            for one in endpoints
            if one.trouble is not None
        ]

    async def _watch(self, pool: str, one: Endpoint) -> None:
        while True:
            one.doubted.clear()
            await self._probe(pool, one)
            await asyncio.sleep(RETRY_S)
            if one.error is None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REFRESH_S - RETRY_S):
                        await one.doubted.wait()

    async def _probe(self, pool: str, one: Endpoint) -> None:
        started = time.monotonic()
        before = one.error
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                probe = await one.engine.probe()
        except EngineError as error:
            one.not_probed(str(error))
        except TimeoutError:
            one.not_probed(f"{one.url}: no answer to a probe within {PROBE_TIMEOUT_S:g} s")
        except Exception as error:
            # A bug of an adapter must not end the probes of its endpoint unseen.
            one.not_probed(f"{one.url}: {type(error).__name__}: {error}")
            log.exception("a probe failed in a way that no adapter may", extra={"endpoint": one.url})
        else:
            changed = one.probe is None or (probe.version, probe.missing) != (
                one.probe.version,
                one.probe.missing,
            )
            one.probed(probe)
            if changed:
                log.info(
                    "engine probed",
                    extra={
                        "pool": pool,
                        "endpoint": one.url,
                        "engine": probe.engine,
                        "version": probe.version,
                        "lacks": {name.value: why for name, why in probe.missing.items()},
                        "probe_s": round(time.monotonic() - started, 3),
                    },
                )
            if self.on_probe is not None:
                self.on_probe(pool, one)
            return
        if one.error != before:
            log.warning(
                "engine does not answer", extra={"pool": pool, "endpoint": one.url, "error": one.error}
            )


def shadow_pool(config: Config, fleet: Fleet, name: str) -> ShadowPool:
    """One side of a comparison."""
    section = config.pool(name)
    digest = section.environment_digest
    return ShadowPool(
        name=name,
        endpoints=tuple(fleet.endpoints(name)),
        dedicated=bool(section.shadow_endpoints),
        declared_digest=Digest(digest) if digest is not None else None,
    )
