"""Heads cut anywhere are one head; what the grammar lets through, llhttp reads the same way."""

from __future__ import annotations

import contextlib
from itertools import pairwise

import httptools
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.edge import states
from proxy.edge.asks import AskReader, Via
from proxy.edge.errors import RefusalError
from proxy.edge.heads import fields_of
from proxy.edge.settings import Identity, Limits
from tests.support.edge import Transcript, answer, post, status_of, table
from tests.support.edge import settings as edge_settings

TOKEN = st.text("abcXYZ019-_.!#$%&'*+^`|~", min_size=1, max_size=12).map(str.encode)
VALUE = st.binary(max_size=30)
LINES = st.lists(
    st.one_of(
        st.tuples(TOKEN, VALUE).map(lambda pair: pair[0] + b": " + pair[1]),
        st.sampled_from(
            (
                *(b"Content-Length: 5", b"Transfer-Encoding: chunked", b"Transfer-Encoding : chunked"),
                *(b"Connection: close", b"Host: edge", b"X: a\r\n b", b"X: a\nY: b", b"TE: trailers"),
            )
        ),
        st.binary(max_size=20),
    ),
    max_size=6,
)


class Oracle:
    def __init__(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []
        self.url = b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value.rstrip(b" \t")))

    def on_url(self, url: bytes) -> None:
        self.url += url


@given(lines=LINES)
@settings(max_examples=600, deadline=None)
def test_a_head_that_is_accepted_is_one_that_llhttp_reads_the_same(lines: list[bytes]) -> None:
    head = b"\r\n".join((b"POST /v1/x?y HTTP/1.1", b"Host: edge", *lines, b"", b""))
    head = head[: head.index(b"\r\n\r\n") + 4]
    try:
        ask = AskReader(Limits(), Identity()).read(head, Via(b"127.0.0.1", b"http", False))
    except RefusalError:
        return
    oracle = Oracle()
    with contextlib.suppress(httptools.HttpParserUpgrade):
        httptools.HttpRequestParser(oracle).feed_data(head)
    assert oracle.fields == fields_of(ask.lines)
    assert oracle.url == ask.target


@given(lines=LINES)
@settings(max_examples=300, deadline=None)
def test_what_goes_upstream_is_itself_an_acceptable_head(lines: list[bytes]) -> None:
    head = b"\r\n".join((b"POST /v1/x HTTP/1.1", b"Host: edge", *lines, b"", b""))
    head = head[: head.index(b"\r\n\r\n") + 4]
    reader = AskReader(Limits(), Identity())
    via = Via(b"127.0.0.1", b"http", False)
    try:
        ask = reader.read(head, via)
    except RefusalError:
        return
    again = reader.read(b"%b%bx-request-id: 1\r\n\r\n" % (ask.block, ask.forwarded), via)
    assert (again.method, again.target, again.length) == (ask.method, ask.target, ask.length)


@given(cuts=st.lists(st.integers(0, 10_000), max_size=10), count=st.integers(1, 4))
@settings(max_examples=200, deadline=None)
def test_pipelined_requests_cut_anywhere_arrive_one_after_the_other_and_whole(
    cuts: list[int], count: int
) -> None:
    bodies = [b"x" * (number * 7) for number in range(count)]
    stream = b"".join(post(body) for body in bodies)
    places = sorted({0, len(stream), *(cut % (len(stream) + 1) for cut in cuts)})
    core = Transcript(edge_settings(table("http://a:1")))
    client, wire = core.client()
    upstream = None
    seen = b""
    for start, end in pairwise(places):
        client.data_received(stream[start:end])
        if upstream is None and core.dials:
            upstream, pool_wire = core.accept()
        while client.ask == states.ASK_DONE:
            assert upstream is not None
            request = pool_wire.take()
            seen += request.partition(b"\r\n\r\n")[2]
            upstream.data_received(answer(request.partition(b"\r\n\r\n")[2]))
    assert client.ask == states.IDLE
    assert len(core.port.records) == count
    assert wire.sent.count(b"HTTP/1.1 200 OK") == count
    assert core.edge.stats()["bugs"] == 0


@given(cuts=st.lists(st.integers(0, 10_000), max_size=10), chunked=st.booleans())
@settings(max_examples=200, deadline=None)
def test_an_answer_cut_anywhere_reaches_the_client_whole(cuts: list[int], chunked: bool) -> None:
    if chunked:
        body = b"5\r\nhello\r\n1\r\n!\r\n0\r\nX-Sum: 1\r\n\r\n"
        said = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body
    else:
        body = b"hello world"
        said = answer(body)
    said = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + said
    places = sorted({0, len(said), *(cut % (len(said) + 1) for cut in cuts)})
    core = Transcript(edge_settings(table("http://a:1")))
    client, wire = core.client()
    client.data_received(post(b"x"))
    upstream, _ = core.accept()
    for start, end in pairwise(places):
        upstream.data_received(said[start:end])
    interim, hints, head, got = wire.sent.split(b"\r\n\r\n", 3)
    assert (status_of(interim), status_of(hints), status_of(head)) == (100, 103, 200)
    assert got == body
    assert upstream in core.router.home.endpoints[0].idle
    assert core.edge.stats()["bugs"] == 0
