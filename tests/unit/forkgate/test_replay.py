"""Whether a fork stands: position and tokens decide, numbers do not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from comparator.evidence import Batch, ComparisonDone, EvidenceStore
from comparator.pair import Pair
from comparator.records import Arm
from engines.base import Engine, EngineOptions, EngineUnavailable
from forkgate.admin.port import Refused
from forkgate.judge.fleet import Fleet
from forkgate.judge.replay import Replayer, Verdict, judge
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


def refused(tmp_path: Path, stored: Pair, old: FakeEngine, new: FakeEngine) -> Refused:
    with pytest.raises(Refused) as caught:
        replay(tmp_path, stored, old, new)
    return caught.value


def replay(tmp_path: Path, stored: Pair, old: FakeEngine, new: FakeEngine) -> dict[str, Any]:
    store = EvidenceStore(tmp_path / "evidence.db", 10_000_000)
    store.add(
        Batch(comparisons=(ComparisonDone(comparison=comparison(stored), incarnation="e", sequence=1),))
    )
    store.close()

    def open_engine(base_url: str, options: EngineOptions, **_tls: Any) -> Engine:
        return old if base_url.endswith("9001") else new

    async def main() -> dict[str, Any]:
        fleet = Fleet(config(tmp_path), open_engine)
        for name in ("old", "new"):
            (endpoint,) = fleet.endpoints(name)
            endpoint.probe = await endpoint.engine.probe()
        return await Replayer(config(tmp_path), fleet, tmp_path / "evidence.db").replay(stored.capture_id)

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
