"""Every kind of gate, fed with evidence of every kind through real judge parts and two kills, computed again.

What is shown is that whatever a gate keeps in its state survives checkpoint, journal and snapshot to the last
bit. Which answers the gates give is their own tests' business.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from comparator.compare import compare
from comparator.comparison import Comparison, SampleRef, Score
from comparator.evidence import NO_KEYS, EvidenceReader, Kept
from comparator.records import Arm, EngineSample, Fact, LiveRecord, Sampling, Step
from forkgate.judge import journal
from forkgate.judge.recompute import recompute
from policies.gates import KINDS
from tests.support import judging
from tests.support.at_rest import KEYS
from tests.support.exchanges import comparison, exchange, live
from tests.support.judging import Bench

NAME = "old-to-new"

POLICY = """
level: statistical
alpha: 0.05
on_fail: hold
suites:
  mine: {file: suite.jsonl, passes: 5}
gates:
  rule_cases: {suite: mine}
  accuracy: {suite: mine, margin: 0.3}
  accuracy_of_traffic: {kind: accuracy, estimand: traffic, margin: 0.05}
  structured_output: {suite: mine, margin: 0.3}
  length: {suite: mine}
  refusal: {suite: mine}
  position_margins: {}
  sampling: {}
  token_equality: {minimum_pairs: 10}
  fork_hazard: {}
  logit_error: {maximum_nats: 2.0, margin: 0.05}
  distribution_shift: {margin: 0.1, promotion_margin: 0.2}
  live_errors: {kind: error_rate, source: live, maximum: 0.2, minimum_requests: 10, margin: 0.05}
  shadow_errors: {kind: error_rate, source: shadow, maximum: 0.2, minimum_requests: 10}
  sample_ratio: {expected_percent: 10}
  ttft: {source: live, quantile: 0.9, margin: 0.05, freeze_n: 20, block_s: 1, maximum_ratio: 9}
  ttft_of_copies: {kind: ttft, source: shadow, quantile: 0.9, maximum_ratio: 9, minimum_requests: 10}
  tpot: {quantile: 0.9, maximum_ratio: 9, minimum_requests: 10}
  throughput: {block_s: 5}
  gpu_memory: {maximum_bytes: 100000000000, minimum_samples: 3}
