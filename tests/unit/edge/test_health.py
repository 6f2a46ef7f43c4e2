"""Passive health: which failures count against an endpoint, and what forgets them."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

import pytest

from proxy.edge.client import ClientConnection
from proxy.edge.health import UNANSWERED
from proxy.edge.pool import Endpoint
from proxy.edge.upstream import UpstreamConnection
from tests.support.edge import Transcript, answer, get, post, settings, status_of, table

TWO = ("http://a:1", "http://b:1")


def core(home: str | tuple[str, ...] = TWO) -> Transcript:
    return Transcript(settings(table(home)))


def asked(edge: Transcript, request: bytes) -> tuple[ClientConnection, UpstreamConnection]:
    """A request of a client of its own, on a new connection that stands."""
    client, _ = edge.client()
    client.data_received(request)
    upstream, _ = edge.accept()
    return client, upstream


def resets(edge: Transcript, upstream: UpstreamConnection) -> None:
    upstream.connection_lost(ConnectionResetError())


def hangs_up(edge: Transcript, upstream: UpstreamConnection) -> None:
    upstream.connection_lost(None)


def is_silent(edge: Transcript, upstream: UpstreamConnection) -> None:
    edge.sweep(601.0)


def speaks_no_http(edge: Transcript, upstream: UpstreamConnection) -> None:
    upstream.data_received(b"\x15\x03\x01\x00\x02\x02\x16")


def ends_in_its_head(edge: Transcript, upstream: UpstreamConnection) -> None:
    upstream.data_received(b"HTTP/1.1 200 OK\r\nContent-Le")
    upstream.connection_lost(None)


def ends_after_a_100(edge: Transcript, upstream: UpstreamConnection) -> None:
    upstream.data_received(b"HTTP/1.1 100 Continue\r\n\r\n")
    upstream.connection_lost(None)


Trouble = Callable[[Transcript, UpstreamConnection], None]
TROUBLES: list[Trouble] = [
    resets,
    hangs_up,
    is_silent,
    speaks_no_http,
    ends_in_its_head,
    ends_after_a_100,
]


def serve(edge: Transcript, broken: str, trouble: Trouble, requests: int) -> list[str]:
    """Ask this often, one after the other; ``broken`` is in trouble, others answer. Returns who was asked."""
    hosts = []
    for _ in range(requests):
        _, upstream = asked(edge, get())
        hosts.append(upstream.endpoint.host)
        if upstream.endpoint.host == broken:
            trouble(edge, upstream)
        else:
            upstream.data_received(answer(b"", "200 OK", "Connection: close"))
    return hosts


def endpoint_of(edge: Transcript, host: str) -> Endpoint:
    return next(one for one in edge.router.home.endpoints if one.host == host)


@pytest.mark.parametrize("trouble", TROUBLES)
def test_an_endpoint_that_accepts_and_does_not_answer_costs_three_requests(trouble: Trouble) -> None:
    edge = core()
    hosts = serve(edge, "a", trouble, 100)
    assert hosts.count("a") == UNANSWERED == 3
    statuses = [record.status for record in edge.port.records]
    assert statuses.count(200) == 97
    assert edge.edge.stats()["bugs"] == 0


def test_after_its_time_one_more_unanswered_request_doubles_the_time() -> None:
    edge = core()
    serve(edge, "a", resets, 10)
    health = endpoint_of(edge, "a").health
    lasted = []
    for _ in range(3):
        health.ejected_until = 1e-9  # its time is over
        assert serve(edge, "a", resets, 10).count("a") == 1
        lasted.append(health.ejected_until - monotonic())
    assert [round(seconds) for seconds in lasted] == [10, 20, 40]


def test_a_head_of_any_status_forgets_and_a_connection_that_stands_does_not() -> None:
    edge = core()
    health = endpoint_of(edge, "a").health
    while health.failures < 2:
        serve(edge, "a", resets, 1)
    _, upstream = asked(edge, get())
    while upstream.endpoint.host != "a":
        _, upstream = asked(edge, get())
    assert health.failures == 2
    upstream.data_received(answer(b"", "500 Internal Server Error"))
    assert health.failures == 0
    assert health.ejected_until == 0.0


def test_a_switch_of_protocols_is_an_answer() -> None:
    edge = core("http://a:1")
    serve(edge, "a", resets, 2)
    upgrade = ("Connection: Upgrade", "Upgrade: websocket")
    _, upstream = asked(edge, get("/", *upgrade))
    upstream.data_received("\r\n".join(("HTTP/1.1 101 Switching Protocols", *upgrade, "", "")).encode())
    assert edge.router.home.endpoints[0].health.failures == 0


def test_a_client_that_leaves_counts_for_nothing() -> None:
    edge = core()
    for _ in range(20):
        client, upstream = asked(edge, get())
        client.connection_lost(None)
        upstream.connection_lost(None)
    assert [endpoint.health.failures for endpoint in edge.router.home.endpoints] == [0, 0]


def test_a_client_that_does_not_read_is_not_its_pools_silence() -> None:
    edge = core()
    for _ in range(4):
        client, upstream = asked(edge, get())
        client.pause_writing()
        edge.sweep(601.0)
        upstream.connection_lost(None)
    assert [endpoint.health.failures for endpoint in edge.router.home.endpoints] == [0, 0]


@pytest.mark.parametrize("kept", [True, False])
def test_a_stale_idle_connection_counts_for_nothing(kept: bool) -> None:
    edge = core("http://a:1")
    client, wire = edge.client()
    client.data_received(post(b"one"))
    upstream, _ = edge.accept()
    upstream.data_received(answer())
    wire.take()
    if kept:
        client.data_received(post(b"two"))
    else:  # too much to be sent again
        client.data_received(b"POST / HTTP/1.1\r\nHost: edge\r\nContent-Length: 200\r\n\r\n")
        client.data_received(b"x" * 199)
    upstream.connection_lost(ConnectionResetError())
    assert edge.router.home.endpoints[0].health.failures == 0
    if kept:
        fresh, _ = edge.accept()
        fresh.connection_lost(ConnectionResetError())
        assert edge.router.home.endpoints[0].health.failures == 1
    assert status_of(wire.sent) == 502


def test_a_reset_long_after_the_request_was_written_counts_on_a_reused_connection_too() -> None:
    edge = core("http://a:1")
    client, upstream = asked(edge, get())
    upstream.data_received(answer())
    client.data_received(get())
    exchange = client.exchange
    assert exchange is not None
    exchange.sent_at -= 1.1
    upstream.connection_lost(ConnectionResetError())
    assert edge.router.home.endpoints[0].health.failures == 1


def test_the_last_healthy_endpoint_of_a_pool_is_not_passed_over() -> None:
    edge = core()
    for _ in range(40):
        _, upstream = asked(edge, get())
        resets(edge, upstream)
    ejected = [one.health.ejected_until > monotonic() for one in edge.router.home.endpoints]
    assert sorted(ejected) == [False, True]
    alone = core("http://a:1")
    serve(alone, "a", resets, 10)
    assert alone.router.home.healthy(monotonic())
