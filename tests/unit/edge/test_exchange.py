"""Transcripts: what arrives, what is sent, what is left behind. No socket anywhere."""

from __future__ import annotations

import gc
import math
import weakref
from time import monotonic
from typing import Any

import msgspec
import pytest

from policies.routes import TenantName
from proxy.edge import states
from proxy.edge.client import LAST_ASK_S
from proxy.edge.errors import SettingsError
from proxy.edge.settings import Identity, Limits, Timeouts
from proxy.live import ABORTED_BY
from tests.support.edge import (
    TRUSTED,
    Transcript,
    answer,
    error_of,
    get,
    post,
    settings,
    status_of,
    table,
)


def core(initial: Any = None, **changes: Any) -> Transcript:
    changes.setdefault("identity", TRUSTED)
    return Transcript(settings(initial or table("http://home:1"), **changes))


def canary(**changes: Any) -> Transcript:
    return core(table("http://home:1", "http://candidate:1", routes={"acme": "candidate"}), **changes)


ACME = "X-Tenant: acme"


def test_head_and_first_body_go_upstream_in_one_write() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(post(b"hello"))
    upstream, pool = edge.accept()
    assert pool.events == ["write"]
    upstream.data_received(answer(b"world"))
    assert wire.events == ["write"]
    client.data_received(post(b"again"))
    assert pool.events == ["write", "write"]
    assert not edge.dials


def test_a_chunked_request_that_is_sent_again_still_has_its_body() -> None:
    edge = core()
    client, _ = edge.client()
    request = b"POST /v1/x HTTP/1.1\r\nHost: edge\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    client.data_received(request)
    upstream, pool = edge.accept()
    for _ in range(3):
        assert pool.take().endswith(b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n")
        upstream.data_received(answer(b"world"))
        client.data_received(request)
    assert edge.edge.stats()["refused"] == 0


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_answers_without_a_body_end_at_their_head(status: str) -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(get())
    upstream, _ = edge.accept()
    upstream.data_received(f"HTTP/1.1 {status}\r\nETag: x\r\n\r\n".encode())
    assert client.ask == states.IDLE
    assert upstream.exchange is None
    assert b"ETag: x" in wire.sent


def test_head_answer_keeps_its_content_length_and_has_no_body() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(b"HEAD / HTTP/1.1\r\nHost: edge\r\n\r\n")
    upstream, _ = edge.accept()
    upstream.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")
    assert client.ask == states.IDLE
    assert b"Content-Length: 500" in wire.sent
    # The next answer on that connection is no HEAD's: the same head now announces a body.
    client.data_received(get())
    upstream.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n")
    assert client.ask == states.ASK_DONE
    upstream.data_received(b"x" * 500)
    assert client.ask == states.IDLE
    assert upstream in edge.router.home.endpoints[0].idle


def test_error_to_a_head_request_has_no_body() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(b"HEAD / HTTP/1.1\r\nHost: edge\r\n\r\n")
    edge.refuse_connection()
    assert wire.sent.endswith(b"\r\n\r\n")
    assert status_of(wire.sent) == 502


def test_answer_without_length_is_chunked_for_a_1_1_client() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(get())
    upstream, _ = edge.accept()
    upstream.data_received(b"HTTP/1.0 200 OK\r\n\r\nhello")
    upstream.data_received(b" world")
    upstream.connection_lost(None)
    head, _, body = wire.sent.partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    assert body == b"5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
    assert client.ask == states.IDLE


def test_chunked_answer_is_plain_and_closing_for_a_1_0_client() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(b"GET / HTTP/1.0\r\n\r\n")
    upstream, pool = edge.accept()
    assert pool.sent.startswith(b"GET / HTTP/1.1\r\n")
    upstream.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
    upstream.data_received(b"0\r\n\r\n")
    head, _, body = wire.sent.partition(b"\r\n\r\n")
    assert b"Transfer-Encoding" not in head
    assert b"Connection: close" in head
    assert body == b"hello"
    assert wire.events[-1] == "close"


def test_interim_answers_reach_a_1_1_client_and_not_a_1_0_one() -> None:
    for version, seen in ((b"1.1", True), (b"1.0", False)):
        edge = core()
        client, wire = edge.client()
        client.data_received(b"GET / HTTP/%b\r\nHost: edge\r\n\r\n" % version)
        upstream, _ = edge.accept()
        upstream.data_received(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + answer())
        assert (b"103 Early Hints" in wire.sent) is seen


def test_expectation_goes_to_the_pool_and_its_100_comes_back() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(
        b"POST / HTTP/1.1\r\nHost: edge\r\nContent-Length: 5\r\nExpect: 100-Continue\r\n\r\n"
    )
    upstream, pool = edge.accept()
    assert b"Expect: 100-continue\r\n" in pool.take()
    upstream.data_received(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert wire.take() == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.data_received(b"hello")
    assert pool.take() == b"hello"
    upstream.data_received(answer())
    assert status_of(wire.sent) == 200
    assert client.ask == states.IDLE


def test_final_answer_instead_of_100_closes_since_the_body_may_or_may_not_come() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(
        b"POST / HTTP/1.1\r\nHost: edge\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
    )
    upstream, pool = edge.accept()
    upstream.data_received(answer(b"no", "401 Unauthorized"))
    assert status_of(wire.sent) == 401
    assert b"Connection: close" in wire.sent
    assert wire.events[-1] == "eof"
    assert pool.events[-1] == "abort"
    client.data_received(get("/smuggled"))
    assert not edge.dials


def test_hop_by_hop_fields_stay_here_both_ways() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(
        get("/", "Connection: keep-alive, X-Mine, Host, Authorization", "X-Mine: 1", "Keep-Alive: 5",
            "TE: trailers", "Proxy-Connection: x", "Upgrade: h2c", "HTTP2-Settings: x",
            "Authorization: Bearer k", "Proxy-Authorization: Basic c2VjcmV0", "X-Other: 2")
    )  # fmt: skip
    upstream, pool = edge.accept()
    for gone in (
        b"x-mine",
        b"keep-alive",
        b"te:",
        b"connection",
        b"upgrade",
        b"http2",
        b"proxy-",
        b"c2VjcmV0",
    ):
        assert gone not in pool.sent.lower()
    assert b"Host: edge\r\n" in pool.sent
    assert b"Authorization: Bearer k\r\n" in pool.sent
    assert b"X-Other: 2\r\n" in pool.sent
    upstream.data_received(
        b"HTTP/1.1 200 OK\r\nConnection: X-Theirs\r\nX-Theirs: 1\r\nKeep-Alive: timeout=5\r\n"
        b"X-Request-Id: theirs\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nContent-Length: 0\r\n"
        b"Proxy-Authenticate: Basic\r\nProxy-Authentication-Info: x\r\n\r\n"
    )
    for gone in (b"x-theirs", b"keep-alive", b"theirs", b"connection", b"proxy-"):
        assert gone not in wire.sent.lower()
    assert wire.sent.count(b"Set-Cookie") == 2
    assert wire.sent.lower().count(b"x-request-id") == 1


def test_only_a_trusted_peer_is_believed() -> None:
    said = get(
        "/",
        ACME,
        "X-Request-Id: mine",
        "X-Forwarded-For: 9.9.9.9",
        "X-Forwarded-Proto: https",
        "Forwarded: for=9",
    )
    edge = canary()
    client, wire = edge.client("127.0.0.1")
    client.data_received(said)
    upstream, pool = edge.accept()
    assert upstream.endpoint.host == "candidate"
    assert b"x-request-id: mine\r\n" in pool.sent
    assert b"X-Forwarded-For: 9.9.9.9, 127.0.0.1\r\n" in pool.sent
    assert b"X-Forwarded-Proto: https\r\n" in pool.sent
    assert b"X-Tenant: acme" in pool.sent
    upstream.data_received(answer())
    assert b"x-request-id: mine\r\n" in wire.sent

    client, wire = edge.client("10.0.0.1")
    client.data_received(said)
    upstream, pool = edge.accept()
    assert upstream.endpoint.host == "home"
    assert b"x-request-id: mine" not in pool.sent
    assert b"X-Forwarded-For: 10.0.0.1\r\n" in pool.sent
    assert b"X-Forwarded-Proto: http\r\n" in pool.sent
    assert b"acme" not in pool.sent
    assert b"for=9" not in pool.sent
    upstream.data_received(answer())
    assert [record.tenant for record in edge.port.records] == ["acme", "-"]


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "é"])
def test_a_request_id_in_no_good_form_is_replaced(given: str) -> None:
    edge = core()
    client, _ = edge.client()
    client.data_received(f"GET / HTTP/1.1\r\nHost: edge\r\nX-Request-Id: {given}\r\n\r\n".encode("latin-1"))
    _, pool = edge.accept()
    request_id = pool.sent.split(b"x-request-id: ")[1].split(b"\r\n")[0]
    assert len(request_id) == 36
    assert request_id[14:15] == b"7"


