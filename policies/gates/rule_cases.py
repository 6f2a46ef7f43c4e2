"""Rule cases: what must hold of every answer holds of the candidate's, 100 %.

A case is a sample with ``rules``; it holds when its score is 1. No statistics: a case that fails on the
candidate while the baseline and a second run on the baseline (the control) hold in the same pass is a
breach at once. Where the baseline or the control fails too, in any pass, the *rule* is flaky: it says
nothing about the candidate, is set aside and named. A candidate's failure without a control beside it
proves nothing yet and counts as not measured.

What chance does: no alpha bounds it. A rule that an answer breaks now and then, on either environment, is
broken first by the candidate in one of three cases. With 24 cases in 5 passes, each broken in 1 run of 1,000
on all arms, 11 % of 2,000 simulated equal candidates failed. So rules are for what is never broken: mend or
drop those that a few runs of the baseline break.

What it can miss: 0 of 298 cases failing bounds the share that would fail under 1 % (at 95 %, as 1 -
.05^(1/298)); fewer cases, less.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from comparator.comparison import Comparison
from comparator.records import Arm
from policies.gates.base import Alpha, Evidence
from policies.gates.outcome import check_shares
from policies.gates.passes import MOST_WORDS, Trouble, broken, mean_of
from policies.gates.progress import Progress
from policies.verdict import Answer, Verdict

NAMED = 5
"""Flaky cases that a reason names; the rest are counted."""


class RuleCasesState(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="rule_cases"):
    """By sample, a bit for each pass. The order of folding leaves no trace."""

    progress: Progress = Progress()
    held: dict[str, int] = {}
    failed: dict[str, dict[int, str]] = {}
    """On the candidate alone, with the capture ID of each pass."""
    flaky: dict[str, int] = {}
    """On the baseline or the control."""
    unmeasured: dict[str, int] = {}
    trouble: Trouble | None = None
    """The first case, by sample and pass, that could not be measured."""

    def merge(self, other: RuleCasesState) -> RuleCasesState:
        """What both have seen: shards of one stage, in any order.

        Raises:
            ValueError: different stages or suites.
        """
        failed = {key: {**inner, **other.failed.get(key, {})} for key, inner in self.failed.items()}
        troubles = [each for each in (self.trouble, other.trouble) if each is not None]
        return RuleCasesState(
            progress=self.progress.merge(other.progress),
            held=_union(self.held, other.held),
            failed={**other.failed, **failed},
            flaky=_union(self.flaky, other.flaky),
            unmeasured=_union(self.unmeasured, other.unmeasured),
            trouble=min(troubles, key=_place, default=None),
        )

    def is_case(self, key: str) -> bool:
        """Whether a sample has rules. One of which no answer could be judged is taken to have some."""
        if key in self.held or key in self.failed or key in self.flaky:
            return True
        mask = self.unmeasured.get(key)
        return mask is not None and mask == self.progress.seen[key]

    @property
    def cases(self) -> int:
        """Samples with rules. Most hold, and are not gone through: this is asked for after every answer."""
        others = {key for part in (self.failed, self.flaky, self.unmeasured) for key in part}
        return len(self.held) + sum(key not in self.held and self.is_case(key) for key in others)

    def breaches(self) -> list[tuple[int, str, str]]:
        """(pass, sample, capture) of each case that failed on the candidate alone, first pass first."""
        return sorted(
            (min(passes), key, passes[min(passes)])
            for key, passes in self.failed.items()
            if key not in self.flaky
        )


class RuleCases(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="rule_cases"
):
    """Estimand: ``suite``, its samples with rules, one by one."""

    spends_alpha: ClassVar[bool] = False
    performance: ClassVar[bool] = False

    name: str = "rule_cases"
    estimand: Literal["suite"] = "suite"
    suite: str = "starter"
    """Of the policy's ``suites``."""
    maximum_missing: float = 0.01
    """Share of the cases' answers that may stay without a score. More: could not measure."""
    maximum_flaky: float = 0.1
    """Share of the cases that may be flaky. More: could not measure; mend the rules."""

    def __post_init__(self) -> None:
        check_shares(maximum_missing=self.maximum_missing, maximum_flaky=self.maximum_flaky)

    def initial(self) -> RuleCasesState:
        """Before any evidence."""
        return RuleCasesState()

    def fold(self, state: RuleCasesState, evidence: Evidence) -> RuleCasesState:
        """Take a comparison of this gate's suite; leave all else."""
        if not isinstance(evidence, Comparison):
            return state
        ref = evidence.sample
        if ref is None or ref.suite != self.suite:
            return state
        progress = state.progress.admit(ref)
        if progress is None:
            return state
        if (progress.stage, progress.digest) != (state.progress.stage, state.progress.digest):
            state = RuleCasesState()
        state = msgspec.structs.replace(state, progress=progress)
        return _with(state, evidence, ref.sample_id, ref.passage)

    def verdict(self, state: RuleCasesState, alpha: Alpha) -> Verdict:
        """Fail from the first breach on; pass when all cases of the whole suite held."""
        cases, breaches = state.cases, state.breaches()
        set_aside = _named(sorted(state.flaky))
        if breaches:
            passage, key, capture = breaches[0]
            return self._says(
                Answer.FAIL,
                f"rule case {key} failed on the candidate in pass {passage} while baseline and control held "
                f"(capture {capture}); {len(breaches)} of {cases} cases failed so far{set_aside}",
                value=len(breaches) / cases,
                n=cases,
                deciding_id=capture,
            )
        lost = sum(mask.bit_count() for key, mask in state.unmeasured.items() if state.is_case(key))
        complete = state.progress.complete
        most = (cases if complete else state.progress.samples) * state.progress.passes
        if lost > self.maximum_missing * most:
            example = state.trouble
            such = (
                f", such as {example.sample_id} in pass {example.passage}: {example.why}" if example else ""
            )
            return self._says(
                Answer.ERROR,
                f"could not measure: {lost} of {most} answers to rule cases have no score "
                f"({self.maximum_missing:.1%} may lack one){such}",
                n=cases,
            )
        if not complete:
            return self._says(
                Answer.INCONCLUSIVE,
                f"{state.progress.told(self.suite)}; no rule case has failed{set_aside}",
                value=0.0 if cases else None,
                n=cases,
            )
        if not cases:
            return self._says(
                Answer.ERROR, f"could not measure: no sample of suite {self.suite} has rules", n=0
            )
        if len(state.flaky) > self.maximum_flaky * cases:
            return self._says(
                Answer.ERROR,
                f"could not measure: {len(state.flaky)} of {cases} rule cases fail on the baseline "
                f"itself ({self.maximum_flaky:.1%} may){set_aside}",
                n=cases,
            )
        held = f"all {cases - len(state.flaky)} rule cases held in {state.progress.passes} passes"
        unscored = f"; {lost} answers could not be scored" if lost else ""
        return self._says(Answer.PASS, f"{held}{set_aside}{unscored}", value=0.0, n=cases)

    def _says(
        self,
        answer: Answer,
        reason: str,
        *,
        n: int,
        value: float | None = None,
        deciding_id: str | None = None,
    ) -> Verdict:
        return Verdict(
            gate=self.name,
            answer=answer,
            value=value,
            limit=0.0,
            n=n,
            reason=reason,
            deciding_id=deciding_id,
            estimand=self.estimand,
        )