"""

SAMPLES = 4


class Traffic:
    """Evidence of every kind, from a seed."""

    def __init__(self, digest: str) -> None:
        self._rng = random.Random(7)
        self._digest = digest
        self._number = 0
        self._now = time.time()

    def comparisons(self, count: int) -> list[Comparison]:
        return [self._asked() for _ in range(count)]

    def suite(self, passage: int) -> list[Comparison]:
        return [self._sample(number, passage) for number in range(SAMPLES)]

    def live(self, count: int) -> list[LiveRecord]:
        records = []
        for _ in range(count):
            self._now += self._rng.expovariate(10.0)
            self._number += 1
            records.append(
                msgspec.structs.replace(
                    live(
                        sequence=self._number,
                        status=500 if self._rng.random() < 0.02 else 200,
                        canary=self._rng.random() < 0.5,
                        first_byte_s=self._rng.lognormvariate(-1.5, 0.4),
                        started_unix_s=self._now,
                    ),
                    sampled=self._rng.random() < 0.1,
                )
            )
        return records

    def engines(self, second: int) -> list[EngineSample]:
        return [
            EngineSample(
                rollout=NAME,
                pool=pool,
                endpoint=f"http://{pool}",
                candidate=pool == "new",
                unix_s=self._now + second,
                running=3,
                waiting=0,
                kv_cache_usage=Fact(value=self._rng.random()),
                memory_bytes=Fact(value=int(8e10 + self._rng.random() * 1e9)),
                generated_tokens=Fact(value=1_000 * second + self._rng.randrange(100)),
            )
            for pool in ("old", "new")
        ]

    def _asked(self) -> Comparison:
        self._number += 1
        drawn = self._number % 2 == 0
        capture_id = f"c-{self._number}"
        pairs = []
        for replicate in range(2 if drawn else 1):
            sampling = Sampling(max_tokens=16, temperature=0.8 if drawn else 0.0, seed=replicate, logprobs=5)
            shared: dict[str, Any] = {
                "replicate": replicate,
                "sampling": sampling,
                "facts": {"concurrency": Fact(value=1)},
                "started_unix_s": self._now,
            }
            arms = [
                exchange(arm=arm, capture_id=capture_id, steps=self._said(), **shared)
                for arm in (Arm.BASELINE, Arm.CANDIDATE, Arm.CONTROL)
            ]
            pairs += [compare(arms[0], arms[1]), compare(arms[0], arms[2])]
        return comparison(
            *pairs, cluster=f"{self._number:016x}", unix_s=time.time(), timing=self._number % 5 == 0
        )

    def _sample(self, number: int, passage: int) -> Comparison:
        capture_id = f"s-{number}-{passage}"
        shared: dict[str, Any] = {"facts": {"concurrency": Fact(value=1)}, "tenant": ""}
        baseline, candidate, control = (
            exchange(arm=arm, capture_id=capture_id, **shared)
            for arm in (Arm.BASELINE, Arm.CANDIDATE, Arm.CONTROL)
        )
        ref = SampleRef(
            suite="mine",
            digest=self._digest,
            stage="canary",
            sample_id=f"sample-{number}",
            category="short",
            passage=passage,
            samples=SAMPLES,
            passes=5,
        )
        scores = tuple(
            Score(arm=arm, question=question, value=1.0 if self._rng.random() < 0.9 else 0.0)
            for arm in Arm
            for question in ("rules", "answer", "structured", "refusal")
        )
        return comparison(
            compare(baseline, candidate),
            compare(baseline, control),
            sample=ref,
            scores=scores,
            tenant="",
            cluster=f"{number:016x}",
            unix_s=time.time(),
        )

    def _said(self) -> list[Step]:
        """Eight tokens, now and then another one, with logprobs that no two arms share to the last bit."""
        steps = []
        for place in range(8):
            token = 10 * place + (self._rng.random() < 0.03)
            top = sorted((-0.3 - 1.1 * k - self._rng.random() / 50 for k in range(5)), reverse=True)
            others = [10 * place + k for k in range(6) if 10 * place + k != token][:4]
            steps.append(Step(token, top[0], (token, *others), tuple(top), 0.1 + 0.02 * place, f"<{token}>"))
        return steps


async def folded(bench: Bench, traffic: Traffic, turns: range) -> None:
    """All kinds, in turn."""
    for turn in turns:
        for one in traffic.comparisons(3):
            await bench.judge.comparison_finished(one, "edge-1", int(one.capture_id[2:]))
        bench.judge.live(traffic.live(25))
        for sample in traffic.engines(turn):
            bench.judge.engine_sampled(sample)
        if turn < 5:
            for one in traffic.suite(turn):
                await bench.judge.sample_finished(one)


def policy_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, without: Sequence[str]) -> None:
    """The policy above without these gates, for every judge of the test."""
    # A policy that names fewer kinds than there are would show less than this file says.
    named = {line.split("kind: ")[1].split(",")[0] for line in POLICY.splitlines() if "kind: " in line}
    named |= {line.split(":")[0].strip() for line in POLICY.partition("gates:")[2].splitlines()}
    assert set(KINDS) <= named

    monkeypatch.setattr(journal, "SNAPSHOT_EVERY", 100)
    lines = [line for line in POLICY.splitlines() if line.strip().partition(":")[0] not in without]
    (tmp_path / "policy.yaml").write_text("\n".join(lines))
    (tmp_path / "suite.jsonl").write_text(
        "".join(
            json.dumps(
                {
                    "id": f"sample-{number}",
                    "category": "short",
                    "template": f"t-{number}",
                    "prompt": f"question {number}",
                    "rules": [{"kind": "regex", "pattern": "."}],
                    "answer": {"kind": "exact", "expected": ["yes"]},
                    "structured": {"kind": "json_schema", "schema": {}},
                }
            )
            + "\n"
            for number in range(SAMPLES)
        )
    )
    text = judging.TEXT.replace("policy: audit", f"policy: {tmp_path / 'policy.yaml'}")
    assert text != judging.TEXT
    monkeypatch.setattr(judging, "TEXT", text)


BY_TOKEN = ("position_margins", "sampling")
"""What reads token IDs, which hashes do not keep."""
KEPT = {"plain": (NO_KEYS, Kept.FULL), "sealed": (KEYS, Kept.FULL), "hashes": (KEYS, Kept.HASHES)}


@pytest.mark.parametrize("way", KEPT)
def test_each_kind_of_gate_computes_its_verdicts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    keys, kept = KEPT[way]
    without = BY_TOKEN if kept is Kept.HASHES else ()
    policy_of(tmp_path, monkeypatch, without)

    async def main() -> None:
        state_dir = tmp_path / "state"
        async with Bench(state_dir, keys=keys, kept=kept) as bench:
            traffic = Traffic(bench.desk.state(NAME).plan.policy.suite_digests["mine"])
            await folded(bench, traffic, range(4))
            await bench.checkpoints.save()
            await folded(bench, traffic, range(4, 9))
            before = bench.desk.state(NAME)
        async with Bench(
            state_dir, keys=keys, kept=kept
        ) as bench:  # kill -9: checkpoint and journal make the same state again
            assert bench.desk.state(NAME) == before
            await folded(bench, traffic, range(9, 14))
            await bench.checkpoints.save()
            before = bench.desk.state(NAME)
        async with Bench(state_dir, keys=keys, kept=kept) as bench:  # and the checkpoint alone
            assert bench.desk.state(NAME) == before
            await folded(bench, traffic, range(14, 20))

    asyncio.run(main())
    with EvidenceReader(tmp_path / "state" / "evidence.db", keys) as reader:
        done = recompute(reader, NAME)
    assert [one.why for one in done.verdicts if one.equal is not True] == []
    assert (done.problems, done.told) == ((), ())
    assert len({one.gate for one in done.verdicts}) >= len(KINDS) - 2 - len(without)
    assert done.evidence > 500


def test_gates_that_read_token_ids_leave_gaps_where_hashes_were_kept_and_nothing_that_counts_as_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy_of(tmp_path, monkeypatch, ())

    async def main() -> None:
        state_dir = tmp_path / "state"
        async with Bench(state_dir, keys=KEYS, kept=Kept.HASHES) as bench:
            traffic = Traffic(bench.desk.state(NAME).plan.policy.suite_digests["mine"])
            await folded(bench, traffic, range(6))
            await bench.checkpoints.save()
            known = bench.desk.state(NAME).evidence
            await folded(bench, traffic, range(6, 9))
            late = bench.desk.state(NAME).evidence - known
        async with Bench(state_dir, keys=KEYS, kept=Kept.HASHES) as bench:
            # What came after the checkpoint is not folded from hashes: those gates would learn noise.
            assert bench.desk.state(NAME).evidence < known + late
            await folded(bench, traffic, range(9, 12))

    asyncio.run(main())
    with EvidenceReader(tmp_path / "state" / "evidence.db", KEYS) as reader:
        done = recompute(reader, NAME)
    assert (done.differing, done.problems) == (0, ())
    assert done.unknown > 0
    assert any(
        "kept as hashes" in one and "position_margins and sampling read token IDs" in one for one in done.told
    )