def test_tenant_comes_from_the_hash_of_an_api_key() -> None:
    import hashlib

    identity = Identity(api_keys={hashlib.sha256(b"sk-acme").hexdigest(): "acme"})
    for line, host in (
        ("Authorization: Bearer sk-acme", "candidate"),
        ("authorization: bearer  sk-acme", "candidate"),
        ("X-Api-Key: sk-acme", "candidate"),
        ("Authorization: Bearer sk-other", "home"),
        ("Authorization: Basic sk-acme", "home"),
        (ACME, "home"),
    ):
        edge = canary(identity=identity)
        client, _ = edge.client()
        client.data_received(get("/", line))
        upstream, _ = edge.accept()
        assert upstream.endpoint.host == host, line


def test_a_tenant_that_nobody_configured_is_unknown_and_leaves_no_name_behind() -> None:
    edge = canary(identity=msgspec.structs.replace(TRUSTED, api_keys={"ab" * 32: TenantName("initech")}))
    client, _ = edge.client()
    named = ("globex", "initech", "acme", "acme2", "Acme", "x" * 5000, "\xe9", "-", "")
    for name in named:
        client.data_received(get("/", f"X-Tenant: {name}"))
        exchange = client.exchange
        assert exchange is not None
        upstream = exchange.upstream or edge.accept()[0]
        assert upstream.endpoint.host == ("candidate" if name == "acme" else "home")
        upstream.data_received(answer())
    assert [record.tenant for record in edge.port.records] == ["globex", "initech", "acme", *["-"] * 6]


def test_tenants_of_a_new_table_are_known_with_it() -> None:
    edge = canary()
    client, _ = edge.client()
    for epoch, tenant in ((2, "-"), (3, "umbrella")):
        client.data_received(get("/", "X-Tenant: umbrella"))
        upstream, _ = edge.accept()
        upstream.data_received(answer())
        assert edge.port.records[-1].tenant == tenant
        routes = {"umbrella": "candidate"}
        edge.router(table("http://home:1", "http://candidate:1", epoch=epoch, routes=routes))


# -- trouble ---------------------------------------------------------------------------------------

RETRIED, CANARY = 1, 2


def answered_by_home(edge: Transcript, wire: Any, body: bytes) -> None:
    upstream, pool = edge.accept()
    assert upstream.endpoint.host == "home"
    assert pool.sent.endswith(b"\r\n\r\n" + body)
    upstream.data_received(answer(b"from home"))
    assert status_of(wire.sent) == 200
    assert wire.sent.endswith(b"from home")
    (record,) = edge.port.records
    assert (record.pool, record.status) == ("home", 200)
    assert record.flags & (RETRIED | CANARY) == RETRIED | CANARY
    assert edge.edge.stats()["retried_home"] == 1


def test_candidate_that_refuses_is_retried_on_home() -> None:
    edge = canary()
    client, wire = edge.client()
    client.data_received(post(b"hello", "/v1/completions", ACME))
    edge.refuse_connection()
    answered_by_home(edge, wire, b"hello")


@pytest.mark.parametrize("status", [502, 503, 504])
def test_candidate_that_answers_badly_is_retried_on_home(status: int) -> None:
    edge = canary()
    client, wire = edge.client()
    client.data_received(post(b"hello", "/v1/completions", ACME))
    upstream, pool = edge.accept()
    upstream.data_received(answer(b"bad", f"{status} Bad"))
    assert pool.events[-1] == "abort"
    assert wire.sent == b""
    answered_by_home(edge, wire, b"hello")


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", b"nonsense\r\n\r\n"])
def test_candidate_that_breaks_off_before_its_head_is_retried_on_home(said: bytes) -> None:
    edge = canary()
    client, wire = edge.client()
    client.data_received(post(b"hello", "/v1/completions", ACME))
    upstream, _ = edge.accept()
    if said:
        upstream.data_received(said)
    if upstream.exchange is not None:
        upstream.connection_lost(ConnectionResetError())
    answered_by_home(edge, wire, b"hello")


def test_candidate_silent_past_the_first_byte_timeout_is_retried_on_home() -> None:
    edge = canary()
    client, wire = edge.client()
    client.data_received(post(b"hello", "/v1/completions", ACME))
    edge.accept()
    edge.sweep(601.0)
    answered_by_home(edge, wire, b"hello")