def _with(state: RuleCasesState, comparison: Comparison, key: str, passage: int) -> RuleCasesState:
    """One new answer to the sample ``key``, sorted into what it shows."""
    scores = [score for score in comparison.scores if score.question == "rules"]
    troubled = broken(comparison)
    if not scores and troubled is None:
        return state  # a sample without rules
    value: dict[Arm, float | None] = {}
    why = troubled if not scores or any(not pair.valid for pair in comparison.candidates) else None
    for arm in Arm:
        mine = [score for score in scores if score.arm is arm]
        errors = sorted(score.error for score in mine if score.error is not None)
        got = [score.value for score in mine if score.value is not None]
        value[arm] = mean_of(got) if got and not errors and why is None else None
        if arm is not Arm.CONTROL and value[arm] is None and why is None:
            why = f"{arm}: {errors[0] if errors else troubled or 'no score'}"
    bit = 1 << passage
    candidate, baseline, control = value[Arm.CANDIDATE], value[Arm.BASELINE], value[Arm.CONTROL]
    if (baseline is not None and baseline < 1.0) or (control is not None and control < 1.0):
        return msgspec.structs.replace(state, flaky=_union(state.flaky, {key: bit}))
    if candidate is not None and baseline is not None:
        if candidate == 1.0:
            return msgspec.structs.replace(state, held=_union(state.held, {key: bit}))
        if control is not None:
            passes = {**state.failed.get(key, {}), passage: comparison.capture_id}
            return msgspec.structs.replace(state, failed={**state.failed, key: passes})
        why = "it failed on the candidate, and no control ran to rule out a flaky rule"
    new = Trouble(sample_id=key, passage=passage, why=(why or "no score")[:MOST_WORDS])
    trouble = new if state.trouble is None else min(state.trouble, new, key=_place)
    return msgspec.structs.replace(state, unmeasured=_union(state.unmeasured, {key: bit}), trouble=trouble)


def _union(left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
    return {**left, **{key: left.get(key, 0) | mask for key, mask in right.items()}}


def _place(trouble: Trouble) -> tuple[str, int, str]:
    return trouble.sample_id, trouble.passage, trouble.why


def _named(flaky: list[str]) -> str:
    if not flaky:
        return ""
    more = f" and {len(flaky) - NAMED} more" if len(flaky) > NAMED else ""
    return f"; flaky on the baseline itself and set aside: {', '.join(flaky[:NAMED])}{more}"
