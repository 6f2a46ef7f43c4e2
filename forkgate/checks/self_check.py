"""Does an environment reproduce itself?

The same prompts several times on the same machine, one request after another, greedy, each with a cache salt
of its own; then every endpoint's first answers against those of the pool's first endpoint. What is told: the
share of equal outputs, each fork with its class and margins, and the A/A floor.

How it is judged:

- At ``token``, ``environment`` and ``artifact`` one fork fails: whoever demands equal tokens of a candidate
  must first get them from the baseline. No fork passes. It is no proof: *k* clean comparisons only bound the
  share of forks at about 3/*k*, and a deterministic mode is declared, never observed.
- At ``statistical`` forks are the noise that a candidate is compared against, so the check passes with the
  floor told.
- At every level it fails where the answers are not answers to one question: endpoints of one pool that
  encode a prompt differently, another environment than the declared one, or answers that break the engine's
  contract.
- An answer that did not come is no evidence of either: could not measure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from comparator.compare import compare
from comparator.floor import Floor, floor_of
from comparator.pair import Pair, SetAside
from comparator.records import Arm, Exchange
from comparator.taxonomy import Allowance
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

MOST_ENDPOINTS = 8
"""Endpoints of a large pool that are asked; the report says how many were not."""


async def self_check(
    pool: ShadowPool,
    settings: CheckSettings,
    *,
    level: Level,
    rollout: str,
    global_seed: str,
    sources: Sources | None = None,
    progress: Progress | None = None,
) -> CheckReport:
    """Ask the pool against itself. Engines' errors end up in the report; only a cancellation is raised.

    Args:
        pool: its endpoints have been probed, or are reported as not answering.
        level: what its policy demands of the candidate.
        rollout: stands in the exchanges; the pool's name where there is none.
        global_seed: as the rollout's, so that a seed means the same here.
        progress: written to as answers come.
    """
    sources = sources if sources is not None else Sources()
    progress = progress if progress is not None else Progress()
    started_s = sources.monotonic()
    endpoints = answering(pool)
    if not endpoints:
        return _report(level, pool, (), Answer.ERROR, f"nothing was measured: {trouble(pool)}")
    asked_of = endpoints[:MOST_ENDPOINTS]
    asker = Asker(
        rollout=rollout,
        global_seed=global_seed,
        tokens=settings.tokens,
        endpoints=asked_of,
        sources=sources,
        progress=progress,
    )
    prompts = PROMPTS[: settings.prompts]
    total = len(asked_of) * settings.self_runs * len(prompts)
    progress.wanted = total
    await asker.choose_kind(asked_of[0], prompts[0])
    answers = await asyncio.gather(
        *(_runs(asker, pool, one, prompts, settings.self_runs) for one in asked_of)
    )
    found, floor, spacing_nats = _findings(prompts, answers)
    notes = list(asker.notes)
    if len(asked_of) < len(pool.endpoints):
        notes.append(f"{len(pool.endpoints) - len(asked_of)} endpoints of {pool.name} were not asked")
    if asker.shared:
        notes.append(f"{asker.shared} of {total} answers shared their endpoint with other requests")
    answer, reason = judge(level, pool.name, found, floor, settings.self_runs)
    report = _report(level, pool, asked_of, answer, reason)
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


def judge(
    level: Level, pool: str, found: Sequence[PromptFound], floor: Floor, runs: int
) -> tuple[Answer, str]:
    """The answer to these findings, and its reason; the module says by which rules."""
    refused = first(found, "set_aside")
    pairs, equal = sum(one.pairs for one in found), sum(one.equal for one in found)
    forks = [fork for one in found for fork in one.forks]
    if refused is not None:
        return Answer.FAIL, f"{pool} does not answer as one environment: {refused}"
    if forks and level is not Level.STATISTICAL:
        one = forks[0]
        prompt = next(one.prompt for one in found if one.forks)
        where = (
            f"run {one.run} on {one.right}"
            if one.run > 1
            else f"{one.right} differs from {one.left}, their first run"
        )
        classes = ", ".join(f"{count} {name}" for name, count in sorted(classes_of(found).items()))
        return Answer.FAIL, (
            f"{pool} does not reproduce itself: {len(forks)} of {pairs} repeated answers forked ({classes}; "
            f"the first in prompt {prompt!r} at output token {one.fork_index}, {where}), so token equality "
            "cannot be asked of it: choose level statistical, or make it deterministic"
        )
    if (silent := silence(pool, found)) is not None:
        return Answer.FAIL, silent
    missing = first(found, "failed")
    if missing is not None:
        count = sum(len(one.failed) for one in found)
        return Answer.ERROR, f"{pool}: {count} answers did not come, the first: {missing}"
    if not pairs:
        return Answer.ERROR, f"{pool}: no two answers could be compared"
    if level is Level.STATISTICAL:
        return Answer.PASS, (
            f"{pool}: {equal} of {pairs} repeated answers are equal over {runs} runs; its noise floor is "
            f"{floor.sigma_nats:.3g} nats of margin, {floor.tv_q99:.3g} of total variation"
        )
    return Answer.PASS, (
        f"{pool} reproduces itself: all {pairs} repeated answers of {runs} runs are equal, which bounds the "
        f"share of forks at about {3 / pairs:.2g} and does not prove it zero"
    )


async def _runs(
    asker: Asker, pool: ShadowPool, endpoint: ShadowEndpoint, prompts: Sequence[CheckPrompt], runs: int
) -> list[list[Exchange]]:
    """By prompt, its answers of every run; one request at a time."""
    asked: list[Asked] = [await asker.encode(endpoint, prompt) for prompt in prompts]
    answers: list[list[Exchange]] = [[] for _ in prompts]
    for run in range(runs):
        arm = Arm.BASELINE if run == 0 else Arm.CONTROL
        for index, prompt in enumerate(prompts):
            answers[index].append(await asker.answer(pool, endpoint, prompt, asked[index], arm=arm, run=run))
    return answers


def _findings(
    prompts: Sequence[CheckPrompt], answers: Sequence[list[list[Exchange]]]
) -> tuple[tuple[PromptFound, ...], Floor, float]:
    paired: list[list[tuple[int, Pair]]] = []
    for index in range(len(prompts)):
        pairs = [
            (run + 1, compare(mine[index][0], other))
            for mine in answers
            for run, other in enumerate(mine[index])
            if run > 0
        ]
        reference = answers[0][index][0]
        pairs += [
            (1, compare(reference, msgspec.structs.replace(mine[index][0], arm=Arm.CONTROL)))
            for mine in answers[1:]
        ]
        # Answers that did not come are told as such; what was seen before one broke off counts.
        paired.append([(run, pair) for run, pair in pairs if _counts(pair)])
    everything = [one for mine in answers for runs in mine for one in runs]
    floor = floor_of(pair for pairs in paired for _, pair in pairs)
    spacing_nats = spacing_of(everything)
    allowance = Allowance(spacing_nats=spacing_nats, floor=floor)
    found = tuple(
        msgspec.structs.replace(
            found_of(
                prompt.id,
                prompt.category,
                paired[index],
                [text for mine in answers for one in mine[index] if (text := failure(one)) is not None],
                allowance,
                said(answers[0][index]),
            ),
            silent=is_silent([one for mine in answers for one in mine[index]]),
        )
        for index, prompt in enumerate(prompts)
    )
    return found, floor, spacing_nats


def _counts(pair: Pair) -> bool:
    """Whether the pair says something: equal, forked, or not to be compared for a reason of its own."""
    if pair.fork is not None:
        return True
    if pair.set_aside is SetAside.ENCODING_MISMATCH:  # not where one of them encoded nothing at all
        return bool(pair.left.prompt_token_ids and pair.right.prompt_token_ids)
    if pair.set_aside is not None and pair.set_aside is not SetAside.BASELINE_FAILED:
        return True
    return failure(pair.left) is None and failure(pair.right) is None


def _report(
    level: Level, pool: ShadowPool, endpoints: Sequence[ShadowEndpoint], answer: Answer, reason: str
) -> CheckReport:
    return CheckReport(
        check=CheckKind.SELF_CHECK,
        level=level,
        answer=answer,
        reason=reason,
        pools=(pool.name,),
        endpoints=tuple(one.engine.base_url for one in endpoints),
    )