def test_retry_continues_with_a_body_that_is_still_arriving() -> None:
    edge = canary()
    client, wire = edge.client()
    client.data_received(post(b"hello world", "/v1/completions", ACME)[:-6])
    upstream, _ = edge.accept()
    upstream.connection_lost(ConnectionResetError())
    assert not wire.reading, "nothing is read while a connection is being opened"
    home, pool = edge.accept()
    assert wire.reading
    assert pool.take().endswith(b"hello")
    client.data_received(b" world")
    assert pool.take() == b" world"
    home.data_received(answer())
    assert status_of(wire.sent) == 200


def test_a_500_of_the_candidate_is_its_answer() -> None:
    edge = canary()
    client, wire = edge.client()
    client.data_received(post(b"hello", "/v1/completions", ACME))
    upstream, _ = edge.accept()
    upstream.data_received(answer(b"oops", "500 Internal Server Error"))
    assert status_of(wire.sent) == 500
    (record,) = edge.port.records
    assert (record.pool, record.status, record.flags) == ("candidate", 500, CANARY)


def ejected_canary() -> Transcript:
    """Its candidate could not be connected to a moment ago."""
    edge = canary()
    client, wire = edge.client()
    client.data_received(post(b"hello", "/v1/completions", ACME))
    edge.sweep(after_s=100.0)  # a connection that never stands
    answered_by_home(edge, wire, b"hello")
    edge.port.records.clear()
    edge.dials.clear()
    return edge


def test_candidate_that_cannot_be_connected_to_costs_the_next_request_no_wait() -> None:
    edge = ejected_canary()
    client, wire = edge.client()
    client.data_received(post(b"hello", "/v1/completions", ACME))
    assert not edge.dials
    (upstream,) = (one.upstream for one in [client.exchange] if one is not None)
    assert upstream is not None
    assert upstream.endpoint.host == "home"
    upstream.data_received(answer(b"from home"))
    assert wire.sent.endswith(b"from home")
    (record,) = edge.port.records
    assert (record.pool, record.status, record.flags) == ("home", 200, CANARY | RETRIED)
    assert edge.edge.stats()["retried_home"] == 2


def test_one_request_a_back_off_finds_out_whether_the_candidate_is_back() -> None:
    edge = ejected_canary()
    (candidate,) = (pool for pool in edge.router.pools() if pool.name == "candidate")
    candidate.endpoints[0].health.ejected_until = 1e-9  # its time is over
    clients = [edge.client()[0] for _ in range(3)]
    for client in clients:
        client.data_received(post(b"hello", "/v1/completions", ACME))
    hosts = [
        client.exchange.endpoint.host for client in clients if client.exchange and client.exchange.endpoint
    ]
    assert hosts == ["candidate", "home", "home"]
    probe = next(dial for dial in edge.dials if dial.endpoint.host == "candidate")
    edge.dials.remove(probe)
    edge.dials.insert(0, probe)
    upstream, _ = edge.accept()  # it stands, which may be said of a port in front of nothing
    fourth, _ = edge.client()
    fourth.data_received(post(b"hello", "/v1/completions", ACME))
    assert fourth.exchange is not None
    assert fourth.exchange.pool is edge.router.home
    upstream.data_received(answer())  # it is
    fourth, _ = edge.client()
    fourth.data_received(post(b"hello", "/v1/completions", ACME))
    assert fourth.exchange is not None
    assert fourth.exchange.pool is candidate


def test_ejected_candidate_is_still_tried_when_home_is_no_better() -> None:
    edge = ejected_canary()
    edge.router.home.endpoints[0].health.failed(monotonic())
    client, _ = edge.client()
    client.data_received(post(b"hello", "/v1/completions", ACME))
    assert [dial.endpoint.host for dial in edge.dials] == ["candidate"]


def test_home_is_tried_once_and_then_the_client_hears_of_it() -> None:
    edge = canary()
    client, wire = edge.client()
    client.data_received(post(b"hello", "/v1/completions", ACME))
    edge.refuse_connection()
    edge.refuse_connection()
    assert status_of(wire.sent) == 502
    assert error_of(wire.sent.partition(b"\r\n\r\n")[2])["type"] == "server_error"
    assert not edge.dials


def test_a_body_that_was_not_kept_is_not_retried() -> None:
    edge = canary(limits=Limits(retry_body_bytes=10))
    client, wire = edge.client()
    client.data_received(b"POST / HTTP/1.1\r\nHost: edge\r\nX-Tenant: acme\r\nContent-Length: 2000\r\n\r\n")
    upstream, _ = edge.accept()
    client.data_received(b"x" * 1000)
    upstream.data_received(answer(b"bad", "503 Service Unavailable"))
    assert status_of(wire.sent) == 503
    assert not edge.dials


HEAD_2000 = b"POST / HTTP/1.1\r\nHost: edge\r\nX-Tenant: acme\r\nContent-Length: 2000\r\n\r\n"
HEAD_CHUNKED = b"POST / HTTP/1.1\r\nHost: edge\r\nX-Tenant: acme\r\nTransfer-Encoding: chunked\r\n\r\n"
ARRIVALS = {
    "with its head": (HEAD_2000 + b"x" * 2000, b""),
    "half with its head": (HEAD_2000 + b"x" * 9, b""),
    "behind its head": (HEAD_2000, b"x" * 2000),
    "not yet": (HEAD_2000, b""),
    "in chunks": (HEAD_CHUNKED + b"7d0\r\n" + b"x" * 2000 + b"\r\n0\r\n\r\n", b""),
}


@pytest.mark.parametrize("while_dialing", [False, True], ids=["connected", "dialing"])
@pytest.mark.parametrize("arrives", ARRIVALS)
def test_a_body_larger_than_may_be_sent_again_is_not_however_it_arrives(
    arrives: str, while_dialing: bool
) -> None:
    edge = canary(limits=Limits(retry_body_bytes=1999))
    client, wire = edge.client()
    first, second = ARRIVALS[arrives]
    client.data_received(first)
    if while_dialing and second:
        client.data_received(second)
    upstream, _ = edge.accept()
    if not while_dialing and second:
        client.data_received(second)
    upstream.data_received(answer(b"bad", "503 Service Unavailable"))
    assert not edge.dials
    assert status_of(wire.sent) == 503
    assert edge.edge.stats()["retried_home"] == 0


@pytest.mark.parametrize("arrives", ARRIVALS)
def test_no_limit_keeps_what_was_sent_nowhere_from_home(arrives: str) -> None:
    edge = canary(limits=Limits(retry_body_bytes=0))
    client, _ = edge.client()
    for piece in filter(None, ARRIVALS[arrives]):
        client.data_received(piece)
    edge.refuse_connection()
    assert [dial.endpoint.host for dial in edge.dials] == ["home"]
    home, wire = edge.accept()
    assert home.endpoint.host == "home"
    assert wire.sent.count(b"x" * 9) == b"".join(ARRIVALS[arrives]).count(b"x" * 9)


