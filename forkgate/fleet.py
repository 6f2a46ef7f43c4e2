"""The engines behind every pool: opened once, probed until they answer, watched for what they lack and who
they are.

Who answers is looked at with every answer that tells it (:mod:`forkgate.answerer`): an arm's, a probe's, a
reading of the load. So an engine that was put in place of another is known by its first answer. One whose
answers tell none is probed again soon after a connection to it had to be made anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from comparator.records import Digest
from engines.base import Engine, EngineError, EngineOptions, EngineUnavailable, Observable
from forkgate.answerer import differences
from forkgate.config.model import Config, PoolSection
from forkgate.endpoint import IDENTITY_S, Endpoint, LiveEndpoint, environment_view
from proxy.mirror import ShadowPool

log = logging.getLogger(__name__)

RETRY_S = 5.0
"""Between probes of an endpoint that did not answer, and at least between any two."""
REFRESH_S = 300.0
"""Between probes of one that did. Doubt has it probed sooner: an arm without an answer, another digest."""
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


class FleetError(Exception):
    """A pool whose engines cannot be opened: what, where, what to do."""


def tls_context(pool: PoolSection) -> ssl.SSLContext | None:
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
        self.on_change: Callable[[str, str, str], None] | None = None
        """Told of another environment that answers, the moment it does: pool, endpoint, digest."""
        self._pools: dict[str, tuple[PoolSection, tuple[Endpoint, ...]]] = {}
        self._answering: dict[str, dict[str, LiveEndpoint]] = {}
        """Pool → URL → whoever answers there: also endpoints that live traffic alone reaches."""
        self._differences: tuple[str, ...] = ()
        self._tasks: list[asyncio.Task[None]] = []
        for pool in config.pools:
            urls = pool.shadow_endpoints or pool.endpoints
            tls = tls_context(pool)
            server_name = pool.tls.server_name if pool.tls is not None else None
            endpoints = tuple(
                Endpoint(
                    url, open_engine(url, pool.engine, tls=tls, server_name=server_name), pool.engine.kind
                )
                for url in (one.rstrip("/") for one in urls)
            )
            shadowed = {one.url for one in endpoints}
            live = [url for url in (one.rstrip("/") for one in pool.endpoints) if url not in shadowed]
            self._pools[pool.name] = (pool, endpoints)
            self._answering[pool.name] = {
                one.url: one for one in (*endpoints, *(LiveEndpoint(url) for url in live))
            }
            for one in self._answering[pool.name].values():
                one.on_change = functools.partial(self._changed, pool.name, one.url)

    def _changed(self, pool: str, url: str, digest: str) -> None:
        if self.on_change is not None:
            self.on_change(pool, url, digest)
        self._tell_differences()

    def answering(self, pool: str, url: str) -> LiveEndpoint | None:
        """The endpoint of a pool at which a client's request was answered; None when it is none of its."""
        return self._answering.get(pool, {}).get(url.rstrip("/"))

    def environments(self) -> dict[tuple[str, str], list[str]]:
        """(pool, digest) → the endpoints that answer from it now; an empty digest where nobody tells one."""
        found: dict[tuple[str, str], list[str]] = {}
        for pool, endpoints in self._answering.items():
            for one in endpoints.values():
                found.setdefault((pool, one.answerer.digest or ""), []).append(one.url)
        return found

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
                "environments": {
                    digest: urls
                    for (pool_name, digest), urls in self.environments().items()
                    if pool_name == name
                },
                "endpoints": [one.view() for one in endpoints],
                "live_endpoints": [
                    {"url": one.url, **environment_view(one.answerer)}
                    for one in self._answering[name].values()
                    if not isinstance(one, Endpoint)
                ],
            }
            for name, (pool, endpoints) in self._pools.items()
        ]

    def unprobed(self) -> list[str]:
        """Endpoints whose engine has never answered a probe: what readiness waits for."""
        return [line for one, line in self._troubles() if one.probe is None]

    def troubles(self) -> list[str]:
        """Those, endpoints that have answered before and do not now, and pools of several environments."""
        return [line for _, line in self._troubles()] + self.differences()

    def differences(self) -> list[str]:
        """Pools whose endpoints answer from another environment than declared, or from several, in words."""
        return [
            line
            for name, (pool, endpoints) in self._pools.items()
            for line in differences(
                name,
                pool.environment_digest,
                {url: one.answerer for url, one in self._answering[name].items()},
                {one.url for one in endpoints if one.probe is not None},
                time.time(),
            )
        ]

    def _tell_differences(self) -> None:
        now = tuple(self.differences())
        for line in now:
            if line not in self._differences:
                log.error("a pool is not one environment", extra={"trouble": line})
        if self._differences and not now:
            log.info("every pool is one environment again")
        self._differences = now

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
            one.wanted.clear()
            await self._probe(pool, one)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await one.wanted.wait()
            if one.error is None:
                await self._until_due(one)

    async def _until_due(self, one: Endpoint) -> None:
        """Until it should be probed again. Meanwhile it is looked at now and then, if nobody else does."""
        end = time.monotonic() + REFRESH_S - RETRY_S
        while (left_s := end - time.monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(IDENTITY_S, left_s)):
                    await one.doubted.wait()
            if one.doubted.is_set() or one.unknown_answered:
                return
            if one.environment_in_answers and one.unlooked_s() >= IDENTITY_S:
                await _look(one)

    async def _probe(self, pool: str, one: Endpoint) -> None:
        one.probing = True
        if isinstance(one.engine, Observable):
            one.engine.forget()
        try:
            await self._ask(pool, one)
        finally:
            one.probing = False
            one.probes += 1

    async def _ask(self, pool: str, one: Endpoint) -> None:
        started = time.monotonic()
        before = one.error
        tellings = one.tellings
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
            one.probed(probe, in_answers=one.tellings > tellings)
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
            self._tell_differences()
            return
        if one.error != before:
            log.warning(
                "engine does not answer", extra={"pool": pool, "endpoint": one.url, "error": one.error}
            )


async def _look(one: Endpoint) -> None:
    """One small request, for its answer's head alone."""
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            await one.engine.load()
    except EngineUnavailable as error:
        one.not_answering(str(error))
    except (EngineError, TimeoutError) as error:
        log.debug("no load from an engine", extra={"endpoint": one.url, "error": str(error)})
    except Exception:
        # A bug of an adapter must not end the probes of its endpoint unseen.
        log.exception("a load was read in a way that no adapter may", extra={"endpoint": one.url})


def shadow_pool(config: Config, fleet: Fleet, name: str) -> ShadowPool:
    """One side of a comparison."""
    section = config.pool(name)
    digest = section.environment_digest
    return ShadowPool(
        name=name,
        endpoints=tuple(fleet.endpoints(name)),
        dedicated=bool(section.shadow_endpoints) and not section.beside_edges,
        declared_digest=Digest(digest) if digest is not None else None,
    )
