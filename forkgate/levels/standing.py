"""Records, evidence and verdicts put together: four answers, each with its reason. Pure.

Nothing is shown by evidence that is not there. Token equality is shown by equal answers alone: by as many
prompts as bound the share of forks, and none that forked, nor any that forked from itself. Statistical
equivalence is shown by gates that all pass, or by the same bound: arms that share a seed are a coupling of
the two distributions of answers, and these are no further apart (total variation) than the answers differ
(the coupling inequality; Lindvall, *Lectures on the Coupling Method*, I.2). So no share of any kind of
answer, right or refused, differs by more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec

from engines.identity import levels as records
from engines.identity.levels import Can, Obstacle, Reach, Side, Weight
from forkgate.levels import in_the_way
from forkgate.levels.evidence import ANSWERS, Seen, needed
from forkgate.levels.gates import Verdicts
from policies.policy import Level
from policies.verdict import Answer


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What counts as shown."""

    forks_at_most: float = 0.003
    """Token level: the share of prompts that may still fork, for all that the evidence knows. 1,000 equal
    prompts, as the policy ``audit`` asks, bound it at 0.3 %."""
    differing_at_most: float = 0.005
    """Statistical level by the same bound: the share of answers that may differ."""
    alpha: float = 0.05
    """One minus the confidence of both bounds."""


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    """One level."""

    level: Level
    can: Can
    shown: bool
    why: str
    """One sentence, without its full stop."""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """Where two environments stand."""

    a: Side
    b: Side
    answers: dict[Level, Answered]
    obstacles: tuple[Obstacle, ...]
    """The most important first."""
    remarks: tuple[Obstacle, ...]
    vouched: tuple[str, ...]
    seen: Seen | None
    verdicts: Verdicts | None
    limits: Limits

    def of(self, level: Level) -> tuple[Obstacle, ...]:
        """Of one level."""
        return tuple(one for one in self.obstacles if level.value in one.levels)


def stand(
    a: Side,
    b: Side,
    reach: Reach,
    *,
    seen: Seen | None = None,
    verdicts: Verdicts | None = None,
    limits: Limits,
) -> Standing:
    """Put together what is known.

    Args:
        reach: what the records of ``a`` and ``b`` say (:func:`engines.identity.levels.reach`).
        seen: what comparisons showed; None where no evidence was given.
        verdicts: of a policy's gates over the same evidence.
    """
    found: list[Obstacle] = []
    answers = {
        Level.ARTIFACT: _by_records(Level.ARTIFACT, reach, "the same files and the same runtime image"),
        Level.ENVIRONMENT: _by_records(
            Level.ENVIRONMENT, reach, "the same artifact, and no field differs that can move tokens"
        ),
    }
    for level, made, more in (
        (Level.TOKEN, *_token(reach, seen, limits)),
        (Level.STATISTICAL, *_statistical(seen, verdicts, limits)),
    ):
        answers[level] = made
        found += more
    told = reach.obstacles
    if answers[Level.TOKEN].shown:  # what was seen speaks louder than what records make likely
        told = tuple(
            dataclasses.replace(one, levels=levels)
            for one in told
            if (levels := tuple(level for level in one.levels if level != records.TOKEN))
        )
    return Standing(
        a=a,
        b=b,
        answers=answers,
        obstacles=records.ordered((*told, *found)),
        remarks=reach.remarks,
        vouched=(*reach.vouched, *([ANSWERS] if seen is not None and seen.vouched else [])),
        seen=seen,
        verdicts=verdicts,
        limits=limits,
    )


def _by_records(level: Level, reach: Reach, same: str) -> Answered:
    can = reach.can[level.value]
    return Answered(
        level=level, can=can, shown=can is Can.YES, why=same if can is Can.YES else _why(level, reach, can)
    )


def _why(level: Level, reach: Reach, can: Can) -> str:
    found = [one for one in reach.obstacles if level.value in one.levels]
    if can is Can.UNKNOWN:
        unknown = [one.what for one in found if one.weight is Weight.UNKNOWN]
        return f"nothing known differs; not known: {in_the_way.listed(unknown)}"
    if can is Can.YES:
        return "nothing that is known to differ is likely to move tokens" if found else "nothing differs"
    # Of tokens the heaviest decide, and they come first.
    known = [one for one in found if one.weight is not Weight.UNKNOWN]
    deciding = [one.what for one in known if level is not Level.TOKEN or one.weight is known[0].weight]
    return f"{in_the_way.listed(deciding)} differ{'s' if len(deciding) == 1 else ''}"


