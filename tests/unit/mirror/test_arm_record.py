"""What an exchange says of its environment: the answer's own word goes before the probe's."""

from __future__ import annotations

import pytest

from comparator.compare import DIGEST_BY
from comparator.records import Arm, CaptureId, Exchange, Fact, Outcome, Sampling
from engines.base import Engine, Finish, Probe
from proxy.mirror.record import ArmPlan, make_exchange
from tests.support.engines import FakeEngine

TEMPLATE = Fact(value="sha256:of-the-template-used")


class Endpoint:
    def __init__(self, **facts: Fact) -> None:
        self.engine: Engine = FakeEngine()
        self.error = None
        self.environment = facts.get("environment_digest", Fact(unknown="never told"))
        self.environment_in_answers = False
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
    return ended(endpoint, Finish(finish_reason="stop", facts=told))


def ended(endpoint: Endpoint, finish: Finish | None, head: Fact | None = None) -> Exchange:
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
        finish=finish,
        environment=head,
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


A, B = Fact(value="sha256:a"), Fact(value="sha256:b")
NONE = Fact(unknown="the answer tells none")
END = Finish(finish_reason="stop", facts={"environment_digest": NONE})


@pytest.mark.parametrize(
    ("in_answers", "finish", "head", "digest", "by"),
    [
        (True, Finish(finish_reason="stop", facts={"environment_digest": B}), B, B, "answer"),
        (True, None, B, B, "answer"),  # cut, or broken off: its head told
        (False, END, NONE, A, "probe"),
        (False, None, NONE, A, "probe"),
        (False, None, None, A, "probe"),  # no answer came
        (True, None, None, A, "earlier answer"),
    ],
)
def test_an_exchange_says_how_its_digest_is_known(
    in_answers: bool, finish: Finish | None, head: Fact | None, digest: Fact, by: str
) -> None:
    endpoint = Endpoint(environment_digest=A)
    endpoint.environment_in_answers = in_answers
    exchange = ended(endpoint, finish, head)
    assert exchange.environment_digest == digest
    assert exchange.facts[DIGEST_BY] == Fact(value=by)


@pytest.mark.parametrize("finish", [END, None])
def test_a_probe_vouches_for_no_answer_that_tells_none_where_answers_tell_one(finish: Finish | None) -> None:
    """An engine that tells nothing was put in place of one that told."""
    endpoint = Endpoint(environment_digest=A)
    endpoint.environment_in_answers = True
    exchange = ended(endpoint, finish, NONE)
    assert exchange.environment_digest.unknown == "its answers tell digests, and this one tells none"
    assert exchange.facts[DIGEST_BY].unknown is not None


def test_facts_of_the_probe_are_not_those_of_another_that_answered_and_was_cut() -> None:
    exchange = ended(Endpoint(environment_digest=A), None, B)
    assert "another environment" in str(exchange.facts["dtype"].unknown)
