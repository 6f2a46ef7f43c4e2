"""When a head is recognised as its connection's last one again, and what is kept for it."""

from __future__ import annotations

import hashlib

import pytest

from proxy.edge.answers import Answer, AnswerReader
from proxy.edge.asks import Ask, AskReader, Via
from proxy.edge.settings import Identity, Limits
from tests.support.edge import Transcript, answer, settings, table


def head(*lines: str, start: str = "POST /v1/completions HTTP/1.1") -> bytes:
    return "\r\n".join((start, "Host: edge", *lines, "", "")).encode("latin-1")


def fits(*heads: bytes, trusted: bool = False, limits: Limits | None = None) -> list[bool]:
    """Which of the heads of one connection were recognised."""
    reader = AskReader(limits or Limits(), Identity(tenant_header="x-tenant"))
    via = Via(b"127.0.0.1", b"http", trusted)
    last: Ask | None = None
    found = []
    for each in heads:
        ask = reader.read(each, via, last)
        found.append(ask is last)
        last = ask
    return found


def answers_fit(*heads: bytes) -> list[bool]:
    reader = AnswerReader(100)
    last: Answer | None = None
    found = []
    for each in heads:
        read = reader.read(each, b"POST", last)
        found.append(read is last)
        last = read
    return found


def token(number: int) -> str:
    return hashlib.md5(b"%d" % number, usedforsecurity=False).hexdigest()


def test_a_head_that_differs_in_its_length_fits_at_once() -> None:
    assert (
        fits(*(head(f"Content-Length: {length}", "A: b") for length in (5, 17, 0, 99)))
        == [False] + [True] * 3
    )


def test_a_traced_client_is_recognised_from_its_third_head_on() -> None:
    heads = [head(f"traceparent: 00-{token(n)}-01", "A: b", f"Content-Length: {n}") for n in range(6)]
    assert fits(*heads) == [False, False] + [True] * 4


def test_a_field_that_nobody_heard_of_is_learned_like_any_other() -> None:
    heads = [head("x-acme: 1", f"x-request-id: {token(n)}", f"x-acme-span:{token(-n)}") for n in range(4)]
    assert fits(*heads) == [False, False, True, True]


def test_requests_that_a_gateway_carries_over_one_connection_are_recognised() -> None:
    heads = [
        head(
            f"Authorization: Bearer k{n}",
            f"X-Tenant: t{n}",
            f"X-Request-Id: {token(n)}",
            f"X-Forwarded-For: 10.0.0.{n}",
            f"User-Agent: u{n}",
        )
        for n in range(5)
    ]
    assert fits(*heads, trusted=True) == [False, False, True, True, True]


@pytest.mark.parametrize(
    "lines",
    [
        ("Transfer-Encoding: chunked", "Transfer-Encoding: CHUNKED"),
        ("Connection: close", "Connection: a"),
        ("Expect: 100-continue", "Expect: 100-Continue"),
        ("Upgrade: a", "Upgrade: b"),
    ],
)
def test_what_decides_about_more_than_its_own_line_has_no_hole(lines: tuple[str, str]) -> None:
    one, other = (head(line) for line in lines)
    assert fits(one, other, one, other) == [False] * 4


def test_dates_lengths_and_ids_of_answers_are_recognised_and_types_are_not() -> None:
    def said(number: int, kind: str = "a/b") -> bytes:
        return (
            f"HTTP/1.1 200 OK\r\ndate: Sun, 0{number}\r\ncontent-length: {number}\r\n"
            f"content-type: {kind}\r\nx-request-id: {token(number)}\r\n\r\n"
        ).encode()

    assert answers_fit(*map(said, range(5))) == [False, False, True, True, True]
    assert answers_fit(said(1), said(2), said(3), said(4, "text/event-stream")) == [False, False, True, False]


def test_a_connection_whose_heads_never_repeat_stops_making_templates_and_tries_again() -> None:
    reader = AskReader(Limits(), Identity())
    via = Via(b"127.0.0.1", b"http", False)
    last: Ask | None = None
    made = []
    for number in range(130):
        last = reader.read(head(start=f"GET /{number} HTTP/1.1"), via, last)
        made.append(last.template is not None)
    assert made == ([True] * 4 + [False] * 60) * 2 + [True] * 2


def test_what_a_connection_keeps_is_bounded() -> None:
    long = head("A: " + "x" * 9000)
    assert fits(long, long, long) == [False] * 3
    for count, fit in ((16, True), (17, False)):
        many = [head(*(f"X-{name}: {name * n}" for name in range(1, count + 1))) for n in range(1, 7)]
        assert fits(*many) == [False, False, fit, fit, fit, fit]


def test_limits_hold_for_a_head_that_fits() -> None:
    core = Transcript(settings(table("http://a:1"), limits=Limits(body_bytes=100)))
    client, wire = core.client()
    client.data_received(head("Content-Length: 1") + b"x")
    upstream, pool = core.accept()
    upstream.data_received(answer(b"y"))
    pool.take()
    client.data_received(head("Content-Length: 101") + b"x")
    assert b"413" in wire.sent
    assert pool.sent == b""


def test_a_copy_has_the_headers_of_its_own_request() -> None:
    core = Transcript(settings(table("http://a:1", percent=100.0)))
    client, _ = core.client()
    for number in range(5):
        client.data_received(
            head(f"User-Agent: u{number}", f"OpenAI-Beta: b{number}", "Content-Length: 1") + b"x"
        )
        if number == 0:
            upstream, _ = core.accept()
        upstream.data_received(answer(b"y"))
        _, copied, _ = core.port.offered[-1]
        assert copied.headers == ((b"user-agent", b"u%d" % number), (b"openai-beta", b"b%d" % number))
    assert len(core.port.offered) == 5
