"""A cap on the memory that the candidate's engine holds, from the engine's own metrics.

The largest value of any endpoint and moment counts: memory that was needed once will be needed again. With
``maximum_ratio`` the baseline's largest is what it is held against. Not a test, so no alpha and no maximum n:
engines reserve memory, and what they say does not vary by chance.

A value that an endpoint cannot tell is *could not measure* (an error, never a pass), with the endpoint's own
reason, for as long as it is the last that it said.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import msgspec

from comparator.records import EngineSample
from policies.gates.base import Alpha, Evidence
from policies.gates.betting import check_at_least
from policies.verdict import Answer, Verdict

MOST_ENDPOINTS = 256
_GIB = 2.0**30


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What one endpoint said of its memory."""

    samples: int = 0
    """In which it told a number."""
    most_bytes: int = 0
    unknown: str | None = None
    """Why its last sample had none; None when it had."""

    def then(self, sample: EngineSample) -> Held:
        """With one more sample."""
        value = sample.memory_bytes.value
        if value is None:
            return Held(samples=self.samples, most_bytes=self.most_bytes, unknown=sample.memory_bytes.unknown)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
            return Held(
                samples=self.samples, most_bytes=self.most_bytes, unknown=f"{value!r} is no number of bytes"
            )
        return Held(samples=self.samples + 1, most_bytes=max(self.most_bytes, math.ceil(value)))


class GpuMemoryState(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="gpu_memory"):
    """By endpoint of either pool."""

    baseline: dict[str, Held] = {}
    candidate: dict[str, Held] = {}
    left_out: int = 0
    """Samples of endpoints beyond ``MOST_ENDPOINTS`` of a pool."""


class GpuMemory(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="gpu_memory"
):
    """Estimand: ``traffic``. Value: the candidate's largest, in bytes, or over the baseline's for a ratio."""

    spends_alpha: ClassVar[bool] = False
    performance: ClassVar[bool] = True

    name: str = "gpu_memory"
    estimand: Literal["traffic"] = "traffic"
    maximum_bytes: int | None = None
    maximum_ratio: float | None = None
    """Candidate's largest over the baseline's largest."""
    minimum_samples: int = 10
    """Of each endpoint, before the gate may say pass."""

    def __post_init__(self) -> None:
        if self.maximum_bytes is None and self.maximum_ratio is None:
            raise ValueError("maximum_bytes or maximum_ratio: give at least one, or the gate limits nothing")
        if self.maximum_bytes is not None:
            check_at_least("maximum_bytes", self.maximum_bytes, 1, "no engine runs in nothing")
        if self.maximum_ratio is not None and not 0.0 < self.maximum_ratio < math.inf:
            raise ValueError(f"maximum_ratio: {self.maximum_ratio} is not above 0")
        check_at_least("minimum_samples", self.minimum_samples, 1, "no data is no pass")

    def initial(self) -> GpuMemoryState:
        """Before any evidence."""
        return GpuMemoryState()

    def fold(self, state: GpuMemoryState, evidence: Evidence) -> GpuMemoryState:
        """Keep what an endpoint's sample says; all else leaves the state alone."""
        if not isinstance(evidence, EngineSample):
            return state
        pool = state.candidate if evidence.candidate else state.baseline
        if evidence.endpoint not in pool and len(pool) >= MOST_ENDPOINTS:
            return msgspec.structs.replace(state, left_out=state.left_out + 1)
        pool = {**pool, evidence.endpoint: pool.get(evidence.endpoint, Held()).then(evidence)}
        if evidence.candidate:
            return msgspec.structs.replace(state, candidate=pool)
        return msgspec.structs.replace(state, baseline=pool)

    def verdict(self, state: GpuMemoryState, alpha: Alpha) -> Verdict:
        """Fail over a cap, error where an endpoint does not tell, pass with enough samples of each."""
        mine, other = _most(state.candidate), _most(state.baseline)
        n = sum(held.samples for held in state.candidate.values())
        ratio = mine / other if mine is not None and other else None
        if self.maximum_bytes is not None and mine is not None and mine > self.maximum_bytes:
            return self._verdict(
                Answer.FAIL,
                mine,
                self.maximum_bytes,
                n,
                f"the candidate holds {_gib(mine)} of memory, over {_gib(self.maximum_bytes)}",
            )
        if self.maximum_ratio is not None and ratio is not None and ratio > self.maximum_ratio:
            return self._verdict(
                Answer.FAIL,
                ratio,
                self.maximum_ratio,
                n,
                f"the candidate holds {_gib(mine)} of memory, {ratio:.3f} x the baseline's {_gib(other)}, "
                f"over {self.maximum_ratio:g} x",
            )
        value, limit = (mine, self.maximum_bytes) if self.maximum_bytes else (ratio, self.maximum_ratio)
        pools = {"candidate": state.candidate}
        if self.maximum_ratio is not None:
            pools["baseline"] = state.baseline
        for name, pool in pools.items():
            for endpoint, held in sorted(pool.items()):
                if held.unknown is not None:
                    return self._verdict(
                        Answer.ERROR,
                        value,
                        limit,
                        n,
                        f"could not measure the memory of the {name} at {endpoint}: {held.unknown}",
                    )
        if self.maximum_ratio is not None and other == 0:
            reason = "could not measure a ratio: the baseline says that it holds no memory"
            return self._verdict(Answer.ERROR, None, self.maximum_ratio, n, reason)
        for name, pool in pools.items():
            fewest = min((held.samples for held in pool.values()), default=0)
            if fewest < self.minimum_samples:
                return self._verdict(
                    Answer.INCONCLUSIVE,
                    value,
                    limit,
                    n,
                    f"{fewest} samples of the {name}'s memory; {self.minimum_samples} an endpoint are needed",
                )
        return self._verdict(
            Answer.PASS, value, limit, n, f"the candidate holds {_gib(mine)} of memory, within its limits"
        )

    def _verdict(
        self, answer: Answer, value: float | None, limit: float | None, n: int, reason: str
    ) -> Verdict:
        return Verdict(
            gate=self.name,
            answer=answer,
            value=None if value is None else float(value),
            limit=None if limit is None else float(limit),
            n=n,
            reason=reason,
            estimand=self.estimand,
        )


def _most(pool: dict[str, Held]) -> int | None:
    return max((held.most_bytes for held in pool.values() if held.samples), default=None)


def _gib(size: int | None) -> str:
    return "nothing" if size is None else f"{size / _GIB:.3f} GiB"
