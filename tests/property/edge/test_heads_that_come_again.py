"""What a connection remembers of its heads changes the cost of reading the next one, never what it says."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import event, given, settings, target
from hypothesis import strategies as st

from proxy.edge.answers import Answer, AnswerReader
from proxy.edge.asks import Ask, AskReader, Via
from proxy.edge.errors import BadAnswerError, RefusalError
from proxy.edge.settings import Identity, Limits

LIMITS = Limits(headers=14, body_bytes=100_000)
IDENTITY = Identity(tenant_header="x-tenant")

# Values that are good for some field, that are good for none, and that would end a line or a head.
ODD_VALUES = (
    *(
        b" 0",
        b" 5",
        b" 17",
        b"17",
        b"\t17 ",
        b" 007",
        b" 99999",
        b" 100001",
        b" 1 7",
        b" 17,17",
        b" +5",
    ),
    *(b" 100000", b" " + b"9" * 18, b" " + b"9" * 19, b" \xb2", b"", b" ", b" x\x00y", b" x\x7f"),
    *(b" x\r", b" x\ny", b" x\r\nX-New: 1", b" x\r\n fold", b" x\r\n\r\nGET / HTTP/1.1"),
    *(
        b" Bearer k1",
        b" bearer  k2",
        b" Bearer",
        b" Basic eA==",
        b" close",
        b" keep-alive",
        b" upgrade",
    ),
    *(b" x-request-id, x-tenant", b" traceparent", b" chunked", b" gzip", b" 100-continue"),
    *(b" websocket", b" edge", b" edge:80", b" e dge", b" text/event-stream", b" text/html"),
)
VALUES = st.one_of(
    st.sampled_from(ODD_VALUES),
    st.text("abc019-", min_size=1, max_size=60).map(lambda text: b" " + text.encode()),
    st.binary(max_size=12),
)
ASK_NAMES = st.sampled_from(
    (
        *(
            b"traceparent",
            b"X-Request-Id",
            b"Content-Length",
            b"content-length",
            b"Authorization",
            b"X-Api-Key",
        ),
        *(b"User-Agent", b"Accept", b"X-Tenant", b"x-tenant", b"X-Forwarded-For", b"X-Forwarded-Proto"),
        *(b"X-Forwarded-Host", b"Forwarded", b"Cookie", b"TE", b"Keep-Alive", b"Transfer-Encoding"),
        *(b"Connection", b"Upgrade", b"Expect", b"Host", b"X Y", b"X-Y ", b""),
    )
)
ANSWER_NAMES = st.sampled_from(
    (
        *(b"Date", b"date", b"Content-Length", b"content-length", b"X-Request-Id", b"Set-Cookie", b"Server"),
        *(b"Content-Type", b"Transfer-Encoding", b"Connection", b"Upgrade", b"Keep-Alive", b"X Y", b""),
    )
)
ASK_STARTS = st.sampled_from(
    (
        *(b"POST /v1/x HTTP/1.1", b"GET /v1/x HTTP/1.1", b"GET http://edge/x HTTP/1.1", b"GET / HTTP/1.0"),
        *(b"OPTIONS * HTTP/1.1", b"GET  / HTTP/1.1", b"GET / HTTP/2.0"),
    )
)
ANSWER_STARTS = st.sampled_from(
    (
        *(
            b"HTTP/1.1 200 OK",
            b"HTTP/1.1 500 No",
            b"HTTP/1.0 200 OK",
            b"HTTP/1.1 204 None",
            b"HTTP/1.1 304 Same",
        ),
        *(b"HTTP/1.1 100 Go on", b"HTTP/1.1 200", b"HTTP/2 200"),
    )
)
Lines = list[tuple[bytes, bytes]]


def whole(start: bytes, lines: Lines) -> bytes:
    """The head of these, which ends where the first empty line is."""
    text = b"\r\n".join((start, *(name + b":" + value for name, value in lines), b"", b""))
    return text[: text.index(b"\r\n\r\n") + 4]


@st.composite
def heads(draw: st.DrawFn, first: Lines, starts: Any, names: Any) -> list[bytes]:
    """The heads of one connection: each is the one before it, and mostly some values are others."""
    start = draw(starts)
    lines = first + draw(st.lists(st.tuples(names, VALUES), max_size=6))
    lines = draw(st.permutations(lines))
    found = [whole(start, lines)]
    for _ in range(draw(st.integers(1, 6))):
        lines = list(lines)
        change = draw(st.sampled_from("vvvvvvvvnidsra"))
        at = draw(st.integers(0, len(lines) - 1)) if lines else None
        if change == "v" and lines:
            for each in draw(st.sets(st.integers(0, len(lines) - 1), min_size=1, max_size=3)):
                lines[each] = lines[each][0], draw(VALUES)
        elif change == "n" and at is not None:
            lines[at] = draw(names), lines[at][1]
        elif change == "i":
            lines.insert(at or 0, (draw(names), draw(VALUES)))
        elif change == "d" and at is not None:
            del lines[at]
        elif change == "s" and at is not None:
            lines[0], lines[at] = lines[at], lines[0]
        elif change == "r":
            start = draw(starts)
        head = whole(start, lines)
        if change == "a":  # any byte, anywhere
            place = draw(st.integers(0, len(head) - 5))
            head = head[:place] + draw(st.binary(max_size=2)) + head[place + draw(st.integers(0, 1)) :]
            head = head[: head.index(b"\r\n\r\n") + 4]
        found.append(head)
    return found


def said_of(ask: Ask) -> dict[str, Any]:
    names = (
        *("method", "target", "minor", "host", "keep_alive", "length", "websocket", "request_id", "tenant"),
        *("api_key", "block", "forwarded", "lines"),
    )
    return {name: getattr(ask, name) for name in names}


def ask_outcome(reader: AskReader, head: bytes, via: Via, last: Ask | None) -> tuple[Ask | None, Any]:
    try:
        ask = reader.read(head, via, last)
    except RefusalError as refusal:
        return None, (refusal.status, refusal.code, str(refusal))
    return ask, said_of(ask)


def each_value_at_each_place(learned: Lines) -> Iterator[Lines]:
    """``learned`` with one value changed: to each odd one, and by each byte at each end and inside."""
    for place, (name, value) in enumerate(learned):
        bytewise = (
            value[:at] + bytes((byte,)) + value[at:] for byte in range(256) for at in (0, 1, 4, len(value))
        )
        for other in (*ODD_VALUES, *bytewise):
            yield [*learned[:place], (name, other), *learned[place + 1 :]]


@pytest.mark.parametrize("trusted", [False, True])
def test_each_byte_in_each_hole_of_a_request_is_judged_as_on_a_fresh_connection(trusted: bool) -> None:
    names = (b"traceparent", b"X-Request-Id", b"Content-Length", b"Authorization", b"X-Tenant", b"TE")
    more = (b"X-Forwarded-For", b"X-Forwarded-Host", b"Cookie")
    start = b"POST /v1/x HTTP/1.1"
    one, two = (
        [
            (b"Host", b" edge"),
            *((name, b" %d" % (number * 1000 + count)) for count, name in enumerate(names + more)),
        ]
        for number in (1, 2)
    )
    via = Via(b"127.0.0.1", b"http", trusted)
    reader, fresh = AskReader(LIMITS, IDENTITY), AskReader(LIMITS, IDENTITY)
    last = reader.read(whole(start, two), via, reader.read(whole(start, one), via))
    assert last.template is not None
    assert len(last.template.holes) == len(names + more)
    fitted = 0
    for lines in each_value_at_each_place(two):
        head = whole(start, lines)
        ask, outcome = ask_outcome(reader, head, via, last)
        assert outcome == ask_outcome(fresh, head, via, None)[1], head
        fitted += ask is last
    assert fitted > 4000


def test_each_byte_in_each_hole_of_an_answer_is_judged_as_on_a_fresh_connection() -> None:
    names = (b"Date", b"Content-Length", b"X-Request-Id", b"Set-Cookie", b"Keep-Alive")
    start = b"HTTP/1.1 200 OK"
    one, two = (
        [
            (b"Content-Type", b" a"),
            *((name, b" %d" % (number * 1000 + count)) for count, name in enumerate(names)),
        ]
        for number in (1, 2)
    )
    reader, fresh = AnswerReader(14), AnswerReader(14)
    last = reader.read(whole(start, two), b"GET", reader.read(whole(start, one), b"GET"))
    assert last.template is not None
    assert len(last.template.holes) == len(names)
    fitted = 0
    for lines in each_value_at_each_place(two):
        head = whole(start, lines)
        answer, outcome = answer_outcome(reader, head, b"GET", last)
        assert outcome == answer_outcome(fresh, head, b"GET", None)[1], head
        fitted += answer is last
    assert fitted > 2000


SHAPING = (
    ((b"Connection", b" close"), (b"Connection", b" x-a, x-tenant"), (b"Connection", b" x-request-id")),
    ((b"Connection", b" Upgrade"), (b"Upgrade", b" websocket")),
    ((b"Upgrade", b" websocket"), (b"Connection", b" keep-alive"), (b"Upgrade", b" h2c")),
    ((b"Expect", b" 100-continue"), (b"Expect", b" 200-ok"), (b"Expect", b"100-Continue")),
    ((b"Transfer-Encoding", b" chunked"), (b"Transfer-Encoding", b" gzip"), (b"X-A", b" chunked")),
    ((b"Host", b" edge"), (b"Host", b" other"), (b"Host", b" e dge")),
    ((b"X-Forwarded-Host", b" other"), (b"X-Forwarded-For", b""), (b"X-Tenant", b" b")),
)


@pytest.mark.parametrize("lines", SHAPING)
@pytest.mark.parametrize("start", [b"GET / HTTP/1.1", b"POST / HTTP/1.0", b"GET http://edge/ HTTP/1.1"])
def test_what_shapes_a_request_is_never_taken_from_the_one_before(start: bytes, lines: Lines) -> None:
    host = [] if lines[0][0] == b"Host" else [(b"Host", b" edge")]
    choices: list[Lines] = [
        [*host, (b"X-A", b" 1"), *some, *length]
        for count in (0, 1, 2)
        for some in itertools.permutations(lines, count)
        for length in ([], [(b"Content-Length", b" 0")], [(b"Content-Length", b" 5")])
    ]
    via = Via(b"127.0.0.1", b"http", True)
    for sequence in itertools.product(choices, repeat=2):
        reader = AskReader(LIMITS, IDENTITY)
        last: Ask | None = None
        for lines_now in (*sequence, *sequence):
            head = whole(start, lines_now)
            ask, outcome = ask_outcome(reader, head, via, last)
            assert outcome == ask_outcome(reader, head, via, None)[1], sequence
            last = ask or last


@pytest.mark.parametrize("method", [b"GET", b"HEAD"])
def test_what_shapes_an_answer_is_never_taken_from_the_one_before(method: bytes) -> None:
    choices = [
        whole(start, [*lines, (b"Date", b" now")])
        for start in (b"HTTP/1.1 200 OK", b"HTTP/1.0 200 OK", b"HTTP/1.1 204 None", b"HTTP/1.1 304 Same")
        for lines in (
            [],
            *([(b"Content-Length", length)] for length in (b" 5", b" 0", b" 5 ")),
            *([(b"Content-Type", kind)] for kind in (b" text/event-stream", b" a/b")),
            *([(b"Transfer-Encoding", coding)] for coding in (b" chunked", b" gzip")),
            *([(b"Connection", option)] for option in (b" close", b" keep-alive", b" date")),
        )
    ]
    reader = AnswerReader(14)
    for sequence in itertools.product(choices, repeat=2):
        last: Answer | None = None
        for head in (*sequence, *sequence):
            for now in (b"GET", method):
                answer, outcome = answer_outcome(reader, head, now, last)
                assert outcome == answer_outcome(reader, head, now, None)[1], sequence
                last = answer or last


@given(
    sequence=heads([(b"Host", b" edge"), (b"Content-Length", b" 5")], ASK_STARTS, ASK_NAMES),
    trusted=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_a_head_says_on_a_used_connection_what_it_says_on_a_fresh_one(
    sequence: list[bytes], trusted: bool
) -> None:
    reader = AskReader(LIMITS, IDENTITY)
    via = Via(b"127.0.0.1", b"http", trusted)
    last: Ask | None = None
    fitted = 0
    for head in sequence:
        before = None if last is None else said_of(last)
        ask, outcome = ask_outcome(reader, head, via, last)
        fresh = ask_outcome(AskReader(LIMITS, IDENTITY), head, Via(b"127.0.0.1", b"http", trusted), None)
        assert outcome == fresh[1]
        if ask is None:
            # The edge ends such a connection. Here it goes on, to see that nothing was left behind.
            assert last is None or said_of(last) == before
            continue
        fitted += ask is last
        last = ask
    event(f"fitted {fitted}")
    target(fitted)


def answer_outcome(
    reader: AnswerReader, head: bytes, method: bytes, last: Answer | None
) -> tuple[Answer | None, Any]:
    try:
        answer = reader.read(head, method, last)
    except BadAnswerError as error:
        return None, str(error)
    names = ("status", "keep_alive", "length", "event_stream", "websocket", "block")
    return answer, {name: getattr(answer, name) for name in names}


@given(
    sequence=heads([(b"Content-Length", b" 5")], ANSWER_STARTS, ANSWER_NAMES),
    methods=st.lists(st.sampled_from((b"POST", b"POST", b"GET", b"HEAD")), min_size=7, max_size=7),
)
@settings(max_examples=300, deadline=None)
def test_an_answer_says_on_a_used_connection_what_it_says_on_a_fresh_one(
    sequence: list[bytes], methods: list[bytes]
) -> None:
    reader = AnswerReader(14)
    last: Answer | None = None
    fitted = 0
    for head, method in zip(sequence, methods, strict=False):
        answer, outcome = answer_outcome(reader, head, method, last)
        assert outcome == answer_outcome(AnswerReader(14), head, method, None)[1]
        if answer is None:
            continue
        fitted += answer is last
        if answer.status >= 200:
            last = answer
    event(f"fitted {fitted}")
    target(fitted)
