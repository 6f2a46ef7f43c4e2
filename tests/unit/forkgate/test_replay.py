"""Whether a fork stands: position and tokens decide, numbers do not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from comparator.comparison import Comparison
from comparator.evidence import Batch, ComparisonDone, EvidenceStore, Kept
from comparator.pair import Pair
from comparator.records import Arm, Sampling
from engines.base import Engine, EngineOptions, EngineUnavailable
from forkgate.admin.port import Refused
from forkgate.fleet import Fleet
from forkgate.judge.replay import Replayer, Verdict, judge
from tests.support.at_rest import KEYS
from tests.support.engines import FakeEngine
from tests.support.exchanges import comparison, exchange, pair, plain_steps
from tests.support.judging import config


def verdict(then: tuple[Sequence[int], Sequence[int]], now: tuple[Sequence[int], Sequence[int]]) -> Verdict:
    return judge(pair(*then).fork, pair(*now).fork)


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        (((1, 2, 3), (1, 2, 4)), ((1, 2, 3), (1, 2, 4)), Verdict.STANDS),
        (((1, 2, 3), (1, 2, 3)), ((1, 2, 3), (1, 2, 3)), Verdict.STANDS),
        (((1, 2, 3), (1, 2, 4)), ((1, 2, 3), (1, 2, 5)), Verdict.MOVED),
        (((1, 2, 3), (1, 2, 4)), ((1, 2, 3), (1, 4, 4)), Verdict.MOVED),
        (((1, 2, 3), (1, 2, 4)), ((1, 2, 3), (1, 2, 3)), Verdict.VANISHED),
        (((1, 2, 3), (1, 2, 3)), ((1, 2, 3), (1, 2, 4)), Verdict.APPEARED),
    ],
)
def test_verdict_of_then_and_now(then: Any, now: Any, said: Verdict) -> None:
    assert verdict(then, now) is said


def test_other_numbers_at_the_same_fork_still_stand() -> None:
    then = pair((1, 2, 3), (1, 2, 4)).fork
    now = pair((1, 2, 3), (1, 2, 4), right={"steps": plain_steps((1, 2, 4), shift_nats=0.25)}).fork
    assert then is not None
    assert now is not None
    assert then.right.top_logprobs != now.right.top_logprobs
    assert judge(then, now) is Verdict.STANDS


def refused(tmp_path: Path, stored: Pair, old: FakeEngine, new: FakeEngine, **which: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        replay(tmp_path, stored, old, new, **which)
    return caught.value


def replay(
    tmp_path: Path, stored: Pair | Comparison, old: FakeEngine, new: FakeEngine, **which: Any
) -> dict[str, Any]:
    made = comparison(stored) if isinstance(stored, Pair) else stored
    store = EvidenceStore(tmp_path / "evidence.db", 10_000_000, keys=KEYS, kept=which.pop("kept", Kept.FULL))
    store.add(Batch(comparisons=(ComparisonDone(comparison=made, incarnation="e", sequence=1),)))
    store.close()

    def open_engine(base_url: str, options: EngineOptions, **_tls: Any) -> Engine:
        return old if base_url.endswith("9001") else new

    async def main() -> dict[str, Any]:
        fleet = Fleet(config(tmp_path), open_engine)
        for name in ("old", "new"):
            (endpoint,) = fleet.endpoints(name)
            endpoint.probe = await endpoint.engine.probe()
        return await Replayer(config(tmp_path), fleet, tmp_path / "evidence.db", KEYS).replay(
            stored.capture_id, **which
        )

    return asyncio.run(main())


def test_arms_run_again_with_what_was_stored_and_a_fresh_salt(tmp_path: Path) -> None:
    old, new = FakeEngine(), FakeEngine()
    answer = replay(tmp_path, pair((1, 2, 3), (1, 2, 4)), old, new)
    for engine in (old, new):
        (prompt,) = engine.prompts
        assert prompt.token_ids == (7, 8, 9)
        assert prompt.sampling == exchange().sampling
    assert old.prompts[0].cache_salt != new.prompts[0].cache_salt
    assert answer["verdict"] == "vanished"
    assert "the fork vanished" in answer["text"]
    assert "alone: the batches that other requests shared with them are not reproduced" in answer["text"]


def test_what_was_kept_as_hashes_cannot_be_asked_again(tmp_path: Path) -> None:
    old, new = FakeEngine(), FakeEngine()
    error = refused(tmp_path, pair((1, 2, 3), (1, 2, 4)), old, new, kept=Kept.HASHES)
    assert (error.status, error.code) == (409, "not_whole")
    assert "kept as hashes (evidence.store), and nobody can ask for hashes" in str(error)
    assert old.prompts == new.prompts == []


def test_near_tie_that_vanishes_is_said_to_be_one(tmp_path: Path) -> None:
    """Two arms whose first choices are a hair apart: another batch decides them."""
    tie = {"top_ids": (3, 4), "top_logprobs": (-0.70, -0.70)}
    steps = plain_steps((1, 2, 3)), plain_steps((1, 2, 4))
    left, right = ((*some[:-1], msgspec.structs.replace(some[-1], logprob=-0.70, **tie)) for some in steps)
    answer = replay(tmp_path, pair(left={"steps": left}, right={"steps": right}), FakeEngine(), FakeEngine())
    assert answer["verdict"] == "vanished"
    assert answer["fork_class"] == "tie_flip"
    assert "class of that fork: tie flip, " in answer["text"]
    assert "this fork was a near tie" in answer["text"]


def test_engine_that_fails_is_no_verdict(tmp_path: Path) -> None:
    def broken(_prompt: Any) -> Any:
        async def stream() -> Any:
            raise EngineUnavailable("http://new", "connection refused")
            yield

        return stream()

    error = refused(tmp_path, pair((1, 2, 3), (1, 2, 4)), FakeEngine(), FakeEngine(script=broken))
    assert error.status == 502
    assert "connection refused" in str(error)


def test_pair_that_went_as_itself_cannot_be_run_again(tmp_path: Path) -> None:
    stored = pair((1, 2, 3), (1, 2, 4))
    itself = msgspec.structs.replace(stored, right=msgspec.structs.replace(stored.right, as_tokens=False))
    assert itself.right.arm is Arm.CANDIDATE
    error = refused(tmp_path, itself, FakeEngine(), FakeEngine())
    assert error.status == 409
    assert "whose body is not kept" in str(error)


def test_pool_that_the_configuration_dropped_is_named(tmp_path: Path) -> None:
    stored = pair((1, 2, 3), (1, 2, 4))
    moved = msgspec.structs.replace(stored, right=msgspec.structs.replace(stored.right, pool="newer"))
    error = refused(tmp_path, moved, FakeEngine(), FakeEngine())
    assert (error.status, error.code) == (409, "pool_gone")


def test_any_replicate_and_the_control_can_be_run_again(tmp_path: Path) -> None:
    """Replicates differ by their seed; the control runs on the baseline's pool."""
    pairs = []
    for replicate in (0, 1):
        mine = {"replicate": replicate, "sampling": Sampling(max_tokens=9, seed=50 + replicate)}
        candidate = pair((1, 2), (1, 3), left=mine, right=mine)
        control = pair((1, 2), (1, 9), right_arm=Arm.CONTROL, left=mine, right=mine)
        pairs += [candidate, msgspec.structs.replace(control, left=candidate.left)]
    stored = comparison(*pairs)
    old, new = FakeEngine(), FakeEngine()
    answer = replay(tmp_path, stored, old, new, replicate=1)
    assert [engine.prompts[-1].sampling.seed for engine in (old, new)] == [51, 51]
    assert (answer["replicate"], answer["arm"]) == (1, "candidate")
    assert answer["before"]["fork"]["right"]["token_id"] == 3
    old, new = FakeEngine(), FakeEngine()
    answer = replay(tmp_path, stored, old, new, arm="control")
    assert [prompt.sampling.seed for prompt in old.prompts] == [50, 50]
    assert new.prompts == []
    assert answer["before"]["fork"]["right"]["token_id"] == 9


def test_a_pair_that_a_capture_does_not_have_is_named_with_those_it_has(tmp_path: Path) -> None:
    error = refused(tmp_path, pair((1, 2, 3), (1, 2, 4)), FakeEngine(), FakeEngine(), replicate=2)
    assert (error.status, error.code) == (404, "not_found")
    assert "no pair of candidate, replicate 2; it has candidate 0" in str(error)
