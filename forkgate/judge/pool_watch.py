"""The old pool is kept real: looked at, through the whole window in which a rollout may go back to it.

Every few seconds each *live* endpoint of a rollout's baseline, where a rollback would send its clients, is
asked a short question and for its load; the candidate's endpoints for theirs. What comes of it is one word
for each pool, ready or not, which the rollouts take in (:class:`policies.rollout.PoolSeen`): none of them
takes a step while its old pool is gone, slow, short of an endpoint or full. Being lost is told at once; being
back, after two good looks in a row.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from engines.base import EngineError, EngineTimeout, EngineUnavailable, Probe
from forkgate.config.model import Config, PoolSection
from forkgate.config.pool_watch import PoolWatchSettings
from forkgate.endpoint import Endpoint
from forkgate.fleet import Fleet, OpenEngine, tls_context
from forkgate.judge.pool_question import Question
from forkgate.judge.pool_room import EndpointSeen, in_the_way, room
from policies.rollout import JUDGED_STAGES, RolloutState, Stage
from proxy.mirror import Sources

log = logging.getLogger(__name__)

WATCHED_STAGES = (*JUDGED_STAGES, Stage.PROMOTED)
"""In these a rollout may be rolled back with live traffic, or be about to move some."""
GOOD_LOOKS = 2
"""In a row, before a pool that was lost counts as ready again."""
LOST_S = 2.0
"""Between two looks at a pool that is not ready, at most: a person waits for it."""
LOAD_TIMEOUT_S = 3.0
QUEUE_AGAIN_S = 1.0
"""A queue of a moment is no full pool: it counts where it is still there after this."""
IDLE_S = 0.2
"""Between two questions whether a pool is to be watched now."""
PROBE_AGE_S = 300.0
"""Between two probes of a live endpoint that no shadow reaches, for who it is."""
PROBE_TIMEOUT_S = 120.0
_SAID = ("gpu.driver", "container.image")
"""Fields of an environment record that people ask for first when a pool is not what it was."""


class Listener(Protocol):
    """Told at each look."""

    def pool_seen(self, pool: str, ready: bool, reason: str) -> None: ...


class PoolFound(msgspec.Struct, frozen=True, kw_only=True):
    """What the last look at a pool found."""

    ready: bool
    reason: str
    unix_s: float
    since_unix_s: float
    """When it became so."""
    endpoints: tuple[EndpointSeen, ...]


class _Watched:
    """One live endpoint, and the question that it is asked."""

    def __init__(self, pool: str, endpoint: Endpoint, sources: Sources, *, own: bool) -> None:
        self.pool = pool
        self.endpoint = endpoint
        self.question = Question(pool, endpoint, sources)
        self.own = own
        """Nobody else probes it: it has shadow endpoints beside it."""
        self.probed_s: float | None = None

    @property
    def never_probed(self) -> str | None:
        """Why it is not even known which model to ask for."""
        return self.endpoint.trouble if self.endpoint.probe is None else None


class PoolWatch:
    """Belongs to the judge's event loop. :meth:`close` it."""

    def __init__(
        self,
        config: Config,
        fleet: Fleet,
        open_engine: OpenEngine,
        states: Callable[[], Sequence[RolloutState]],
        listener: Listener,
        *,
        arms: Callable[[], Mapping[str, int]] = dict,
        sources: Sources | None = None,
    ) -> None:
        """
        Args:
            arms: shadow arms that run now, by the endpoint's URL.

        Raises:
            FleetError: a pool's TLS files cannot be used.
        """
        self._config = config
        self._fleet = fleet
        self._states = states
        self._listener = listener
        self._arms = arms
        self._sources = sources if sources is not None else Sources()
        self._good: dict[str, int] = {}
        self._silent: dict[str, str] = {}
        """URL of a live endpoint that gave its load no answer at the last look → why."""
        self.found: dict[str, PoolFound] = {}
        """Pool → what the last look found; none before the first."""
        names: dict[str, None] = dict.fromkeys(
            name for rollout in config.rollouts for name in (rollout.baseline, rollout.candidate)
        )
        self._live: dict[str, tuple[_Watched, ...]] = {
            name: self._open(config.pool(name), open_engine) for name in names
        }

    def _open(self, pool: PoolSection, open_engine: OpenEngine) -> tuple[_Watched, ...]:
        """Its live endpoints: the fleet's own where shadows run on the same, else opened for this."""
        shared = {one.url: one for one in self._fleet.endpoints(pool.name)}
        tls = tls_context(pool)
        server_name = pool.tls.server_name if pool.tls is not None else None
        watched = []
        for url in (one.rstrip("/") for one in pool.live_for_judge):
            endpoint = shared.get(url)
            if endpoint is None:
                engine = open_engine(url, pool.engine, tls=tls, server_name=server_name)
                endpoint = Endpoint(url, engine, pool.engine.kind)
            watched.append(_Watched(pool.name, endpoint, self._sources, own=url not in shared))
        return tuple(watched)

    async def run(self) -> None:
        """Look until cancelled."""
        pools = dict.fromkeys(rollout.baseline for rollout in self._config.rollouts)
        async with asyncio.TaskGroup() as tasks:
            for name in pools:
                tasks.create_task(self._watch(name), name=f"watch of pool {name}")

    async def close(self) -> None:
        """Close the engines that were opened for this."""
        for watched in self._live.values():
            for one in watched:
                if one.own:
                    with contextlib.suppress(Exception):
                        await one.endpoint.engine.close()

    def view(self, pool: str) -> dict[str, Any] | None:
        """For ``/v1/status``: None while nothing could go back to this pool."""
        found = self.found.get(pool)
        if found is None or not self._candidates(pool):
            return None
        who = {one.endpoint.url: _who(one.endpoint) for one in self._live[pool]}
        return {
            "ready": found.ready,
            "reason": found.reason,
            "unix_s": found.unix_s,
            "since_unix_s": found.since_unix_s,
            "endpoints": [
                {**msgspec.structs.asdict(one), "live": one.live, **who[one.url]} for one in found.endpoints
            ],
        }

    def silent(self, pool: str) -> tuple[str, ...]:
        """Live endpoints of a rollout's pool that do not answer, a sentence each: as the last look found, or
        whoever asked one of them since."""
        found = []
        for one in self._live[pool]:
            # Of its own endpoints the watch probes the old pool's alone: that others were not, says nothing.
            probed = not one.own or one.endpoint.probe is not None
            why = (one.endpoint.trouble if probed else None) or self._silent.get(one.endpoint.url)
            if why is not None:
                found.append(f"{one.endpoint.url}: {why}")
        return tuple(found)

    def silences(self) -> dict[str, int]:
        """Pool of a rollout that is watched now → live endpoints that do not answer."""
        watched = {name: self._candidates(name) for name in self.found}
        pools = dict.fromkeys(one for name, others in watched.items() if others for one in (name, *others))
        return {name: len(self.silent(name)) for name in pools}

    def ready(self) -> dict[str, bool]:
        """Pools that something could go back to → ready."""
        return {name: one.ready for name, one in self.found.items() if self._candidates(name)}

    async def _watch(self, pool: str) -> None:
        every_s = self._config.pool(pool).watch.every_s
        while True:
            if not self._candidates(pool) or self._unknown(pool):
                await asyncio.sleep(min(every_s, IDLE_S))
                continue
            ready = False
            try:
                ready = (await self.look(pool)).ready
            except Exception:
                log.exception("a pool could not be looked at, tried again", extra={"pool": pool})
            await asyncio.sleep(every_s if ready else min(every_s, LOST_S))

    def _unknown(self, pool: str) -> bool:
        """A judge that has just started knows no model to ask for yet: its first probes are under way."""
        return any(
            not one.own and one.endpoint.probe is None and one.endpoint.probing for one in self._live[pool]
        )

    async def look(self, pool: str) -> PoolFound:
        """One look at a pool, told to the listener."""
        settings = self._config.pool(pool).watch
        candidates = self._candidates(pool)
        seen = await asyncio.gather(*(self._ask(settings, one) for one in self._live[pool]))
        carried = await asyncio.gather(*(self._load(one) for name in candidates for one in self._live[name]))
        reasons = in_the_way(settings, seen, carried)
        self._good[pool] = 0 if reasons else self._good.get(pool, GOOD_LOOKS - 1) + 1
        before = self.found.get(pool)
        now = self._sources.unix()
        if reasons:
            ready, reason = False, "; ".join(reasons)
        else:
            slowest_s = max((one.took_s or 0.0 for one in seen), default=0.0)
            reason = (
                f"{len(seen)} endpoints answered, the slowest in {slowest_s:.2f} s; "
                f"{room(settings, seen, carried)}"
            )
            ready = self._good[pool] >= GOOD_LOOKS
            if not ready:
                reason = f"it has answered well once since it was lost, one more look is waited for: {reason}"
        same = before is not None and before.ready == ready
        self.found[pool] = found = PoolFound(
            ready=ready,
            reason=reason,
            unix_s=now,
            since_unix_s=before.since_unix_s if same and before is not None else now,
            endpoints=tuple(seen),
        )
        if not same:
            self._tell(pool, found, first=before is None)
        self._listener.pool_seen(pool, ready, reason)
        return found

    def _tell(self, pool: str, found: PoolFound, *, first: bool) -> None:
        extra = {"pool": pool, "reason": found.reason}
        if not found.ready:
            log.error("the old pool could not take everything back: nothing advances", extra=extra)
        elif first:
            log.info("the old pool could take everything back", extra=extra)
        else:
            log.warning("the old pool could take everything back again", extra=extra)

    def _candidates(self, pool: str) -> tuple[str, ...]:
        """Pools whose live work would come back to this one."""
        states = (state for state in self._states() if state.stage in WATCHED_STAGES)
        return tuple(dict.fromkeys(state.plan.candidate for state in states if state.plan.baseline == pool))

    # -- one endpoint ----------------------------------------------------------------------------------

    async def _ask(self, settings: PoolWatchSettings, watched: _Watched) -> EndpointSeen:
        trouble = await self._identify(watched) if watched.own else watched.never_probed
        seen = await self._load(watched)
        if trouble is not None:
            return msgspec.structs.replace(seen, trouble=trouble)
        if seen.queued:
            await asyncio.sleep(QUEUE_AGAIN_S)
            seen = await self._load(watched)
        if seen.queued:
            return seen  # it is full, which is all that there is to know; it needs no further request
        started_s = time.monotonic()
        trouble = await watched.question.ask(settings)
        took_s = time.monotonic() - started_s
        return msgspec.structs.replace(seen, trouble=trouble, took_s=None if trouble else took_s)

    async def _load(self, watched: _Watched) -> EndpointSeen:
        """What it says of its load; what it does not tell is None."""
        endpoint = watched.endpoint
        ours = self._arms().get(endpoint.url, 0)
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                load = await endpoint.engine.load()
        except (EngineTimeout, EngineUnavailable, TimeoutError) as error:
            why = str(error).removeprefix(f"{endpoint.url}: ")
            self._silent[endpoint.url] = (
                f"not answering: {why or f'its load was not told within {LOAD_TIMEOUT_S:g} s'}"
            )
            return EndpointSeen(url=endpoint.url, ours=ours)
        except EngineError:
            self._silent.pop(endpoint.url, None)  # it answers, but does not tell
            return EndpointSeen(url=endpoint.url, ours=ours)
        self._silent.pop(endpoint.url, None)
        used = load.kv_cache_usage.value
        return EndpointSeen(
            url=endpoint.url,
            running=load.running,
            waiting=load.waiting,
            kv_cache_usage=float(used) if isinstance(used, int | float) else None,
            ours=ours,
        )

    async def _identify(self, watched: _Watched) -> str | None:
        """Probe an endpoint that only clients and this watch reach, so that it is known what it can do and
        who it is. Why it could not be probed, in words."""
        endpoint, now_s = watched.endpoint, time.monotonic()
        due = watched.probed_s is None or now_s - watched.probed_s >= PROBE_AGE_S or endpoint.doubted.is_set()
        if not due:
            return None
        endpoint.doubted.clear()
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                probe = await endpoint.engine.probe()
        except (EngineError, TimeoutError) as error:
            why = str(error) or f"{endpoint.url}: no answer to a probe within {PROBE_TIMEOUT_S:g} s"
            endpoint.not_probed(why)
            watched.probed_s = None
            return why
        endpoint.probed(probe)
        watched.probed_s = now_s
        digest = endpoint.answerer.digest
        known = self._fleet.answering(watched.pool, endpoint.url)
        if digest is not None and known is not None:
            known.told(digest, time.time())
        return None


def _who(endpoint: Endpoint) -> dict[str, Any]:
    """Digest, and what its record tells of driver and image."""
    probe = endpoint.probe
    fields = _fields(probe)
    return {
        "environment": endpoint.answerer.digest,
        "version": None if probe is None else probe.version,
        "driver": fields[_SAID[0]],
        "image": fields[_SAID[1]],
    }


def _fields(probe: Probe | None) -> dict[str, Any]:
    """Each of :data:`_SAID`, or None where no record tells it."""
    record = probe.record.to_json()["fields"] if probe is not None and probe.record is not None else {}
    return {
        name: None if isinstance(record.get(name), dict) and "unknown" in record[name] else record.get(name)
        for name in _SAID
    }
