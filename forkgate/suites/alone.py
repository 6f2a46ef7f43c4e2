"""A suite without a judge: asked through a mirror of its own, scored, counted."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

import msgspec

from comparator.comparison import Comparison
from comparator.evidence.export import json_safe
from comparator.pair import ForkSeen
from comparator.records import Arm
from forkgate.checks.alone import opened
from forkgate.checks.ask import answering, trouble
from forkgate.config.model import Config
from forkgate.config.suites import LoadedSuite
from forkgate.suites.run import SuiteReport, SuiteRun
from forkgate.suites.scorer import Scorer
from proxy.ledger import DropReason, JudgeLedger
from proxy.mirror import Mirror, ShadowRollout

STAGE = "alone"
"""Stands where a rollout's stage would."""
PATIENCE_S = 300.0
"""A person waits: without any success for as long, the command ends and says why."""


class QuestionCount(msgspec.Struct, frozen=True, kw_only=True):
    """One question's scores on one arm."""

    question: str
    arm: Arm
    n: int
    """Scores; each sample counts once a pass."""
    mean: float | None
    errors: int
    first_error: str | None


async def run_suite(
    config: Config, rollout: str, loaded: LoadedSuite, keep: Callable[[Comparison], None]
) -> SuiteReport:
    """Ask every sample of the suite of a rollout's two pools.

    Args:
        keep: takes each scored comparison as it comes.

    Raises:
        KeyError: no such rollout.
        FleetError: a pool's TLS files cannot be used.
    """
    section = config.rollout(rollout)
    async with opened(config, section.baseline, section.candidate) as (baseline, candidate):
        silent = next((pool for pool in (baseline, candidate) if not answering(pool)), None)
        if silent is not None:
            return _unasked(rollout, loaded, f"nothing was measured: {trouble(silent)}")
        at = ShadowRollout(
            name=rollout,
            baseline=baseline,
            candidate=candidate,
            settings=section.shadow,
            global_seed=section.global_seed,
        )
        mirror = Mirror([at], _Nobody(), JudgeLedger())
        scorer = Scorer()

        async def sink(one: Comparison) -> None:
            keep(one)

        try:
            return await SuiteRun(
                rollout=rollout,
                stage=STAGE,
                loaded=loaded,
                mirror=mirror,
                scorer=scorer,
                sink=sink,
                patience_s=PATIENCE_S,
                monotonic=time.monotonic,
            ).run()
        finally:
            await scorer.close()
            await mirror.close(0.0)


def _unasked(rollout: str, loaded: LoadedSuite, why: str) -> SuiteReport:
    return SuiteReport(
        rollout=rollout,
        suite=loaded.name,
        digest=loaded.digest,
        stage=STAGE,
        asked=loaded.asks,
        run=0,
        stopped=why,
    )


def counts_of(comparisons: Iterable[Comparison]) -> tuple[QuestionCount, ...]:
    """Every question's mean score, by arm."""
    values: dict[tuple[str, Arm], list[float]] = defaultdict(list)
    errors: dict[tuple[str, Arm], list[str]] = defaultdict(list)
    for one in comparisons:
        for score in one.scores:
            key = (score.question, score.arm)
            if score.value is not None:
                values[key].append(score.value)
            else:
                errors[key].append(score.error or "")
    return tuple(
        QuestionCount(
            question=question,
            arm=arm,
            n=len(values[question, arm]),
            mean=math.fsum(values[question, arm]) / len(values[question, arm])
            if values[question, arm]
            else None,
            errors=len(errors[question, arm]),
            first_error=errors[question, arm][0] if errors[question, arm] else None,
        )
        for question, arm in sorted({*values, *errors})
    )


def line_of(comparison: Comparison) -> bytes:
    """The comparison as `forkgate gate evaluate` reads it (docs/evidence-format.md), with a newline."""
    exchanges = {
        (one.arm, one.replicate): one for pair in comparison.pairs for one in (pair.left, pair.right)
    }
    line = {
        "comparison": {
            "capture_id": comparison.capture_id,
            "rollout": comparison.rollout,
            "tenant": comparison.tenant,
            "cluster": comparison.cluster,
            "unix_s": comparison.unix_s,
            "repeat": comparison.repeat,
            "timing": comparison.timing,
            "sample": comparison.sample,
        },
        "exchanges": [{"exchange": one} for one in exchanges.values()],
        "scores": comparison.scores,
    }
    return msgspec.json.encode(json_safe(msgspec.to_builtins(line))) + b"\n"


class _Nobody:
    """The mirror's sink: samples are their asker's alone, and nothing else is mirrored here."""

    def fork_seen(self, event: ForkSeen) -> None:
        return

    async def comparison_finished(self, comparison: Comparison, incarnation: str, sequence: int) -> None:
        return

    async def dropped(
        self, incarnation: str, sequence: int, rollout: str, reason: DropReason, detail: str
    ) -> None:
        return