@pytest.mark.parametrize(
    ("request_", "again"),
    [(get("/v1/models", ACME), True), (post(b"h", "/v1/x", ACME), False), (HEAD_CHUNKED, False)],
    ids=["no body", "a body", "chunks to come"],
)
def test_where_no_body_may_be_sent_again_only_those_without_are(request_: bytes, again: bool) -> None:
    edge = canary(limits=Limits(retry_body_bytes=0))
    client, wire = edge.client()
    client.data_received(request_)
    upstream, _ = edge.accept()
    upstream.data_received(answer(b"bad", "502 Bad Gateway"))
    assert [dial.endpoint.host for dial in edge.dials] == (["home"] if again else [])
    assert again or status_of(wire.sent) == 502


def test_a_connection_that_was_stale_gets_its_request_again_whatever_the_limit() -> None:
    """That is no second try: the first was written to nobody."""
    edge = canary(limits=Limits(retry_body_bytes=0))
    client, wire = edge.client()
    client.data_received(post(b"one", "/v1/x", ACME))
    upstream, _ = edge.accept()
    upstream.data_received(answer(b"first"))
    client.data_received(post(b"two", "/v1/x", ACME))
    upstream.connection_lost(None)
    again, pool = edge.accept()
    assert again.endpoint.host == "candidate"
    assert pool.sent.endswith(b"two")
    again.data_received(answer(b"second"))
    assert wire.sent.endswith(b"second")


def test_a_502_of_home_is_its_answer() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(post(b"hello"))
    upstream, _ = edge.accept()
    upstream.data_received(answer(b"bad", "502 Bad Gateway"))
    assert wire.sent.endswith(b"bad")


def test_stale_idle_connection_is_replaced_once_by_a_fresh_one() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(post(b"one"))
    upstream, _ = edge.accept()
    upstream.data_received(answer())
    wire.take()
    client.data_received(post(b"two"))
    upstream.connection_lost(ConnectionResetError())
    fresh, pool = edge.accept()
    assert pool.sent.endswith(b"two")
    fresh.connection_lost(ConnectionResetError())
    assert status_of(wire.sent) == 502
    assert edge.edge.stats()["stale_retries"] == 1
    assert not edge.dials


def test_a_reused_connection_that_already_answered_a_byte_is_not_replaced() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(post(b"one"))
    upstream, _ = edge.accept()
    upstream.data_received(answer())
    wire.take()
    client.data_received(post(b"two"))
    upstream.data_received(b"H")
    upstream.connection_lost(ConnectionResetError())
    assert status_of(wire.sent) == 502
    assert not edge.dials


def test_idle_connection_that_speaks_or_closes_is_not_used_again() -> None:
    for event in ("speaks", "closes"):
        edge = core()
        client, _ = edge.client()
        client.data_received(get())
        upstream, pool = edge.accept()
        upstream.data_received(answer())
        if event == "speaks":
            upstream.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            assert pool.events[-1] == "abort"
        upstream.connection_lost(None)
        client.data_received(get())
        assert len(edge.dials) == 1, event


def test_idle_connection_is_not_given_out_once_its_end_was_read() -> None:
    edge = core()
    client, _ = edge.client()
    client.data_received(get())
    upstream, _ = edge.accept()
    upstream.data_received(answer())
    assert upstream.eof_received() is False
    client.data_received(get())
    assert len(edge.dials) == 1


def test_bytes_behind_an_answer_are_dropped_with_their_connection() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(get())
    upstream, pool = edge.accept()
    upstream.data_received(answer(b"ok") + answer(b"poisoned"))
    assert wire.take().endswith(b"ok")
    assert pool.events[-1] == "abort"
    client.data_received(get())
    assert len(edge.dials) == 1
    assert wire.sent == b""


BAD_ANSWERS = {
    "length-and-encoding": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    "two-lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
    "negative-length": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
    "gzip-coding": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
    "coding-in-1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    "coding-in-204": b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
    "status-600": b"HTTP/1.1 600 What\r\n\r\n",
    "status-words": b"HTTP/1.1 OK\r\n\r\n",
    "status-two-digits": b"HTTP/1.1 20 OK\r\n\r\n",
    "http2": b"HTTP/2.0 200 OK\r\n\r\n",
    "fold": b"HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n",
    "bare-lf": b"HTTP/1.1 200 OK\r\nX: a\nY: b\r\n\r\n",
    "nul": b"HTTP/1.1 200 OK\r\nX: \x00\r\n\r\n",
    "space-before-colon": b"HTTP/1.1 200 OK\r\nX : a\r\n\r\n",
    "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
    "unasked-101": b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    "endless-interim": b"HTTP/1.1 100 Continue\r\n\r\n" * 20,
    "too-large": b"HTTP/1.1 200 OK\r\nX: " + b"a" * 70_000,
    "too-many-headers": b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 101 + b"\r\n",
}


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_answer_that_breaks_http_is_502(name: str) -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(get())
    upstream, pool = edge.accept()
    upstream.data_received(BAD_ANSWERS[name])
    final = wire.sent[wire.sent.index(b"HTTP/1.1 502") :]
    assert error_of(final.partition(b"\r\n\r\n")[2])["code"] == "bad_answer"
    assert pool.events[-1] == "abort"
    assert edge.edge.stats()["bugs"] == 0


def test_bad_chunk_in_an_answer_breaks_off_instead_of_ending_well() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(get())
    upstream, pool = edge.accept()
    upstream.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
    upstream.data_received(b"0x5\r\n")
    assert wire.events[-1] == "close"
    assert not wire.sent.endswith(b"0\r\n\r\n")
    assert pool.events[-1] == "abort"
    assert edge.port.records[0].aborted_by == 2


