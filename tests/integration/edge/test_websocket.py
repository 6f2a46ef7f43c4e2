"""A real WebSocket client and server with the edge between them."""

from __future__ import annotations

from time import monotonic

import aiohttp
from aiohttp import web

from proxy.edge.settings import Timeouts
from tests.support.edge import run, running_edge, table


async def echo(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    async for message in socket:
        await socket.send_str(message.data)
    return socket


def test_messages_of_every_size_come_back_through_the_tunnel() -> None:
    async def main() -> None:
        app = web.Application()
        app.router.add_get("/ws", echo)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with running_edge(table(url)) as edge, aiohttp.ClientSession() as session:
            async with session.ws_connect(f"http://127.0.0.1:{edge.number}/ws") as socket:
                for size in (0, 1, 125, 126, 65_535, 65_536, 1_000_000):
                    await socket.send_str("x" * size)
                    assert await socket.receive_str() == "x" * size
            (record,) = await edge.port.records_reach(1)
            assert record.status == 101
            assert record.response_bytes > 1_000_000
        await runner.cleanup()

    run(main())


def test_a_flip_ends_the_tunnel_after_its_grace() -> None:
    async def main() -> None:
        app = web.Application()
        app.router.add_get("/ws", echo)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        initial = table("http://127.0.0.1:1", url, routes={"acme": "candidate"})
        async with (
            running_edge(initial, timeouts=Timeouts(tunnel_grace_s=3_600.0)) as edge,
            aiohttp.ClientSession(headers={"X-Tenant": "acme"}) as session,
            session.ws_connect(f"http://127.0.0.1:{edge.number}/ws") as socket,
        ):
            edge.router(table("http://127.0.0.1:1", url, epoch=2))
            await socket.send_str("grace")
            assert await socket.receive_str() == "grace"
            edge.edge.sweep(monotonic() + 3_601.0)
            assert (await socket.receive()).type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.CLOSE)
        await runner.cleanup()

    run(main())
