"""Hooks against real receivers, slow and lying ones among them."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest

from forkgate.config.hooks import HookEvent, HookFormat, HookSection, OnSilence
from forkgate.hooks import BadSignature, Hooks, verify
from forkgate.hooks.hooks import HookConfigError
from forkgate.hooks.notices import differences, slack_text
from forkgate.hooks.signing import sign
from policies.policy import load_policy
from policies.rollout import Held, HoldCause, Latch, RolloutPlan, RolloutState, Stage
from policies.rollout.values import standing
from policies.routes import PoolName, RolloutName, TenantName
from policies.verdict import Answer, Verdict
from tests.support.certificates import Authority
from tests.support.hook_receiver import ALLOW, HookReceiver, answer
from tests.support.waiting import LIMIT_S, PATIENCE_S

SECRET = "0123456789abcdef0123456789abcdef"
EVERY = tuple(HookEvent)
GATES = "level: token\nalpha: 0.05\ngates:\n  token_equality: {minimum_pairs: 1}\n"
FORKED = Verdict(
    gate="token_equality",
    answer=Answer.FAIL,
    value=1.0,
    limit=0.0,
    n=1,
    reason="1 of 1 pairs forked",
    deciding_id="c-1",
)
PLAN = RolloutPlan(
    name=RolloutName("old-to-new"),
    baseline=PoolName("old"),
    candidate=PoolName("new"),
    policy=load_policy(GATES, "p"),
    percent=10.0,
)
SHADOW = standing(PLAN, Stage.SHADOW)


def latch(**changes: Any) -> Latch:
    fields: dict[str, Any] = {
        "rollout": PLAN.name,
        "verdict": FORKED,
        "policy_digest": "d",
        "from_stage": Stage.SHADOW,
        "unix_s": 1.0,
    }
    return Latch(**{**fields, **changes})


def but(state: RolloutState, **changes: Any) -> RolloutState:
    return msgspec.structs.replace(state, **changes)


ROLLED_BACK = but(SHADOW, stage=Stage.ROLLED_BACK, latch=latch())
HELD = but(SHADOW, held=Held(cause=HoldCause.GATE, reason="look at it"))


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work

    asyncio.run(bounded())


def section(tmp_path: Path, url: str | None, **changes: Any) -> HookSection:
    (tmp_path / "secret").write_text(SECRET + "\n")
    fields: dict[str, Any] = {
        "name": "deploys",
        "url": url,
        "events": EVERY,
        "secret_file": str(tmp_path / "secret"),
        "timeout_s": PATIENCE_S,
        "retry_s": LIMIT_S,
    }
    return HookSection(**{**fields, **changes})


def hooks(*sections: HookSection) -> Hooks:
    return Hooks(sections, "sidecar-1", first_wait_s=0.01)


# --- what is told


@pytest.mark.parametrize(
    ("before", "now", "events"),
    [
        (SHADOW, SHADOW, []),
        (SHADOW, but(SHADOW, sequence=9, evidence=9), []),
        (SHADOW, ROLLED_BACK, ["breach", "stage"]),
        (SHADOW, HELD, ["hold"]),
        (HELD, SHADOW, ["lift"]),
        (HELD, but(ROLLED_BACK, held=HELD.held), ["breach", "stage"]),
        (ROLLED_BACK, SHADOW, ["lift", "stage"]),
        (SHADOW, but(SHADOW, stage=Stage.OBSERVING), ["stage"]),
        (but(SHADOW, stage=Stage.OBSERVING), but(SHADOW, stage=Stage.PROMOTED), ["stage", "promotion"]),
        (SHADOW, but(SHADOW, sent_home={TenantName("acme"): latch(tenant="acme")}), ["breach"]),
        (but(SHADOW, sent_home={TenantName("acme"): latch(tenant="acme")}), SHADOW, ["lift"]),
    ],
)
def test_a_difference_of_two_states_is_what_is_told(
    before: RolloutState, now: RolloutState, events: list[str]
) -> None:
    assert [notice.event for notice in differences(before, now)] == events


def test_a_restart_is_no_event() -> None:
    assert list(differences(None, ROLLED_BACK)) == []


def test_breach_names_gate_reason_and_the_person_behind_it() -> None:
    (by_gate, _) = differences(SHADOW, ROLLED_BACK)
    assert by_gate.text == "rollout old-to-new (old → new): token_equality failed: 1 of 1 pairs forked"
    assert (by_gate.gate, by_gate.deciding_id, by_gate.who) == ("token_equality", "c-1", None)
    (by_ana, _) = differences(SHADOW, but(ROLLED_BACK, latch=latch(who="ana")))
    assert "ana rolls it back" in by_ana.text
    assert by_ana.who == "ana"


def test_slack_sees_no_markup_of_ours() -> None:
    (notice,) = differences(SHADOW, but(SHADOW, held=Held(cause=HoldCause.GATE, reason="<!here> a & b")))
    assert "<" not in slack_text(notice)
    assert "&lt;!here&gt; a &amp; b" in slack_text(notice)


# --- the signature


def test_signature_is_taken_once_and_only_whole() -> None:
    header = sign(b"key", b"body", 1_000)
    assert verify(b"key", header, b"body", 1_100.0) == 1_000
    for broken in (
        {"secret": b"other"},
        {"body": b"body2"},
        {"header": header.replace("t=1000", "t=1001")},
        {"header": header[:-1]},
        {"header": ""},
        {"unix_s": 1_301.0},
        {"unix_s": 699.0},
    ):
        given: dict[str, Any] = {"secret": b"key", "header": header, "body": b"body", "unix_s": 1_100.0}
        with pytest.raises(BadSignature):
            verify(**{**given, **broken})


def test_webhook_is_signed_and_says_what_happened(tmp_path: Path) -> None:
    async def main() -> None:
        async with HookReceiver([answer(200)]).serving() as receiver:
            one = hooks(section(tmp_path, receiver.url, events=(HookEvent.BREACH,)))
            one.look([SHADOW])
            one.look([ROLLED_BACK])
            await receiver.until(lambda: len(receiver.requests) == 1)
            (got,) = receiver.requests
            verify(SECRET.encode(), got.headers["forkgate-signature"], got.body, time.time())
            told = orjson.loads(got.body)
            assert got.headers["forkgate-event"] == told["event"] == "breach"
            assert got.headers["forkgate-delivery"] == told["id"]
            assert (told["rollout"], told["gate"], told["sidecar"]) == (
                "old-to-new",
                "token_equality",
                "sidecar-1",
            )
            await one.close()

    run(main())


def test_chat_gets_text_and_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        async with HookReceiver([answer(200, b"ok")]).serving() as receiver:
            (tmp_path / "url").write_text(receiver.url + "\n")
            chat = section(
                tmp_path,
                None,
                url_file=str(tmp_path / "url"),
                secret_file=None,
                format=HookFormat.SLACK,
                events=(HookEvent.ROLLBACK,),
            )
            one = hooks(chat)
            one.look([ROLLED_BACK])
            one.flip_done("old-to-new", tenant=None, epoch=7, edges=2, missing=1, durable=True)
            await receiver.until(lambda: len(receiver.requests) == 1)
            told = orjson.loads(receiver.requests[0].body)
            assert told == {
                "text": "ROLLED BACK forkgate sidecar-1: rollout old-to-new (old → new): all of its traffic "
                "is at old again, epoch 7, 2 edges obeyed, 1 edges have not said so yet"
            }
            assert "forkgate-signature" not in receiver.requests[0].headers
            await one.close()

    run(main())


# --- slow and lying receivers


@pytest.mark.parametrize(
    "first", [answer(500), answer(503), answer(429), "close", "hang", b"HTP/9 nonsense\r\n\r\n"]
)
def test_a_notice_is_sent_again_until_it_is_taken(tmp_path: Path, first: bytes | str) -> None:
    async def main() -> None:
        async with HookReceiver([first, first, answer(204)]).serving() as receiver:
            limit_s = 0.2 if first == "hang" else PATIENCE_S
            one = hooks(section(tmp_path, receiver.url, timeout_s=limit_s))
            one.look([SHADOW])
            one.look([HELD])
            await receiver.until(lambda: len(receiver.requests) >= 3)
            assert len({got.headers["forkgate-delivery"] for got in receiver.requests}) == 1
            await one.close(PATIENCE_S)
            assert one.view()[0]["delivered"] == 1
            assert one.troubles() == []

    run(main())


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (answer(302, b"", "location: http://127.0.0.1:1/"), "answered 302, a redirect, and none is followed"),
        (answer(404), "answered 404"),
        (answer(400, b"x" * 1000), "answered 400"),
    ],
)
def test_a_refusal_for_good_is_not_tried_again(tmp_path: Path, said: bytes, why: str) -> None:
    async def main() -> None:
        async with HookReceiver([said]).serving() as receiver:
            one = hooks(section(tmp_path, receiver.url))
            one.look([SHADOW])
            one.look([HELD])
            await receiver.until(lambda: len(receiver.requests) == 1)
            await one.close(PATIENCE_S)
            assert len(receiver.requests) == 1
            assert one.view()[0]["failed"] == 1
            assert one.deliveries() == {
                ("deploys", "delivered"): 0,
                ("deploys", "given_up"): 1,
                ("deploys", "lost"): 0,
            }
            assert one.waiting() == {"deploys": 0}
            assert why in one.troubles()[0]
            assert receiver.url not in one.troubles()[0]

    run(main())


def test_endless_answer_costs_a_bounded_number_of_bytes(tmp_path: Path) -> None:
    async def main() -> None:
        async with HookReceiver(["endless"]).serving() as receiver:
            one = hooks(section(tmp_path, receiver.url))
            answers = await one.ask(SHADOW, "canary step 1 of 1")
            assert answers[0].why == "gave no answer: answered more than 65536 bytes"
            assert receiver.sent_bytes < 20_000_000
            await one.close()

    run(main())


def test_a_receiver_that_hangs_holds_up_nobody_and_its_queue_is_bounded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with HookReceiver(["hang"]).serving() as slow, HookReceiver([answer(200)]).serving() as quick:
            one = hooks(
                section(tmp_path, slow.url, name="slow", queue_items=2),
                section(tmp_path, quick.url, name="quick"),
            )
            for _ in range(10):  # no coroutine, so it can wait for nobody
                one.look([SHADOW])
                one.look([HELD])
            await quick.until(lambda: len(quick.requests) == 19)  # 10 holds and the 9 lifts between them
            told = {view["name"]: view for view in one.view()}
            assert told["slow"]["lost"] >= 16
            assert told["slow"]["waiting"] <= 3
            assert "queue was full" in one.troubles()[0]
            await one.close(drain_s=0.1)
            assert one.view()[0]["lost"] == 19  # what was queued is lost with the judge, and counted

    with caplog.at_level(logging.ERROR):
        run(main())
    assert "notifications are lost with this judge" in caplog.text


def test_what_is_queued_is_delivered_before_the_judge_ends(tmp_path: Path) -> None:
    async def main() -> None:
        async with HookReceiver([answer(500), answer(200)]).serving() as receiver:
            one = hooks(section(tmp_path, receiver.url))
            one.look([SHADOW])
            one.look([ROLLED_BACK])
            await one.close(drain_s=PATIENCE_S)
            assert [orjson.loads(got.body)["event"] for got in receiver.requests] == [
                "breach",
                "breach",
                "stage",
            ]

    run(main())


def test_giving_up_is_bounded_in_time_and_told(tmp_path: Path) -> None:
    async def main() -> None:
        one = hooks(section(tmp_path, "http://127.0.0.1:9/", timeout_s=0.3, retry_s=0.3))
        one.look([SHADOW])
        one.look([HELD])
        await one.close(drain_s=PATIENCE_S)
        (view,) = one.view()
        assert (view["failed"], view["waiting"], view["lost"]) == (1, 0, 0)
        assert "could not be reached" in view["trouble"] or "did not answer within 0.3 s" in view["trouble"]

    run(main())


def test_https_receiver_needs_a_trusted_certificate(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    issued = authority.issue("127.0.0.1")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(issued.cert_file, issued.key_file)

    async def main() -> None:
        async with HookReceiver([ALLOW]).serving(tls) as receiver:
            one = hooks(
                section(tmp_path, receiver.url, name="trusted", ca_file=authority.cert_file),
                section(tmp_path, receiver.url, name="stranger", ca_file=other.cert_file),
            )
            trusted, stranger = await one.ask(SHADOW, "canary step 1 of 1")
            assert trusted.allowed
            assert (stranger.allowed, stranger.why) == (
                False,
                "gave no answer: its certificate is not trusted, see ca_file",
            )
            await one.close()

    run(main())


# --- the veto


@pytest.mark.parametrize(
    ("said", "allowed", "why"),
    [
        (ALLOW, True, ""),
        (
            answer(200, b'{"allow": false, "reason": "freeze\\u001b[2J until Monday"}'),
            False,
            "freeze [2J until Monday",
        ),
        (answer(200, b'{"allow": false}'), False, "no reason was given"),
        (
            answer(200, b'{"allow": true, "why": ' + b"[" * 60_000),
            False,
            'gave no answer: answered neither {"allow": true} nor',
        ),
        (answer(200, b"<html>log in</html>"), False, 'gave no answer: answered neither {"allow": true} nor'),
        (answer(204), False, "gave no answer: answered neither"),
        (answer(200, b'{"allow": "yes"}'), False, "gave no answer: answered neither"),
        (answer(403), False, "gave no answer: answered 403"),
        (answer(302, b"", "location: /yes"), False, "gave no answer: answered 302, a redirect"),
        ("close", False, "gave no answer: could not be reached, or broke off"),
        ("hang", False, "gave no answer: did not answer within 0.3 s"),
    ],
)
def test_only_a_plain_yes_lets_a_step_go_on(
    tmp_path: Path, said: bytes | str, allowed: bool, why: str
) -> None:
    async def main() -> None:
        async with HookReceiver([said]).serving() as receiver:
            limit_s = 0.3 if said == "hang" else PATIENCE_S
            one = hooks(section(tmp_path, receiver.url, timeout_s=limit_s))
            (found,) = await one.ask(SHADOW, "canary step 1 of 3")
            assert found.allowed is allowed
            assert found.why.startswith(why)
            if said != "hang":  # which may be given up before it was read
                told = orjson.loads(receiver.requests[0].body)
                assert (told["event"], told["place"], told["to"]) == (
                    "before_step",
                    "shadow",
                    "canary step 1 of 3",
                )
            await one.close()

    run(main())


def test_silence_lets_a_step_go_on_only_where_the_configuration_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with HookReceiver(["hang"]).serving() as receiver:
            one = hooks(section(tmp_path, receiver.url, timeout_s=0.2, on_silence=OnSilence.GO))
            (found,) = await one.ask(SHADOW, "canary")
            assert found.allowed
            assert "did not answer, and on_silence is go" in found.why
            await one.close()

    run(main())


def test_a_refusal_is_a_refusal_whatever_silence_means(tmp_path: Path) -> None:
    async def main() -> None:
        async with HookReceiver([answer(200, b'{"allow": false, "reason": "no"}')]).serving() as receiver:
            one = hooks(section(tmp_path, receiver.url, on_silence=OnSilence.GO))
            (found,) = await one.ask(SHADOW, "canary")
            assert (found.allowed, found.why) == (False, "no")
            await one.close()

    run(main())


@pytest.mark.parametrize(
    ("said", "on_silence", "counted"),
    [
        (answer(200, b'{"allow": true}'), OnSilence.GO, "allowed"),
        (answer(200, b'{"allow": false}'), OnSilence.GO, "vetoed"),
        (answer(500), OnSilence.GO, "silent"),
        (answer(200, b"no wish"), OnSilence.WAIT, "silent"),
    ],
)
def test_answers_to_steps_are_counted_by_what_they_were(
    tmp_path: Path, said: bytes, on_silence: OnSilence, counted: str
) -> None:
    async def main() -> None:
        async with HookReceiver([said]).serving() as receiver:
            one = hooks(section(tmp_path, receiver.url, on_silence=on_silence))
            await one.ask(SHADOW, "canary")
            wanted = {"allowed": 0, "vetoed": 0, "silent": 0, counted: 1}
            assert one.view()[0]["answers"] == wanted
            assert one.answers() == {("deploys", name): count for name, count in wanted.items()}
            await one.close()

    run(main())


def test_hooks_of_other_rollouts_are_not_asked(tmp_path: Path) -> None:
    async def main() -> None:
        one = hooks(section(tmp_path, "http://127.0.0.1:9/", rollouts=("another",)))
        assert await one.ask(SHADOW, "canary") == ()
        assert (one.asks("old-to-new"), one.asks("another")) == ((), ("deploys",))
        await one.close()

    run(main())


def test_short_secret_is_refused_in_words(tmp_path: Path) -> None:
    given = section(tmp_path, "http://127.0.0.1:9/")
    (tmp_path / "secret").write_text("short")

    async def main() -> None:
        with pytest.raises(HookConfigError, match="hook deploys: secret_file: under 16 bytes"):
            hooks(given)

    run(main())
