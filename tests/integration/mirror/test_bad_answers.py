"""Engines whose logprobs or token IDs are no such thing: named, set aside, and the next capture goes on."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from comparator.compare import compare
from comparator.pair import SetAside
from comparator.records import Outcome, Step
from engines.base import Finish, Prompt, Steps
from tests.support.engines import FakeEngine, fake_step
from tests.support.mirror import rig

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "NaN drawn": ({"logprob": math.nan}, "is nan"),
    "NaN first": ({"top_logprobs": (math.nan, -1.0, -2.0, -3.0, -4.0)}, "is nan"),
    "NaN last": ({"top_logprobs": (-0.25, -1.0, -2.0, -3.0, math.nan)}, "is nan"),
    "infinite": ({"top_logprobs": (math.inf, -1.0, -2.0, -3.0, -4.0)}, "is inf"),
    "above zero": ({"top_logprobs": (0.5, -1.0, -2.0, -3.0, -4.0)}, "is 0.5"),
    "out of order": ({"top_logprobs": (-1.0, -0.25, -2.0, -3.0, -4.0)}, "not in descending order"),
    "tail out of order": ({"top_logprobs": (-0.25, -1.0, -2.0, -4.0, -3.0)}, "not in descending order"),
    "no top-k": ({"top_ids": (), "top_logprobs": ()}, "5 top logprobs were asked for and 0 came"),
    "short top-k": (
        {"top_ids": (1, 2), "top_logprobs": (-0.5, -1.0)},
        "5 top logprobs were asked for and 2 came",
    ),
    "no drawn logprob": ({"logprob": None}, "the drawn token has no logprob"),
    "unequal lists": ({"top_ids": (1, 2, 3, 4, 5, 6)}, "6 top-k IDs came with 5 logprobs"),
    "negative ID": ({"token_id": -3}, "token ID -3 is outside 0-2147483647"),
    "huge ID": ({"token_id": 2**40}, "is outside 0-2147483647"),
}


def run(main: Any) -> None:
    asyncio.run(main())


def bad_at(index: int, changes: dict[str, Any], first_only: list[str]) -> Any:
    """A sound answer but for one step of the first capture."""

    async def script(prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
        capture = prompt.exchange_id.partition("/")[0]
        if not first_only:
            first_only.append(capture)
        for place in range(6):
            step: Step = fake_step(prompt, place)
            if place == index and capture == first_only[0]:
                step = msgspec.structs.replace(step, **changes)
            await asyncio.sleep(0)
            yield Steps((step,))
        yield Finish(finish_reason="stop")

    return script


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("index", [0, 3])
def test_a_candidates_bad_step_sets_the_pair_aside_and_the_next_is_compared(case: str, index: int) -> None:
    changes, why = CASES[case]

    async def main() -> None:
        async with rig(FakeEngine(), FakeEngine(script=bad_at(index, changes, []))) as made:
            pair = await made.pair()
            assert pair.set_aside is SetAside.INVALID_ANSWER
            assert why in str(pair.set_aside_reason)
            assert str(pair.set_aside_reason).startswith("candidate")
            assert pair.left.outcome is Outcome.COMPLETED
            assert pair.fork is None
            assert made.sink.forks == []
            assert compare(pair.left, pair.right) == pair
            assert (await made.pair()).valid

    run(main)


@pytest.mark.parametrize("case", CASES)
def test_a_baselines_bad_step_is_never_blamed_on_the_candidate(case: str) -> None:
    changes, why = CASES[case]

    async def main() -> None:
        async with rig(FakeEngine(script=bad_at(3, changes, []))) as made:
            pair = await made.pair()
            assert pair.set_aside is SetAside.INVALID_ANSWER
            assert str(pair.set_aside_reason).startswith("baseline")
            assert why in str(pair.set_aside_reason)
            assert (await made.pair()).valid

    run(main)


def test_a_baseline_whose_very_first_step_is_bad_drops_the_capture_with_the_reason() -> None:
    async def main() -> None:
        changes, why = CASES["above zero"]
        async with rig(FakeEngine(script=bad_at(0, changes, []))) as made:
            reason, detail = await made.drop()
            assert reason == "baseline_unavailable"
            assert why in detail
            assert (await made.pair()).valid

    run(main)


def test_a_bad_step_after_the_fork_takes_nothing_from_it() -> None:
    async def main() -> None:
        changes, _ = CASES["out of order"]

        async def forks_then_breaks(prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
            yield Steps((fake_step(prompt, 0, variant=1),))
            yield Steps((msgspec.structs.replace(fake_step(prompt, 1), **changes),))

        async with rig(FakeEngine(), FakeEngine(script=forks_then_breaks)) as made:
            pair = await made.pair()
            assert pair.valid
            assert pair.fork is not None
            assert pair.right.outcome is Outcome.INVALID

    run(main)


def test_ties_may_stand_in_any_order() -> None:
    async def main() -> None:
        tied = {"top_ids": (9, 8, 7, 6, 5), "top_logprobs": (-1.0, -1.0, -1.0, -1.0, -1.0), "logprob": -1.0}
        engines = [FakeEngine(script=bad_at(2, tied, [])) for _ in range(2)]
        async with rig(*engines) as made:
            assert (await made.pair()).valid

    run(main)
