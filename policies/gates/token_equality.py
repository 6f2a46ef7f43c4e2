"""Audit: any token fork between baseline and candidate is a breach.

State: :class:`TokenEqualityState`. The first fork decides, the moment its deciding token is seen; nothing
takes it back. Only valid pairs count: a pair that was set aside says nothing about the candidate's numbers.
A fork counts wherever it is seen. An equal pair counts once a prompt: a probe that asks the same thing a
thousand times, or a suite's later passes, do not make a pass. Nor do two empty answers, which are equal to
anything that is empty.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from comparator.comparison import Comparison
from comparator.pair import ForkSeen, Pair
from comparator.records import Arm, CaptureId, Outcome
from policies.gates.base import Alpha, Evidence
from policies.verdict import Answer, Verdict


class TokenEqualityState(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="token_equality"):
    """Pairs, forks and the first fork, which decides."""

    pairs: int = 0
    """Valid pairs that forked, and equal ones of prompts that were new and answered."""
    forks: int = 0
    """Those of them that forked."""
    deciding_id: CaptureId | None = None
    fork_index: int | None = None


class TokenEquality(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="token_equality",
):
    """Estimand: ``traffic``, the captured requests that went as the policy's rollout says."""

    spends_alpha: ClassVar[bool] = False
    performance: ClassVar[bool] = False

    name: str = "token_equality"
    estimand: Literal["traffic"] = "traffic"
    minimum_pairs: int = 1_000
    """Equal pairs before this gate may say pass; a fork needs no minimum."""

    def __post_init__(self) -> None:
        if self.minimum_pairs < 1:
            raise ValueError(f"minimum_pairs: {self.minimum_pairs} is under 1; no data is no pass")

    def initial(self) -> TokenEqualityState:
        """Before any evidence."""
        return TokenEqualityState()

    def fold(self, state: TokenEqualityState, evidence: Evidence) -> TokenEqualityState:
        """Count a valid pair of the candidate or take its first fork; all else leaves the state alone."""
        if isinstance(evidence, ForkSeen):
            if evidence.right_arm is not Arm.CANDIDATE or state.deciding_id is not None:
                return state
            return msgspec.structs.replace(
                state, deciding_id=evidence.capture_id, fork_index=evidence.fork.fork_index
            )
        if isinstance(evidence, Comparison):
            for pair in evidence.candidates:
                if pair.valid:
                    state = self._count(state, pair, is_new=not evidence.repeat)
        return state

    def _count(self, state: TokenEqualityState, pair: Pair, *, is_new: bool) -> TokenEqualityState:
        fork = pair.fork
        if fork is None:
            # An arm that failed or was stopped was equal as far as it went, which shows nothing.
            compared = is_new and pair.right.outcome is Outcome.COMPLETED and bool(pair.right.steps)
            if not compared:
                return state
            return msgspec.structs.replace(state, pairs=state.pairs + compared)
        first = state.deciding_id is None
        return msgspec.structs.replace(
            state,
            pairs=state.pairs + 1,
            forks=state.forks + 1,
            deciding_id=pair.capture_id if first else state.deciding_id,
            fork_index=fork.fork_index if first else state.fork_index,
        )

    def verdict(self, state: TokenEqualityState, alpha: Alpha) -> Verdict:
        """Fail from the first fork on; pass after enough pairs without one."""
        if state.deciding_id is not None:
            # The first fork is counted when its pair ends; it is known earlier.
            forks = max(state.forks, 1)
            return self._verdict(
                state,
                Answer.FAIL,
                value=float(forks),
                n=max(state.pairs, 1),
                reason=f"{forks} of {max(state.pairs, 1)} pairs forked; the first at output token "
                f"{state.fork_index} of capture {state.deciding_id}",
            )
        if state.pairs < self.minimum_pairs:
            return self._verdict(
                state,
                Answer.INCONCLUSIVE,
                value=0.0,
                n=state.pairs,
                reason=f"no fork in {state.pairs} pairs; {self.minimum_pairs} are needed to pass",
            )
        return self._verdict(
            state, Answer.PASS, value=0.0, n=state.pairs, reason=f"no fork in {state.pairs} pairs"
        )

    def _verdict(
        self, state: TokenEqualityState, answer: Answer, *, value: float, n: int, reason: str
    ) -> Verdict:
        return Verdict(
            gate=self.name,
            answer=answer,
            value=value,
            limit=0.0,
            n=n,
            reason=reason,
            deciding_id=state.deciding_id,
            estimand=self.estimand,
        )
