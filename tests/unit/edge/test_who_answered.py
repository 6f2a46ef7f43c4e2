"""What an engine's answer tells of the environment behind it stands in the live record."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from engines.identity import IDENTITY_HEADER
from proxy.edge.answers import ENVIRONMENT_HEADER
from proxy.live import ODD_ENVIRONMENT
from tests.support.edge import TRUSTED, Transcript, answer, post, run, running_edge, settings, table

ONE = "sha256:" + "1" * 64
OTHER = "sha256:" + "2" * 64


def core() -> Transcript:
    return Transcript(settings(table("http://home:1"), identity=TRUSTED))


def told(edge: Transcript) -> list[str]:
    return [record.environment for record in edge.port.records]


def head(*lines: str) -> bytes:
    text = "".join(f"{line}\r\n" for line in lines)
    return f"HTTP/1.1 200 OK\r\n{text}Content-Length: 2\r\n\r\nok".encode()


def test_the_edge_reads_the_header_that_engines_write() -> None:
    assert ENVIRONMENT_HEADER.decode() == IDENTITY_HEADER


def test_digest_of_an_answer_stands_in_its_record_and_reaches_the_client() -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(post(b"hello"))
    upstream, _ = edge.accept()
    upstream.data_received(head(f"X-Forkgate-Environment: {ONE}"))
    assert told(edge) == [ONE]
    assert f"X-Forkgate-Environment: {ONE}".encode() in wire.sent


def test_engine_that_tells_none_leaves_none() -> None:
    edge = core()
    client, _ = edge.client()
    client.data_received(post(b"hello"))
    upstream, _ = edge.accept()
    upstream.data_received(answer(b"world"))
    assert told(edge) == [""]


def test_a_swap_behind_a_connection_that_is_kept_alive_shows_in_the_next_record() -> None:
    """Heads that repeat are not read line by line; one whose digest differs is."""
    edge = core()
    client, _ = edge.client()
    upstream = None
    for number, digest in enumerate([ONE] * 6 + [OTHER] * 6 + [ONE]):
        client.data_received(post(b"hello"))
        if upstream is None:
            upstream, _ = edge.accept()
        upstream.data_received(head(f"x-forkgate-environment: {digest}", f"Date: {number}"))
    assert told(edge) == [ONE] * 6 + [OTHER] * 6 + [ONE]


def test_the_digest_is_that_of_the_answer_that_the_client_got() -> None:
    """Home answers for a candidate that failed, and says who it is itself."""
    edge = Transcript(
        settings(table("http://home:1", "http://candidate:1", routes={"acme": "candidate"}), identity=TRUSTED)
    )
    client, _ = edge.client()
    client.data_received(post(b"hello", "/v1/completions", "X-Tenant: acme"))
    upstream, _ = edge.accept()
    upstream.data_received(
        f"HTTP/1.1 503 No\r\nx-forkgate-environment: {OTHER}\r\nContent-Length: 0\r\n\r\n".encode()
    )
    home, _ = edge.accept()
    home.data_received(head(f"x-forkgate-environment: {ONE}"))
    (record,) = edge.port.records
    assert (record.pool, record.environment) == ("home", ONE)


@pytest.mark.parametrize(
    "lines",
    [
        ("x-forkgate-environment: sha256:" + "1" * 63,),
        ("x-forkgate-environment: sha256:" + "1" * 65,),
        ("x-forkgate-environment: sha256:" + "A" * 64,),
        ("x-forkgate-environment: " + "1" * 64,),
        ("x-forkgate-environment:",),
        ("x-forkgate-environment: " + "x" * 10_240,),
        (f"x-forkgate-environment: {ONE}, {ONE}",),
        (f"x-forkgate-environment: {ONE}", f"x-forkgate-environment: {OTHER}"),
        (f"x-forkgate-environment: {ONE}", f"X-Forkgate-Environment: {ONE}"),
        ("x-forkgate-environment: ", f"x-forkgate-environment: {ONE}"),
        (f"x-forkgate-environment: {ONE}", "x-forkgate-environment: ", f"x-forkgate-environment: {ONE}"),
    ],
)
def test_a_header_that_lies_proves_nothing_and_harms_nobody(lines: tuple[str, ...]) -> None:
    edge = core()
    client, wire = edge.client()
    client.data_received(post(b"hello"))
    upstream, _ = edge.accept()
    upstream.data_received(head(*lines))
    assert told(edge) == [ODD_ENVIRONMENT]
    assert wire.sent.endswith(b"ok")
    for line in lines:
        assert line.encode() in wire.sent
    client.data_received(post(b"again"))
    upstream.data_received(head(f"x-forkgate-environment: {ONE}"))
    assert told(edge) == [ODD_ENVIRONMENT, ONE]


def test_an_engine_that_is_replaced_on_its_port_is_another_one_in_the_next_record() -> None:
    """With sockets: the old one's connections end, and the new one answers on a new connection."""

    async def main() -> None:
        first = Engine(ONE)
        port = await first.start(0)
        async with running_edge(table(f"http://127.0.0.1:{port}")) as edge:
            reader, writer = await edge.connect()
            for _ in range(2):
                await ask(reader, writer)
            await first.stop()
            second = Engine(OTHER)
            await second.start(port)
            await ask(reader, writer)
            records = await edge.port.records_reach(3)
            assert [record.environment for record in records] == [ONE, ONE, OTHER]
            writer.close()
            await second.stop()

    run(main())


class Engine:
    """Answers every request with its digest."""

    def __init__(self, digest: str) -> None:
        self._digest = digest
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def start(self, port: int) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        number: int = self._server.sockets[0].getsockname()[1]
        return number

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()
            await writer.wait_closed()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(5)
                writer.write(head(f"x-forkgate-environment: {self._digest}"))


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(post(b"hello"))
    await reader.readuntil(b"\r\n\r\n")
    assert await reader.readexactly(2) == b"ok"
