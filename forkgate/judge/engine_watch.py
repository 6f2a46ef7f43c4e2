"""What compared engines say of themselves while a rollout runs: how busy they are, and whether they are still
the engines that they were.

Every few seconds each endpoint of a compared pool tells its load, which becomes evidence (gates read its
memory). Each probe tells what the engine *is*, and each answer may tell which environment gave it; what
changes there in mid-rollout holds it, since numbers of the one say nothing about the other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from comparator.evidence import RecordSeen
from comparator.records import EngineSample
from engines.base import OF_ONE_ANSWER, EngineError, EngineUnavailable, Load, Probe
from engines.identity import Identity
from engines.identity.artifact import ArtifactRecord
from forkgate.endpoint import Endpoint
from forkgate.fleet import Fleet
from forkgate.judge.provenance import DIGEST, NONE_TOLD
from policies.rollout import RolloutState

log = logging.getLogger(__name__)

SAMPLE_S = 5.0
"""Between two samples of an endpoint; at each, one small request to its metrics."""
LOAD_TIMEOUT_S = 3.0
"""An engine that takes longer gives no sample this time."""


class Listener(Protocol):
    """Told of it."""

    def engine_sampled(self, sample: EngineSample) -> None: ...

    def environment_seen(self, pool: str, endpoint: str, facts: dict[str, str]) -> None: ...


class EngineWatch:
    """Samples the engines of rollouts whose requests are copied. Belongs to the judge's event loop."""

    def __init__(
        self, fleet: Fleet, states: Callable[[], Sequence[RolloutState]], listener: Listener
    ) -> None:
        self._fleet = fleet
        self._states = states
        self._listener = listener
        self.on_record: Callable[[RecordSeen], None] | None = None
        """Told of each environment or artifact record that a probe found, each time: where it was seen, and
        when last."""
        self._generated: dict[str, int | float] = {}
        """URL → tokens that its engine had generated; a smaller number is another start."""
        fleet.on_probe = self.probed
        fleet.on_change = self.changed

    def probed(self, pool: str, endpoint: Endpoint) -> None:
        """A probe has been answered."""
        assert endpoint.probe is not None
        for record in (endpoint.probe.record, endpoint.probe.artifact):
            if record is not None and self.on_record is not None:
                self.on_record(_seen(pool, endpoint.url, record))
        facts = facts_of(endpoint.probe)
        if DIGEST not in facts:
            told = endpoint.answerer.digest
            if told is not None:
                facts[DIGEST] = told
            elif self._had_told(pool, endpoint.url):
                facts[DIGEST] = NONE_TOLD
        self._listener.environment_seen(pool, endpoint.url, facts)

    def changed(self, pool: str, url: str, digest: str) -> None:
        """An answer has told another environment than the ones before: no probe is waited for."""
        self._listener.environment_seen(pool, url, {DIGEST: digest})

    def _had_told(self, pool: str, url: str) -> bool:
        return any(DIGEST in state.environments.get(pool, {}).get(url, {}) for state in self._states())

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_S)
            try:
                await self.sample()
            except Exception:
                log.exception("engines could not be sampled, tried again")

    async def sample(self) -> None:
        """Each endpoint once; every rollout that compares its pool gets the sample."""
        wanted: dict[str, list[RolloutState]] = {}
        for state in self._states():
            if state.mirrors:
                for name in (state.plan.baseline, state.plan.candidate):
                    wanted.setdefault(name, []).append(state)
        endpoints = [
            (pool, one) for pool in wanted for one in self._fleet.endpoints(pool) if one.error is None
        ]
        loads = await asyncio.gather(*(_load(one) for _, one in endpoints))
        now = time.time()
        for (pool, one), load in zip(endpoints, loads, strict=True):
            if load is None:
                continue
            self._look_for_restart(one, load)
            for state in wanted[pool]:
                self._listener.engine_sampled(
                    EngineSample(
                        rollout=state.plan.name,
                        pool=pool,
                        endpoint=one.url,
                        candidate=pool == state.plan.candidate,
                        unix_s=now,
                        running=load.running,
                        waiting=load.waiting,
                        kv_cache_usage=load.kv_cache_usage,
                        memory_bytes=load.memory_bytes,
                        generated_tokens=load.generated_tokens,
                        environment=one.answerer.digest or "",
                    )
                )

    def _look_for_restart(self, one: Endpoint, load: Load) -> None:
        """A counter that went back is of another start of the engine, or of another engine."""
        count = load.generated_tokens.value
        if not isinstance(count, int | float):
            return
        before = self._generated.get(one.url)
        self._generated[one.url] = count
        if before is not None and count < before and not one.environment_in_answers:
            one.another(f"it was started anew: its count of generated tokens went from {before} to {count}")


def facts_of(probe: Probe) -> dict[str, str]:
    """What an engine is, by name, in words: version, model, precision, flags. What it cannot tell is left
    out, for not knowing is no change."""
    facts = {"engine": probe.engine, "max_logprobs": str(probe.max_logprobs)}
    for name, known in (("version", probe.version), ("model", probe.model)):
        if known is not None:
            facts[name] = known
    for name, fact in probe.facts.items():
        if fact.unknown is None and name not in OF_ONE_ANSWER:
            facts[name] = str(fact.value)
    return facts


def _seen(pool: str, url: str, record: Identity | ArtifactRecord) -> RecordSeen:
    document = record.to_json()
    return RecordSeen(
        kind=document["record"],
        digest=record.digest,
        document=msgspec.json.encode(document),
        pool=pool,
        endpoint=url,
        unix_s=time.time(),
    )


async def _load(endpoint: Endpoint) -> Load | None:
    try:
        async with asyncio.timeout(LOAD_TIMEOUT_S):
            return await endpoint.engine.load()
    except EngineUnavailable as error:
        # Gone, if only for a moment: what stands there next may be another, so it is probed soon.
        endpoint.not_answering(str(error))
        return None
    except (EngineError, TimeoutError) as error:
        log.debug("no load from an engine", extra={"endpoint": endpoint.url, "error": str(error)})
        return None