def _token(reach: Reach, seen: Seen | None, limits: Limits) -> tuple[Answered, list[Obstacle]]:
    can = reach.can[records.TOKEN]
    why = _why(Level.TOKEN, reach, can)
    if seen is None:  # told once for both levels, by _statistical
        return _answer(Level.TOKEN, can, why), []
    between, within = seen.between, seen.within
    if between.forked:
        return _answer(Level.TOKEN, Can.NO, in_the_way.forked(seen)), [
            in_the_way.forks(seen),
            *in_the_way.left_out(seen),
        ]
    if within.forked:
        told = f"{within.forked} of {within.n} prompts forked within one environment"
        return _answer(Level.TOKEN, can, told), [in_the_way.controls(told), *in_the_way.left_out(seen)]
    if not between.n:
        return _answer(Level.TOKEN, can, why), [
            in_the_way.nothing_counts(Level.TOKEN),
            *in_the_way.left_out(seen),
        ]
    bound = between.unseen(limits.alpha)
    most = in_the_way.percent(bound)
    told = f"{between.n:,} prompts answered equally, none forked: at most {most} like them fork"
    if bound <= limits.forks_at_most:
        controls = f"; nor did {within.n:,} controls fork" if within.n else "; no control ran beside them"
        return (
            Answered(level=Level.TOKEN, can=Can.YES, shown=True, why=told + controls),
            in_the_way.left_out(seen),
        )
    enough = needed(limits.forks_at_most, limits.alpha)
    more = in_the_way.more_prompts(told, between.n, enough, limits.forks_at_most)
    return _answer(Level.TOKEN, can, told), [more, *in_the_way.left_out(seen)]


def _statistical(
    seen: Seen | None, verdicts: Verdicts | None, limits: Limits
) -> tuple[Answered, list[Obstacle]]:
    level = Level.STATISTICAL
    nobody = "no gate has judged these two"
    if seen is None:
        return _answer(level, Can.YES, nobody), [in_the_way.no_evidence(Level.TOKEN, level)]
    of_others = verdicts is not None and not verdicts.computed and not seen.only_ours
    if of_others:
        verdicts = None
    all_failed = () if verdicts is None else verdicts.saying(Answer.FAIL)
    # Tokens may differ where distributions do not: one that wants them equal asks of another level.
    failed = [one for one in all_failed if not one.equal_tokens]
    if verdicts is not None and failed:
        told = f"policy {verdicts.policy}: {in_the_way.listed([one.gate for one in failed])} failed"
        return _answer(level, Can.NO, told), [
            in_the_way.gate(one.gate, one.reason, Weight.SEEN) for one in failed
        ]
    if verdicts is not None and verdicts.passed:
        gates = in_the_way.listed([one.gate for one in verdicts.gates])
        told = f"policy {verdicts.policy}: every gate passes ({gates})"
        return Answered(level=level, can=Can.YES, shown=True, why=told), []
    bound = seen.between.most_forks(limits.alpha)
    if bound <= limits.differing_at_most:
        most = in_the_way.percent(bound)
        told = f"at most {most} of answers differ, so nothing about them by more; of speed it says nothing"
        return Answered(level=level, can=Can.YES, shown=True, why=told), []
    if verdicts is None:
        return _answer(level, Can.YES, nobody), [in_the_way.no_verdicts(of_others=of_others)]
    missing = [
        in_the_way.gate(one.gate, f"{one.answer.value}: {one.reason}", Weight.MISSING)
        for one in verdicts.saying(Answer.INCONCLUSIVE, Answer.ERROR)
    ]
    missing += [in_the_way.gate(name, "has said nothing yet", Weight.MISSING) for name in verdicts.silent]
    missing += [in_the_way.asks_for_more(one.gate) for one in all_failed]
    count = len(verdicts.gates) + len(verdicts.silent)
    yet = "" if all_failed else " yet"
    told = f"policy {verdicts.policy}: {len(missing)} of {count} gates do not pass{yet}"
    return _answer(level, Can.YES, told), missing


def _answer(level: Level, can: Can, why: str) -> Answered:
    return Answered(level=level, can=can, shown=False, why=why)


def to_json(standing: Standing) -> dict[str, Any]:
    """Plain data."""
    seen, limits = standing.seen, standing.limits
    return {
        "a": _side(standing.a),
        "b": _side(standing.b),
        "levels": {
            level.value: {"can": one.can.value, "shown": one.shown, "why": one.why}
            for level, one in standing.answers.items()
        },
        "in_the_way": [one.to_json() for one in standing.obstacles],
        "remarks": [one.to_json() for one in standing.remarks],
        "vouched": list(standing.vouched),
        "evidence": None
        if seen is None
        else {
            **msgspec.to_builtins(seen),
            "unseen_forks_at_most": None if seen.between.forked else seen.between.unseen(limits.alpha),
            "forks_at_most": seen.between.most_forks(limits.alpha),
        },
        "verdicts": None if standing.verdicts is None else msgspec.to_builtins(standing.verdicts),
        "limits": msgspec.to_builtins(limits),
    }


def _side(side: Side) -> Mapping[str, Any]:
    return {
        "name": side.name,
        "environment": None if side.environment is None else side.environment.digest,
        "artifact": None if side.artifact is None else side.artifact.digest,
    }
