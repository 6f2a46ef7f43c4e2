"""TLS handshakes that are never finished keep no honest client out, at any door, and pile up nowhere."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest

from forkgate.admin.tls import context as admin_context
from forkgate.config.admin import AdminTLS
from proxy.edge.settings import LinkTLS, ListenTLS, Timeouts
from proxy.link.client import EdgeLink
from proxy.link.server import LinkServer
from proxy.tls_door import HANDSHAKES, TlsDoor
from tests.support.certificates import Authority, Certificate
from tests.support.edge import Arrived, Upstream, answer, get, read_answer, run, running_edge, table
from tests.support.link import ListListener, ListSink, edge_settings, route_table
from tests.support.waiting import eventually

FLOOD = 500
HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(40)
"""The beginning of a ClientHello; what follows never comes."""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Certificate:
    return authority.issue("localhost", "127.0.0.1")


@pytest.fixture(scope="module", autouse=True)
def descriptors() -> None:
    """Both ends of every connection are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * (FLOOD + HANDSHAKES) + 500
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextlib.asynccontextmanager
async def unfinished(port: int, count: int) -> AsyncIterator[list[socket.socket]]:
    """Connections whose handshake is begun, every other one with some bytes, and goes no further."""
    loop = asyncio.get_running_loop()
    held: list[socket.socket] = []
    try:
        for number in range(count):
            one = socket.socket()
            held.append(one)
            one.setblocking(False)
            await loop.sock_connect(one, ("127.0.0.1", port))
            if number % 2:
                with contextlib.suppress(ConnectionError):
                    await loop.sock_sendall(one, HALF_A_HELLO)
        yield held
    finally:
        for one in held:
            one.close()


async def hung_up(one: socket.socket) -> bool:
    """Wait until the other side ends it."""
    with contextlib.suppress(ConnectionError):
        while await asyncio.get_running_loop().sock_recv(one, 4096):
            pass
    return True


class Greeter(asyncio.Protocol):
    """What is behind a door."""

    def connection_made(self, transport: Any) -> None:
        transport.write(b"come in")
        transport.close()


@contextlib.asynccontextmanager
async def door(server: Certificate, **how: float) -> AsyncIterator[TlsDoor]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    tls = admin_context(AdminTLS(cert_file=server.cert_file, key_file=server.key_file))
    made = TlsDoor(listener, tls, Greeter, **{"handshake_s": 600.0, **how})  # type: ignore[arg-type]
    made.open()
    try:
        yield made
    finally:
        made.close()


async def greeted(made: TlsDoor, authority: Authority) -> bytes:
    context = ssl.create_default_context(cafile=authority.cert_file)
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", made.address[1], ssl=context, server_hostname="localhost"
    )
    said = await reader.read()
    writer.close()
    return said


def test_no_more_handshakes_are_held_than_the_door_holds(authority: Authority, server: Certificate) -> None:
    async def main() -> None:
        async with door(server, most=8, fair_s=0.0) as made, unfinished(made.address[1], 50) as held:
            await eventually(lambda: made.put_out == 42, "the oldest to be ended")
            assert made.handshakes == 8
            assert all([await hung_up(one) for one in held[:42]])
            assert await greeted(made, authority) == b"come in"

    run(main())


def test_a_young_handshake_is_not_put_out_and_the_next_waits(
    authority: Authority, server: Certificate, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with door(server, most=2, fair_s=0.5) as made, unfinished(made.address[1], 2):
            await eventually(lambda: made.handshakes == 2, "a full door")
            assert await greeted(made, authority) == b"come in", "it waited, and was let in"
            assert made.put_out == 1

    run(main())
    assert "too many TLS handshakes" in caplog.text


def test_who_has_connected_to_a_door_that_drains_is_let_in(authority: Authority, server: Certificate) -> None:
    async def main() -> None:
        async with door(server) as made:
            one = socket.create_connection(("127.0.0.1", made.address[1]))
            await eventually(lambda: made.handshakes == 1, "a handshake")
            draining = asyncio.create_task(made.drain(600.0))
            context = ssl.create_default_context(cafile=authority.cert_file)
            reader, writer = await asyncio.open_connection(sock=one, ssl=context, server_hostname="localhost")
            assert await reader.read() == b"come in"
            writer.close()
            await draining
            with pytest.raises(ConnectionError):
                await asyncio.open_connection("127.0.0.1", made.address[1])

    run(main())


def test_a_handshake_ends_with_its_time_and_a_door_with_its_handshakes(server: Certificate) -> None:
    async def main() -> None:
        async with door(server, handshake_s=0.2) as made, unfinished(made.address[1], 3) as held:
            assert all([await hung_up(one) for one in held])
            await eventually(lambda: made.handshakes == 0, "the door to forget them")
        async with door(server) as made, unfinished(made.address[1], 3) as held:
            await eventually(lambda: made.handshakes == 3, "handshakes")
            made.close()
            assert all([await hung_up(one) for one in held])

    run(main())


def test_what_is_no_tls_is_turned_away_and_the_door_stays_open(
    authority: Authority, server: Certificate
) -> None:
    async def main() -> None:
        async with door(server) as made:
            for said in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" + bytes(70_000), b"\x00"):
                reader, writer = await asyncio.open_connection("127.0.0.1", made.address[1])
                writer.write(said)
                writer.write_eof()
                with contextlib.suppress(ConnectionError):
                    await reader.read()
                writer.close()
            assert await greeted(made, authority) == b"come in"
            await eventually(lambda: made.handshakes == 0, "the door to forget them")

    run(main())


def test_a_flood_of_handshakes_keeps_no_client_from_the_edge(
    authority: Authority, server: Certificate
) -> None:
    async def hello(request: Arrived) -> None:
        request.say(answer(b"hello"))

    async def main() -> None:
        listen = ListenTLS(cert_file=server.cert_file, key_file=server.key_file)
        context = ssl.create_default_context(cafile=authority.cert_file)
        async with (
            Upstream(hello).running() as url,
            running_edge(table(url), listen_tls=listen, timeouts=Timeouts(header_s=600.0)) as edge,
            unfinished(edge.number, FLOOD + HANDSHAKES),
        ):
            reader, writer = await edge.connect(ssl=context, server_hostname="localhost")
            writer.write(get())
            assert (await read_answer(reader))[1] == b"hello"
            (its_door,) = edge.worker._servers
            assert isinstance(its_door, TlsDoor)
            assert its_door.handshakes <= HANDSHAKES
            assert len(edge.edge.connections) == 1
            writer.close()

    run(main())


def test_a_flood_of_handshakes_keeps_no_edge_from_its_judge(
    authority: Authority, server: Certificate
) -> None:
    async def main() -> None:
        tls = LinkTLS(ca_file=str(authority.cert_file), cert_file=server.cert_file, key_file=server.key_file)
        judge = LinkServer("127.0.0.1:0", tls, ListSink(), route_table(2))
        await judge.start()
        async with unfinished(judge.port, FLOOD) as held:
            listener = ListListener()
            link = EdgeLink(edge_settings(f"127.0.0.1:{judge.port}", link_tls=tls), listener)
            await link.start()
            await eventually(lambda: link.epoch == 2, "the table")
            async with asyncio.timeout(60):  # gRPC's own patience is 120 s
                assert all(await asyncio.gather(*(hung_up(one) for one in held)))
            assert listener.changes == ["lost", "back"]
            await link.close(0.0)
        await judge.stop()

    run(main())
