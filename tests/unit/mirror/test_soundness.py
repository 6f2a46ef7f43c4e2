from __future__ import annotations

import math
from typing import Any

import pytest

from comparator.records import Step
from proxy.mirror.soundness import MOST_ID, fault_of


def step(**changes: Any) -> Step:
    values: dict[str, Any] = {
        "token_id": 7,
        "logprob": -0.5,
        "top_ids": (7, 8, 9),
        "top_logprobs": (-0.5, -1.0, -2.0),
        "received_s": 0.0,
    }
    return Step(**{**values, **changes})


@pytest.mark.parametrize(
    "sound",
    [
        step(),
        step(logprob=1e-6, top_logprobs=(1e-6, -20.0, -20.0)),  # rounded to a hair above 0, and a tie
        step(top_logprobs=(-0.5, -1.0, -math.inf)),
        step(token_id=3, logprob=-9.0),  # drawn from outside the top k
        step(token_id=MOST_ID),
    ],
)
def test_what_engines_rightly_send_is_sound(sound: Step) -> None:
    assert fault_of(sound, 3) is None


def test_without_logprobs_only_the_token_counts() -> None:
    assert fault_of(step(logprob=None, top_ids=(), top_logprobs=()), 0) is None


@pytest.mark.parametrize(
    ("unsound", "why"),
    [
        (step(token_id=-1), "token ID -1 is outside 0-2147483647"),
        (step(token_id=2**31), "token ID 2147483648 is outside 0-2147483647"),
        (step(top_ids=(7, 8)), "2 top-k IDs came with 3 logprobs"),
        (step(top_ids=(7,), top_logprobs=(-0.5,)), "3 top logprobs were asked for and 1 came"),
        (step(top_ids=(), top_logprobs=()), "3 top logprobs were asked for and 0 came"),
        (step(logprob=None), "the drawn token has no logprob"),
        (step(logprob=math.nan), "logprob of token 7 is nan"),
        (step(logprob=0.5), "logprob of token 7 is 0.5"),
        (step(top_logprobs=(math.nan, -1.0, -2.0)), "logprob of token 7 is nan"),
        (step(top_logprobs=(-0.5, math.nan, -2.0)), "logprob of token 8 is nan"),
        (step(top_logprobs=(-0.5, -1.0, math.nan)), "logprob of token 9 is nan"),
        (step(top_logprobs=(math.inf, -1.0, -2.0)), "logprob of token 7 is inf"),
        (step(top_logprobs=(0.01, -1.0, -2.0)), "logprob of token 7 is 0.01"),
        (step(top_logprobs=(-0.5, -2.0, -1.0)), "top logprobs are not in descending order"),
        (step(top_logprobs=(-1.0, -0.5, -2.0)), "top logprobs are not in descending order"),
    ],
)
def test_what_breaks_the_contract_is_named(unsound: Step, why: str) -> None:
    assert fault_of(unsound, 3) == why
