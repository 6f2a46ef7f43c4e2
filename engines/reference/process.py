"""Serving until told to stop: signals, the announcement on stdout, a clean end."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys

from aiohttp import web

from engines.reference.model import LoadedModel
from engines.reference.options import EngineServerOptions
from engines.reference.server import ReferenceServer

_DRAIN_S = 2.0


async def serve(options: EngineServerOptions, loaded: LoadedModel, name: str, bound: socket.socket) -> int:
    """Serve on a bound socket until SIGTERM or SIGINT. The bound URL is one JSON line on stdout.

    Returns 0, or 1 when the engine's own thread died.
    """
    failed: list[BaseException] = []
    stop = asyncio.Event()

    def crashed(error: BaseException) -> None:
        failed.append(error)
        stop.set()

    server = ReferenceServer(loaded, options, model_name=name, on_crash=crashed)
    # A handler whose client left is cancelled, and that aborts the generation.
    runner = web.AppRunner(
        server.app,
        handler_cancellation=True,
        access_log=None,
        shutdown_timeout=_DRAIN_S,
        handle_signals=False,
    )
    await runner.setup()
    await web.SockSite(runner, bound, backlog=1024).start()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    announced = {"url": f"http://{shown}:{port}", "model": name, "digest": loaded.identity.digest}
    print(json.dumps(announced), flush=True)  # noqa: T201
    await stop.wait()
    await runner.cleanup()
    server.close()
    if failed:
        print(f"forkgate engine: the engine's thread died: {failed[0]!r}", file=sys.stderr)  # noqa: T201
        return 1
    return 0
