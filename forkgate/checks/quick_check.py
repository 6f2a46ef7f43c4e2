"""Are these two at all what they are meant to be?

A few short greedy answers on baseline and candidate, side by side, before a full comparison. It fails on what
no amount of traffic would mend, and which a few prompts show:

- the arms make other token IDs of a prompt (tokenizer, chat template), or the parameters differ;
- another environment than the declared one answers, or an answer breaks its engine's contract;
- the candidate refuses or fails a prompt that the baseline answers;
- at temperature 0, equal distributions and other choices: something is at work on one arm that nobody
  declared (a penalty, a bias, a grammar), which is a configuration mismatch whatever was sent;
- at ``token``, ``environment`` and ``artifact``: any fork;
- at ``statistical``: forks of class *distribution shift* dominate (:func:`dominates`).

The baseline's own failures are never the candidate's: then it could not be measured.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import msgspec

from comparator.compare import compare
from comparator.floor import Floor
from comparator.pair import Pair, SetAside
from comparator.records import Arm, Exchange
from comparator.taxonomy import Allowance, ForkClass
from engines.base import CannotEncode
from forkgate.checks.ask import Asked, Asker, answering, failure, said, trouble
from forkgate.checks.progress import Progress
from forkgate.checks.prompts import PROMPTS, CheckPrompt
from forkgate.checks.report import (
    CheckReport,
    PromptFound,
    classes_of,
    first,
    found_of,
    is_silent,
    silence,
    spacing_of,
)
from forkgate.config.first_checks import CheckSettings
from policies.policy import Level
from policies.rollout import CheckKind
from policies.verdict import Answer
from proxy.mirror import ShadowEndpoint, ShadowPool, Sources

TOLERATED_SHARE = 0.2
"""Of prompts whose answer forks by distribution shift within a few tokens: more than healthy changes make."""
SIZE = 0.01
"""How often the check may fail a candidate that shifts in just that share."""


def dominates(shifted: int, compared: int) -> bool:
    """Whether so many of the compared prompts forked by distribution shift that this is another model.

    Exact binomial test of "at most a fifth of prompts shift" at 1 %: true when
    ``P(Binomial(compared, 0.2) >= shifted) <= 0.01``, which is 6 of 10. Prompts are taken as independent:
    each is asked once, of another text. A fifth is generous: on the recorded generations in
    ``tests/data/battery`` no change of precision or batch makes a single shift within 20 tokens, while 3-bit
    weights shift in nearly every prompt, and a silenced layer in three of four, which this rule finds with
    92 % at 10 prompts. It is a smoke test that spends no alpha: what it misses the gates find, and what it
    stops is held, not rolled back.

    Under 3 prompts it is never true: too few to say so.
    """
    if shifted == 0:
        return False
    tail = math.fsum(
        math.comb(compared, k) * TOLERATED_SHARE**k * (1 - TOLERATED_SHARE) ** (compared - k)
        for k in range(shifted, compared + 1)
    )
    return tail <= SIZE


async def quick_check(
    baseline: ShadowPool,
    candidate: ShadowPool,
    settings: CheckSettings,
    *,
    level: Level,
    rollout: str,
    global_seed: str,
    floor: Floor | None = None,
    sources: Sources | None = None,
    progress: Progress | None = None,
) -> CheckReport:
    """Ask both. Engines' errors end up in the report; only a cancellation is raised.

    Args:
        floor: what the baseline differs from itself by, as a self check found; none excuses nothing.
        progress: written to as answers come.
    """
    sources = sources if sources is not None else Sources()
    progress = progress if progress is not None else Progress()
    known = floor is not None
    floor = floor if floor is not None else Floor()
    started_s = sources.monotonic()
    for pool in (baseline, candidate):
        if not answering(pool):
            return _report(
                level, baseline, candidate, (), Answer.ERROR, f"nothing was measured: {trouble(pool)}"
            )
    old, new = answering(baseline)[0], answering(candidate)[0]
    asker = Asker(
        rollout=rollout,
        global_seed=global_seed,
        tokens=settings.tokens,
        endpoints=(old, new),
        sources=sources,
        progress=progress,
    )
    prompts = PROMPTS[: settings.prompts]
    progress.wanted = 2 * len(prompts)
    await asker.choose_kind(old, prompts[0])
    pairs: list[Pair] = []
    for prompt in prompts:
        left, right = await _both(asker, (baseline, old), (candidate, new), prompt)
        pairs.append(compare(left, right))
    found, spacing_nats = _findings(prompts, pairs, floor)
    answer, reason = judge(level, candidate.name, found)
    if answer is Answer.PASS and (silent := silence(baseline.name, found)) is not None:
        answer, reason = Answer.FAIL, silent
    notes = list(asker.notes)
    if asker.shared:
        notes.append(
            f"{asker.shared} of {2 * len(prompts)} answers shared their endpoint with other requests"
        )
    if not known:
        notes.append("no self check went before it in this process, so no noise floor excuses a fork")
    report = _report(level, baseline, candidate, (old, new), answer, reason)
    return msgspec.structs.replace(
        report,
        prompts=found,
        pairs=sum(one.pairs for one in found),
        equal=sum(one.equal for one in found),
        classes=classes_of(found),
        floor=floor,
        spacing_nats=spacing_nats,
        notes=tuple(notes),
        seconds=sources.monotonic() - started_s,
    )


def judge(level: Level, candidate: str, found: Sequence[PromptFound]) -> tuple[Answer, str]:
    """The answer to these findings, and its reason; the module says by which rules."""
    baseline_failed = next(
        (f"{one.prompt}: {text}" for one in found for text in one.failed if text.startswith(Arm.BASELINE)),
        None,
    )
    refused = first(found, "set_aside")
    if refused is not None:
        count = sum(len(one.set_aside) for one in found)
        return Answer.FAIL, (
            f"{count} of {len(found)} prompts cannot be compared, the first: {refused}; {_remedy(refused)}"
        )
    candidate_failed = next(
        (f"{one.prompt}: {text}" for one in found for text in one.failed if text.startswith(Arm.CANDIDATE)),
        None,
    )
    if candidate_failed is not None:
        return Answer.FAIL, f"{candidate} does not answer what the baseline answers: {candidate_failed}"
    forked = [one for one in found if one.forks]
    hidden = [one for one in forked if one.forks[0].fork_class == ForkClass.SAMPLING_STREAM]
    if hidden:
        fork = hidden[0].forks[0]
        return Answer.FAIL, (
            f"configuration mismatch in {len(hidden)} of {len(found)} prompts, the first "
            f"{hidden[0].prompt!r} at output token {fork.fork_index}: {fork.reason}; an undeclared penalty, "
            "bias, grammar or sampler is at work on one arm"
        )
    compared = sum(1 for one in found if not one.failed)
    if forked and level is not Level.STATISTICAL:
        fork = forked[0].forks[0]
        return Answer.FAIL, (
            f"{len(forked)} of {compared} prompts forked, the first {forked[0].prompt!r} at output token "
            f"{fork.fork_index} ({fork.fork_class}: {fork.reason}); at level {level.value} no fork may be: "
            "choose level statistical, or find what differs"
        )
    shifted = sum(1 for one in forked if one.forks[0].fork_class == ForkClass.DISTRIBUTION_SHIFT)
    if dominates(shifted, compared):
        return Answer.FAIL, (
            f"{shifted} of {compared} prompts forked by distribution shift, more than a change of precision "
            f"or batch makes: {candidate} is not the same model, or it is damaged"
        )
    if baseline_failed is not None:
        return Answer.ERROR, f"the baseline does not answer: {baseline_failed}"
    if shifted == compared and not dominates(compared, compared):
        return Answer.INCONCLUSIVE, (
            f"all of {compared} prompts forked by distribution shift, and so few cannot tell chance from "
            "damage: raise checks.prompts"
        )
    told = ", ".join(f"{count} {name}" for name, count in sorted(classes_of(found).items())) or "no fork"
    return Answer.PASS, f"{compared} prompts compared: {compared - len(forked)} equal, {told}"


def _remedy(refused: str) -> str:
    if SetAside.ENCODING_MISMATCH in refused:
        return "give both pools the same tokenizer and chat template"
    if SetAside.CONFIGURATION_MISMATCH in refused:
        return "give both engines the same settings"
    if SetAside.DIGEST_MISMATCH in refused:
        return "correct environment_digest, or what runs behind that pool"
    return "its engine's log says more"


async def _both(
    asker: Asker,
    left: tuple[ShadowPool, ShadowEndpoint],
    right: tuple[ShadowPool, ShadowEndpoint],
    prompt: CheckPrompt,
) -> tuple[Exchange, Exchange]:
    """The prompt's answers, in token IDs of the baseline's; neither is run where the IDs differ."""
    mine, theirs = await asyncio.gather(asker.encode(left[1], prompt), asker.encode(right[1], prompt))
    if mine.error is None and isinstance(theirs.error, CannotEncode):
        # An engine without an encoder of its own is asked in the baseline's token IDs, as the mirror does.
        asker.notes.append(f"{prompt.id}: the candidate's own encoding is unknown: {theirs.error}")
        theirs = Asked(token_ids=mine.token_ids, facts={})
    if mine.error is None and theirs.error is None and mine.token_ids != theirs.token_ids:
        return (
            asker.unrun(*left, prompt, mine, arm=Arm.BASELINE),
            asker.unrun(*right, prompt, theirs, arm=Arm.CANDIDATE),
        )
    if theirs.error is not None:
        theirs = msgspec.structs.replace(theirs, token_ids=mine.token_ids)
    first_, second = await asyncio.gather(
        asker.answer(*left, prompt, mine, arm=Arm.BASELINE),
        asker.answer(*right, prompt, theirs, arm=Arm.CANDIDATE),
    )
    return first_, second


def _findings(
    prompts: Sequence[CheckPrompt], pairs: Sequence[Pair], floor: Floor
) -> tuple[tuple[PromptFound, ...], float]:
    spacing_nats = spacing_of(one for pair in pairs for one in (pair.left, pair.right))
    allowance = Allowance(spacing_nats=spacing_nats, floor=floor)
    found = []
    for prompt, pair in zip(prompts, pairs, strict=True):
        unequal_questions = pair.set_aside in (SetAside.ENCODING_MISMATCH, SetAside.CONFIGURATION_MISMATCH)
        failed = [
            text
            for one in (pair.left, pair.right)
            if not unequal_questions and (text := failure(one)) is not None
        ]
        # A baseline that gave no whole answer is nothing to compare with, and nobody else's fault.
        compared = unequal_questions or pair.fork is not None or failure(pair.left) is None
        one = found_of(
            prompt.id,
            prompt.category,
            [(1, pair)] if compared else [],
            failed,
            allowance,
            said((pair.left,)),
        )
        found.append(msgspec.structs.replace(one, silent=is_silent((pair.left,))))
    return tuple(found), spacing_nats


def _report(
    level: Level,
    baseline: ShadowPool,
    candidate: ShadowPool,
    endpoints: Sequence[ShadowEndpoint],
    answer: Answer,
    reason: str,
) -> CheckReport:
    return CheckReport(
        check=CheckKind.QUICK_CHECK,
        level=level,
        answer=answer,
        reason=reason,
        pools=(baseline.name, candidate.name),
        endpoints=tuple(one.engine.base_url for one in endpoints),
    )
