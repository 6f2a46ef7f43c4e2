"""What an exchange says of its environment: the answer's own word goes before the probe's."""

from __future__ import annotations

import pytest

from comparator.records import Arm, CaptureId, Exchange, Fact, Outcome, Sampling
from engines.base import Engine, Finish, Probe
from proxy.mirror.record import ArmPlan, make_exchange
from tests.support.engines import FakeEngine

TEMPLATE = Fact(value="sha256:of-the-template-used")


class Endpoint:
    def __init__(self, **facts: Fact) -> None:
        self.engine: Engine = FakeEngine()
        self.error = None
        self.probe = Probe(
            engine="reference",
            version="1",
            model="m",
            has=frozenset(),
            missing={},
            max_logprobs=20,
            facts={"dtype": Fact(value="float32"), "template_sha256": Fact(value="sha256:probed"), **facts},
        )


def record(endpoint: Endpoint, **told: Fact) -> Exchange:
    plan = ArmPlan(
        capture_id=CaptureId("c"),
        arm=Arm.CANDIDATE,
        rollout="r",
        tenant="t",
        request_id="q",
        pool="new",
        declared_digest=None,
        model="m",
        prompt_token_ids=(1, 2),
        sampling=Sampling(max_tokens=4),
        facts={"template_sha256": TEMPLATE},
    )
    return make_exchange(
        plan,
        endpoint,
        "salt",
        outcome=Outcome.COMPLETED,
        error=None,
        finish=Finish(finish_reason="stop", facts=told),
        started_unix_s=0.0,
    )


def test_probe_fills_in_what_the_answer_does_not_tell() -> None:
    exchange = record(
        Endpoint(environment_digest=Fact(value="sha256:a")), environment_digest=Fact(value="sha256:a")
    )
    assert exchange.environment_digest == Fact(value="sha256:a")
    assert exchange.facts["dtype"] == Fact(value="float32")
    assert exchange.facts["template_sha256"] == TEMPLATE


def test_probe_of_another_environment_is_not_taken_for_the_one_that_answered() -> None:
    """The engine was replaced behind its address: its dtype may be anything now."""
    exchange = record(
        Endpoint(environment_digest=Fact(value="sha256:a")),
        environment_digest=Fact(value="sha256:b"),
        padding=Fact(value="none"),
    )
    assert exchange.environment_digest == Fact(value="sha256:b")
    assert exchange.facts["dtype"].unknown is not None
    assert "another environment" in exchange.facts["dtype"].unknown
    assert exchange.facts["template_sha256"] == TEMPLATE
    assert exchange.facts["padding"] == Fact(value="none")


@pytest.mark.parametrize(
    ("probed", "told"),
    [
        ({}, {"environment_digest": Fact(value="sha256:a")}),
        ({"environment_digest": Fact(value="sha256:a")}, {}),
        ({"environment_digest": Fact(value="sha256:a")}, {"environment_digest": Fact(unknown="not told")}),
    ],
)
def test_without_two_digests_nothing_says_that_the_environment_changed(
    probed: dict[str, Fact], told: dict[str, Fact]
) -> None:
    assert record(Endpoint(**probed), **told).facts["dtype"] == Fact(value="float32")