def test_upstream_death_in_mid_body_is_visible() -> None:
    for head in (b"Content-Length: 100", b"Transfer-Encoding: chunked"):
        edge = core()
        client, wire = edge.client()
        client.data_received(get())
        upstream, _ = edge.accept()
        upstream.data_received(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n5\r\nhello\r\n" % head)
        upstream.connection_lost(None)
        assert wire.closing
        assert not wire.sent.endswith(b"0\r\n\r\n")
        (record,) = edge.port.records
        assert (record.status, record.aborted_by) == (200, 2)


def test_client_gone_aborts_the_upstream_and_is_recorded() -> None:
    for state in ("dialing", "body", "waiting", "streaming"):
        edge = core()
        client, _ = edge.client()
        client.data_received(post(b"hello")[: -3 if state == "body" else None])
        if state == "dialing":
            (dial,) = edge.dials
            client.connection_lost(None)
            assert dial.cancelled
        else:
            upstream, pool = edge.accept()
            if state == "streaming":
                upstream.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx")
            client.connection_lost(ConnectionResetError())
            assert pool.events[-1] == "abort"
        (record,) = edge.port.records
        assert record.aborted_by == 1
        assert record.status == (200 if state == "streaming" else 0)
        assert math.isnan(record.first_byte_s) == (state != "streaming")
        assert edge.router.home.endpoints[0].in_flight == 0


# -- time ------------------------------------------------------------------------------------------


def test_slow_head_is_408() -> None:
    edge = core(timeouts=Timeouts(header_s=10.0))
    client, wire = edge.client()
    client.data_received(b"GET / HT")
    edge.sweep(9.0)
    client.data_received(b"T")  # a trickle does not put it off
    edge.sweep(10.1)
    assert status_of(wire.sent) == 408
    (record,) = edge.port.records
    assert (record.status, record.aborted_by) == (408, 3)
    assert len(wire.sent.partition(b"\r\nx-request-id: ")[2].partition(b"\r\n")[0]) == 36


def test_idle_connection_is_closed_without_a_word() -> None:
    edge = core()
    _, wire = edge.client()
    edge.sweep(76.0)
    assert wire.closing
    assert wire.sent == b""
    assert edge.port.records == []


def test_stalled_body_is_408_and_the_upstream_is_aborted() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(post(b"hello")[:-2])
    _, pool = edge.accept()
    edge.sweep(301.0)
    assert status_of(wire.sent) == 408
    assert pool.events[-1] == "abort"


def test_connect_timeout_is_504_and_ejects() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(get())
    edge.sweep(3.1)
    assert status_of(wire.sent) == 504
    assert edge.dials[0].cancelled


def test_no_first_byte_is_504() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(get())
    edge.accept()
    edge.sweep(599.0)
    assert wire.sent == b""
    edge.sweep(601.0)
    assert status_of(wire.sent) == 504
    assert edge.port.records[0].aborted_by == 3


def test_silence_in_mid_stream_breaks_off() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(get())
    upstream, pool = edge.accept()
    upstream.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
    edge.sweep(299.0)
    upstream.data_received(b"1\r\ny\r\n")
    edge.sweep(301.0)
    assert not wire.closing, "a piece puts it off"
    edge.sweep(299.0 + 301.0)
    assert wire.closing
    assert pool.events[-1] == "abort"


# -- pool ------------------------------------------------------------------------------------------


def test_connect_failure_goes_to_another_endpoint_and_ejects_the_first() -> None:
    edge = core(table(("http://a:1", "http://b:1")))
    client, wire = edge.client()
    client.data_received(post(b"hello"))
    failed = edge.dials[0].endpoint
    edge.refuse_connection()
    upstream, pool = edge.accept()
    assert upstream.endpoint is not failed
    assert pool.sent.endswith(b"hello")
    upstream.data_received(answer(b"", "200 OK", "Connection: close"))
    assert status_of(wire.sent) == 200
    for _ in range(4):  # the ejected one is passed over
        client.data_received(get())
        again, _ = edge.accept()
        assert again.endpoint is upstream.endpoint
        again.data_received(answer(b"", "200 OK", "Connection: close"))
    assert edge.edge.stats()["connect_failures"] == 1


def test_all_endpoints_ejected_are_still_tried() -> None:
    edge = core(table(("http://a:1", "http://b:1")))
    client, wire = edge.client()
    client.data_received(get())
    edge.refuse_connection()
    edge.refuse_connection()
    assert status_of(wire.sent) == 502
    client, wire = edge.client()
    client.data_received(get())
    upstream, _ = edge.accept()
    upstream.data_received(answer())
    assert status_of(wire.sent) == 200


def test_least_loaded_endpoint_is_chosen_in_turn() -> None:
    edge = core(table(("http://a:1", "http://b:1", "http://c:1")))
    for _ in range(6):
        client, _ = edge.client()
        client.data_received(get())
    hosts = sorted(dial.endpoint.host for dial in edge.dials)
    assert hosts == ["a", "a", "b", "b", "c", "c"]


def test_pool_without_endpoints_is_503() -> None:
    edge = core(table(()))
    client, wire = edge.client()
    client.data_received(get())
    assert status_of(wire.sent) == 503


# -- back-pressure ---------------------------------------------------------------------------------


def test_slow_client_pauses_its_pool_and_slow_pool_its_client() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(post(b"hello")[:-2])
    upstream, pool = edge.accept()
    upstream.pause_writing()
    assert not wire.reading
    upstream.resume_writing()
    assert wire.reading
    client.data_received(b"lo")
    upstream.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nx")
    client.pause_writing()
    assert not pool.reading
    client.resume_writing()
    assert pool.reading


def test_connection_goes_back_to_the_pool_reading() -> None:
    edge = core()
    client, _ = edge.client()
    client.data_received(get())
    upstream, pool = edge.accept()
    client.pause_writing()
    upstream.data_received(answer(b"x"))
    assert pool.reading
    # A client that is still full pauses the next one it gets.
    client.data_received(get())
    assert not pool.reading


def test_pipelined_requests_beyond_the_buffer_pause_the_client() -> None:
    edge = core(limits=Limits(buffer_bytes=200))
    client, wire = edge.client()
    client.data_received(get())
    client.data_received(get() * 10)
    assert not wire.reading
    upstream, _ = edge.accept()
    for _ in range(11):
        upstream.data_received(answer())
    assert wire.reading
    assert wire.sent.count(b"200 OK") == 11


# -- tunnels ---------------------------------------------------------------------------------------

WEBSOCKET = get("/ws", "Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x", ACME)
SWITCHED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


def test_websocket_is_a_tunnel_both_ways_from_the_first_byte() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(WEBSOCKET + b"early")
    upstream, pool = edge.accept()
    assert b"Connection: Upgrade\r\nUpgrade: websocket\r\n" in pool.take()
    upstream.data_received(SWITCHED + b"hi")
    head, _, first = wire.take().partition(b"\r\n\r\n")
    assert status_of(head) == 101
    assert b"Upgrade: websocket" in head
    assert first == b"hi"
    assert pool.take() == b"early"
    client.data_received(b"\x00GET / HTTP/1.1\r\n\r\n")
    assert pool.take() == b"\x00GET / HTTP/1.1\r\n\r\n"
    upstream.connection_lost(None)
    assert wire.closing
    (record,) = edge.port.records
    assert (record.status, record.aborted_by) == (101, 0)


def test_the_last_bytes_of_a_tunnel_are_flushed_to_the_other_side() -> None:
    for who in ("client", "upstream"):
        edge = core()
        client, wire = edge.client()
        client.data_received(WEBSOCKET)
        upstream, pool = edge.accept()
        upstream.data_received(SWITCHED)
        if who == "client":
            client.data_received(b"bye")
            client.connection_lost(None)
            assert pool.events[-2:] == ["write", "close"]
        else:
            upstream.data_received(b"bye")
            upstream.connection_lost(None)
            assert wire.events[-2:] == ["write", "close"]


def test_refused_websocket_is_an_ordinary_answer() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(WEBSOCKET)
    upstream, _ = edge.accept()
    upstream.data_received(answer(b"no", "403 Forbidden"))
    assert status_of(wire.sent) == 403
    assert client.ask == states.IDLE


@pytest.mark.parametrize("protocol", ["h2c", "websocket, h2c", "TLS/1.0", "WebSocketX"])
def test_no_other_upgrade_is_passed_on(protocol: str) -> None:
    edge = core()
    client, _ = edge.client()
    client.data_received(
        get("/", "Connection: Upgrade, HTTP2-Settings", f"Upgrade: {protocol}", "HTTP2-Settings: A")
    )
    _, pool = edge.accept()
    assert b"pgrade" not in pool.sent
    assert b"settings" not in pool.sent.lower()


def test_a_flip_closes_tunnels_after_a_grace_and_takes_the_next_request_of_a_kept_connection() -> None:
    edge = canary()
    tunnel, wire = edge.client()
    tunnel.data_received(WEBSOCKET)
    upstream, _ = edge.accept()
    assert upstream.endpoint.host == "candidate"
    upstream.data_received(SWITCHED)
    other, _ = edge.client()
    other.data_received(get("/", ACME))
    candidate, _ = edge.accept()
    candidate.data_received(answer())

    edge.router(table("http://home:1", "http://candidate:1", epoch=2))
    other.data_received(get("/", ACME))
    home, _ = edge.accept()
    assert home.endpoint.host == "home"
    tunnel.data_received(b"still here")
    edge.sweep(9.0)
    assert not wire.closing
    edge.sweep(10.1)
    assert wire.closing


def test_no_cookie_session_or_pipelined_request_keeps_a_tenant_on_the_candidate() -> None:
    """Stickiness is by tenant alone: what a client brought back from there means nothing after the flip."""
    edge = canary()
    client, _ = edge.client()
    session = "Cookie: pool=candidate; session=abc", "X-Session-Id: abc", "X-Forwarded-Host: candidate"
    client.data_received(get("/", ACME, *session))
    candidate, _ = edge.accept()
    assert candidate.endpoint.host == "candidate"
    client.data_received(get("/", ACME, *session))  # pipelined: read before the flip, asked after it
    edge.router(table("http://home:1", "http://candidate:1", epoch=2))
    candidate.data_received(answer())
    home, wire = edge.accept()
    assert home.endpoint.host == "home"
    assert b"session=abc" in wire.sent, "it is passed on, not obeyed"


@pytest.mark.parametrize("cut", [None, 5, 300], ids=["one read", "early cut", "late cut"])
def test_an_answers_head_past_the_limit_is_refused_however_it_arrives(cut: int | None) -> None:
    edge = core(limits=Limits(head_bytes=200))
    client, wire = edge.client()
    client.data_received(get())
    upstream, pool = edge.accept()
    whole = answer(b"{}", "200 OK", "X-Long: " + "y" * 300)
    for piece in (whole,) if cut is None else (whole[:cut], whole[cut:]):
        if not pool.closing:
            upstream.data_received(piece)
    assert status_of(wire.sent) == 502
    assert "the response head is too large" in error_of(wire.sent.partition(b"\r\n\r\n")[2])["message"]


@pytest.mark.parametrize("cut", [None, 20], ids=["one read", "two reads"])
def test_an_answers_head_has_its_limit_to_the_byte(cut: int | None) -> None:
    whole = answer(b"{}", "200 OK", "X-Long: " + "y" * 300)
    for spare, status in ((0, 200), (-1, 502)):
        edge = core(limits=Limits(head_bytes=len(whole) - 2 + spare))
        client, wire = edge.client()
        client.data_received(get())
        upstream, _ = edge.accept()
        for piece in (whole,) if cut is None else (whole[:cut], whole[cut:]):
            upstream.data_received(piece)
        assert status_of(wire.sent) == status


# -- a flip where nothing may finish ----------------------------------------------------------------


def flip(edge: Transcript, *, epoch: int = 2, **rest: Any) -> None:
    rest.setdefault("aborts", ("candidate",))
    edge.router(table("http://home:1", "http://candidate:1", epoch=epoch, **rest))


@pytest.mark.parametrize("at", ["dialing", "waiting", "half asked", "interim answer"])
def test_a_request_without_an_answer_is_answered_by_home_where_a_flip_aborts(at: str) -> None:
    edge = canary()
    client, wire = edge.client()
    whole = post(b"hello", "/v1/completions", ACME)
    client.data_received(whole[:-2] if at == "half asked" else whole)
    if at != "dialing":
        upstream, pool = edge.accept()
        assert upstream.endpoint.host == "candidate"
        if at == "interim answer":
            upstream.data_received(b"HTTP/1.1 102 Processing\r\n\r\n")
    flip(edge)
    if at != "dialing":
        assert pool.closing
    home, home_wire = edge.accept()
    assert home.endpoint.host == "home"
    if at == "half asked":
        client.data_received(whole[-2:])
    assert home_wire.sent.endswith(b"hello")
    home.data_received(answer(b"from home"))
    assert wire.sent.endswith(b"from home")
    assert client.ask == states.IDLE, "its connection lives on"
    (record,) = edge.port.records
    assert (record.pool, record.status, ABORTED_BY[record.aborted_by]) == ("home", 200, "flip")
    assert all(endpoint.in_flight == 0 for pool in edge.router.pools() for endpoint in pool.endpoints)


def test_an_answer_under_way_is_broken_off_where_a_flip_aborts() -> None:
    edge = canary()
    client, wire = edge.client()
    client.data_received(post(b"hello", "/v1/completions", ACME))
    upstream, pool = edge.accept()
    upstream.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
    flip(edge)
    assert pool.closing
    assert wire.closing
    assert not wire.sent.endswith(b"0\r\n\r\n"), "no client takes it for whole"
    (record,) = edge.port.records
    assert (record.pool, record.status, ABORTED_BY[record.aborted_by]) == ("candidate", 200, "flip")


def test_a_request_that_was_not_kept_is_refused_in_words_where_a_flip_aborts() -> None:
    edge = canary(limits=Limits(retry_body_bytes=4))
    client, wire = edge.client()
    whole = post(b"hello, hello", "/v1/completions", ACME)
    client.data_received(whole[:-12])
    edge.accept()
    client.data_received(whole[-12:])
    flip(edge)
    assert status_of(wire.sent) == 503
    assert error_of(wire.sent.partition(b"\r\n\r\n")[2])["code"] == "sent_elsewhere"
    assert ABORTED_BY[edge.port.records[0].aborted_by] == "flip"


def test_a_whole_request_past_the_limit_is_refused_in_words_where_a_flip_aborts() -> None:
    edge = canary(limits=Limits(retry_body_bytes=4))
    client, wire = edge.client()
    client.data_received(post(b"hello", "/v1/completions", ACME))
    edge.accept()
    flip(edge)
    assert not edge.dials
    assert status_of(wire.sent) == 503
    assert error_of(wire.sent.partition(b"\r\n\r\n")[2])["code"] == "sent_elsewhere"


def test_a_flip_that_aborts_leaves_everybody_else_alone() -> None:
    """Another tenant on the same candidate, those at home, and any flip that is not this tenant's."""
    routes = {"acme": "candidate", "globex": "candidate"}
    edge = core(table("http://home:1", "http://candidate:1", routes=routes, aborts=("candidate",)))
    wires = []
    for tenant in ("acme", "globex", "unknown"):
        client, wire = edge.client()
        client.data_received(post(b"hello", "/v1/completions", f"X-Tenant: {tenant}"))
        upstream, _ = edge.accept()
        upstream.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        wires.append(wire)
    flip(edge, routes=routes)
    assert not any(wire.closing for wire in wires)
    flip(edge, epoch=3, routes={"globex": "candidate"})
    assert [wire.closing for wire in wires] == [True, False, False]
    # The home moves to the candidate: who was there stays there, and what home still answers may finish.
    flip(edge, epoch=4, to="candidate")
    assert [wire.closing for wire in wires] == [True, False, False]
    flip(edge, epoch=5)
    assert [wire.closing for wire in wires] == [True, True, False]


def test_a_judge_that_is_away_breaks_nothing_off() -> None:
    edge = canary(judge="unix:/nobody", judge_grace_s=10.0)
    flip(edge, routes={"acme": "candidate"})
    client, wire = edge.client()
    client.data_received(post(b"hello", "/v1/completions", ACME))
    upstream, _ = edge.accept()
    upstream.data_received(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
    edge.sweep(11.0)
    assert edge.router.in_grace_home
    assert not wire.closing


# -- the end ---------------------------------------------------------------------------------------


def test_a_worker_that_drains_lets_the_busy_finish_and_the_idle_ask_once_more() -> None:
    edge = core()
    used, used_wire = edge.client()
    used.data_received(get())
    upstream, _ = edge.accept()
    busy, busy_wire = edge.client()
    busy.data_received(get())
    running, _ = edge.accept()
    upstream.data_received(answer())
    fresh, fresh_wire = edge.client()
    silent, silent_wire = edge.client()
    edge.edge.drain()
    late, late_wire = edge.client()  # accepted before, made by the loop only now
    assert not any(wire.closing for wire in (used_wire, fresh_wire, silent_wire, busy_wire, late_wire))
    running.data_received(answer())
    for client, wire in ((used, used_wire), (fresh, fresh_wire), (late, late_wire)):
        client.data_received(get())
        upstream, _ = edge.accept()
        upstream.data_received(answer())
        assert wire.closing
    for wire in (used_wire, fresh_wire, busy_wire, late_wire):
        assert bytes(wire.sent).count(b"Connection: close") == 1
    edge.sweep(monotonic() + LAST_ASK_S + 0.1)
    assert silent_wire.closing
    assert silent.ask == states.IDLE
    assert edge.router.home.endpoints[0].idle == []


def test_cut_at_the_end_of_a_drain_is_recorded_as_such() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(get())
    _, pool = edge.accept()
    client.cut()
    assert wire.events[-1] == pool.events[-1] == "abort"
    assert edge.port.records[0].aborted_by == 4


def test_connection_past_the_limit_is_503() -> None:
    edge = core(limits=Limits(connections=1))
    edge.client()
    _, wire = edge.client()
    assert status_of(wire.sent) == 503
    assert b"Retry-After" in wire.sent


def test_client_that_asks_to_close_is_closed() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(get("/", "Connection: close"))
    upstream, pool = edge.accept()
    assert b"close" not in pool.sent
    upstream.data_received(answer())
    assert b"Connection: close" in wire.sent
    assert wire.events[-1] == "close"
    assert upstream in edge.router.home.endpoints[0].idle


def test_every_state_and_event_of_the_tables_is_named_and_reachable() -> None:
    for rows in (states.ASK, states.ANSWER):
        targets = {target for row in rows.values() for target in row.values()}
        assert targets <= set(rows)
        assert set(rows) <= set(states.NAMES)
        assert {event for row in rows.values() for event in row} <= set(states.NAMES)
    first = (states.IDLE, states.NONE)
    for start, rows in zip(first, (states.ASK, states.ANSWER), strict=True):
        seen = {start}
        while new := {target for state in seen for target in rows[state].values()} - seen:
            seen |= new
        assert seen == set(rows)


def test_a_1_0_request_without_host_gets_an_empty_one_upstream() -> None:
    edge = core()
    client, _ = edge.client()
    client.data_received(b"GET / HTTP/1.0\r\n\r\n")
    _, pool = edge.accept()
    assert b"\r\nHost:\r\n" in pool.sent


def test_an_answer_that_overtakes_a_full_upstream_does_not_leave_the_client_paused() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(post(b"hello"))
    upstream, pool = edge.accept()
    upstream.pause_writing()
    assert not wire.reading
    upstream.data_received(answer())
    assert wire.reading
    assert pool.events[-1] == "abort", "what it has not read yet would stand in front of the next request"
    client.data_received(get())
    assert len(edge.dials) == 1


def test_an_upstream_idle_for_a_minute_is_closed() -> None:
    edge = core()
    client, _ = edge.client()
    client.data_received(get())
    upstream, pool = edge.accept()
    upstream.data_received(answer())
    edge.sweep(59.0)
    assert not pool.closing
    edge.sweep(61.0)
    assert pool.closing
    client.data_received(get())
    assert len(edge.dials) == 1


def test_a_closing_client_that_still_reads_is_not_cut_short() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(get("/", "Connection: close"))
    upstream, _ = edge.accept()
    wire.buffered = 50_000
    upstream.data_received(answer(b"x" * 50_000))
    assert wire.events[-1] == "close"
    edge.sweep(200.0)
    assert "abort" not in wire.events
    assert not wire.aborted
    edge.sweep(301.0)
    assert wire.aborted


def test_a_bug_breaks_off_one_connection_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    edge = core()
    other, other_wire = edge.client()
    client, wire = edge.client()
    client.data_received(get())
    upstream, pool = edge.accept()
    assert client.exchange is not None
    client.exchange.answer = states.ANSWER_DONE  # a state in which no first byte may come
    upstream.data_received(answer())
    assert wire.events[-1] == "abort"
    assert pool.events[-1] == "abort"
    assert edge.edge.stats()["bugs"] == 1
    assert "bug in the edge" in caplog.text
    other.data_received(get())
    survivor, _ = edge.accept()
    survivor.data_received(answer())
    assert status_of(other_wire.sent) == 200


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        ({"trusted_peers": ("10.0.0.0/8", "nonsense")}, r"identity\.trusted_peers\[1\]: 'nonsense'"),
        ({"trusted_peers": ("10.0.0.1/8",)}, r"identity\.trusted_peers\[0\]: .*host bits"),
        ({"api_keys": {"abc": "acme"}}, r"identity\.api_keys: 'abc' is no SHA-256"),
        ({"tenant_header": "Host"}, r"identity\.tenant_header: Host has a meaning of its own"),
    ],
)
def test_settings_that_cannot_work_name_what_and_where(identity: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        core(identity=Identity(**identity))


@pytest.mark.parametrize("url", ["ftp://a:1", "a:1", "http://", "http://a:1/v1", "http://a:99999"])
def test_a_table_with_an_endpoint_that_is_no_url_is_not_swapped_in(url: str) -> None:
    edge = core()
    with pytest.raises(SettingsError, match="endpoint"):
        edge.router(table(url, epoch=2))
    assert edge.router.table.epoch == 1
    client, _ = edge.client()
    client.data_received(get())
    upstream, _ = edge.accept()
    assert upstream.endpoint.host == "home"


def test_a_finished_exchange_is_freed_without_the_garbage_collector() -> None:
    edge = core(table("http://home:1", percent=100))
    client, _ = edge.client()
    gc.disable()
    try:
        client.data_received(post(b"hello"))
        assert client.exchange is not None
        exchange = weakref.ref(client.exchange)
        upstream, _ = edge.accept()
        upstream.data_received(answer())
        assert exchange() is None
    finally:
        gc.enable()


# -- a flip into a home that is down -----------------------------------------------------------------

SHELTERED = {"acme": "candidate"}


def sent_home(**rest: Any) -> Transcript:
    """The tenant acme was on the candidate and has just been sent home."""
    edge = canary(**rest)
    edge.router(table("http://home:1", "http://candidate:1", epoch=2, refuges=SHELTERED))
    return edge


def test_a_tenant_sent_home_into_a_pool_that_is_down_is_answered_where_it_came_from(
    caplog: pytest.LogCaptureFixture,
) -> None:
    edge = sent_home()
    client, wire = edge.client()
    client.data_received(post(b"hello", "/v1/completions", ACME))
    edge.refuse_connection()
    upstream, pool = edge.accept()
    assert upstream.endpoint.host == "candidate"
    assert pool.sent.endswith(b"hello")
    upstream.data_received(answer(b"still served"))
    assert wire.sent.endswith(b"still served")
    (record,) = edge.port.records
    assert (record.pool, record.status) == ("candidate", 200)
    # Home is known to be down now: nobody waits for a connection to it before being answered.
    client.data_received(post(b"again", "/v1/completions", ACME))
    assert upstream.exchange is not None
    upstream.data_received(answer(b"at once"))
    assert wire.sent.endswith(b"at once")
    assert edge.edge.stats()["refuges"] == 2
    told = [one for one in caplog.records if one.getMessage().startswith("nobody in the home pool answers")]
    assert [(one.home, one.tenant, one.pool, one.requests) for one in told] == [  # type: ignore[attr-defined]
        ("home", "acme", "candidate", 1)
    ], "told at once, and not with every request"


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_home_that_answers_for_nobody_is_no_home(status: int) -> None:
    edge = sent_home()
    client, wire = edge.client()
    client.data_received(post(b"hello", "/v1/completions", ACME))
    home, _ = edge.accept()
    home.data_received(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % status)
    upstream, _ = edge.accept()
    assert upstream.endpoint.host == "candidate"
    upstream.data_received(answer(b"still served"))
    assert wire.sent.endswith(b"still served")


def test_once_home_has_answered_a_tenant_it_never_goes_back_for_that_flip() -> None:
    edge = sent_home()
    client, wire = edge.client()
    client.data_received(get("/", ACME))
    home, _ = edge.accept()
    assert home.endpoint.host == "home"
    home.data_received(answer())
    assert edge.router.refuges == {}
    # Another table that still names the refuge changes nothing, and an outage of home is an outage now.
    edge.router(table("http://home:1", "http://candidate:1", epoch=3, refuges=SHELTERED))
    home.connection_lost(None)
    client.data_received(get("/", ACME))
    edge.refuse_connection()
    assert status_of(wire.sent[wire.sent.rindex(b"HTTP/1.1") :]) == 502
    # A lift, another canary and another rollback are another flip.
    edge.router(table("http://home:1", "http://candidate:1", epoch=4, routes={"acme": "candidate"}))
    edge.router(table("http://home:1", "http://candidate:1", epoch=5, refuges=SHELTERED))
    assert set(edge.router.refuges) == {"acme"}


def test_with_both_pools_down_a_request_fails_once_and_in_words() -> None:
    edge = sent_home()
    client, wire = edge.client()
    client.data_received(post(b"hello", "/v1/completions", ACME))
    edge.refuse_connection()
    edge.refuse_connection()
    assert status_of(wire.sent) == 502
    assert len(edge.port.records) == 1


def test_nobody_else_is_sheltered() -> None:
    edge = sent_home()
    client, wire = edge.client()
    client.data_received(post(b"hello", "/v1/completions", "X-Tenant: globex"))
    edge.refuse_connection()
    assert status_of(wire.sent) == 502


def test_a_flip_that_aborts_moves_what_is_under_way_back_where_home_is_down() -> None:
    edge = canary()
    client, wire = edge.client()
    client.data_received(post(b"hello", "/v1/completions", ACME))
    edge.accept()
    flip(edge, refuges=SHELTERED)
    edge.refuse_connection()  # home's
    again, _ = edge.accept()
    assert again.endpoint.host == "candidate"
    again.data_received(answer(b"still served"))
    assert wire.sent.endswith(b"still served")
