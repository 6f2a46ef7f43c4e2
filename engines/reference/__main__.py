"""``python -m engines.reference --model DIR``: the reference engine as a process."""

from __future__ import annotations

import argparse
import asyncio
import json
import pathlib
import signal
import socket
import sys
from collections.abc import Sequence

import uvloop
from aiohttp import web

from engines.reference import model as models
from engines.reference.options import DType, EngineServerOptions, Matmul
from engines.reference.server import ReferenceServer

_DRAIN_S = 2.0


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 after SIGTERM or SIGINT, 1 when the engine failed, 2 for bad options."""
    parsed = _parser().parse_args(argv)
    try:
        options = EngineServerOptions(**vars(parsed))
    except ValueError as error:
        print(f"forkgate engine: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return run(options)


def run(options: EngineServerOptions) -> int:
    """Load the model, serve it until told to stop. The bound URL is one JSON line on stdout."""
    try:
        loaded = models.load(options)
    except (models.UnsupportedModel, OSError) as error:
        print(f"forkgate engine: {error}", file=sys.stderr)  # noqa: T201
        return 2
    name = options.served_model_name or pathlib.Path(options.model_dir).resolve().name
    return uvloop.run(_serve(options, loaded, name))


async def _serve(options: EngineServerOptions, loaded: models.LoadedModel, name: str) -> int:
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
    try:
        listener = socket.create_server((options.host, options.port), backlog=1024)
    except OSError as error:
        print(f"forkgate engine: {options.host}:{options.port}: {error}", file=sys.stderr)  # noqa: T201
        server.close()
        await runner.cleanup()
        return 2
    await web.SockSite(runner, listener).start()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    host, port = listener.getsockname()[:2]
    announced = {"url": f"http://{host}:{port}", "model": name, "digest": loaded.identity.digest}
    print(json.dumps(announced), flush=True)  # noqa: T201
    await stop.wait()
    await runner.cleanup()
    server.close()
    if failed:
        print(f"forkgate engine: the engine's thread died: {failed[0]!r}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="forkgate engine",
        description="A reference engine: one model, torch and transformers, in one process.",
    )
    parser.add_argument("--model", dest="model_dir", required=True, help="folder of the model")
    parser.add_argument("--served-model-name", help="name that clients ask for; default: the folder's name")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument(
        "--port", type=int, default=0, help="0: the kernel chooses; the URL is printed as JSON"
    )
    parser.add_argument("--dtype", type=DType, choices=list(DType), default=DType.FLOAT32)
    parser.add_argument(
        "--matmul",
        type=Matmul,
        choices=list(Matmul),
        default=Matmul.AUTO,
        help="half-precision products on a CPU: torch's own, or float32 kernels over half-precision values",
    )
    parser.add_argument("--device", default="cpu", help="cpu, or cuda:0 and its like")
    parser.add_argument("--threads", type=int, default=1, help="torch's threads inside one operator")
    parser.add_argument("--max-batch", type=int, default=8, help="requests that share a forward pass at most")
    parser.add_argument("--max-model-len", type=int, default=2048, help="prompt and output tokens at most")
    parser.add_argument("--max-waiting", type=int, default=1024, help="requests that may wait for a place")
    parser.add_argument("--max-logprobs", type=int, default=50)
    parser.add_argument("--prefill-chunk", type=int, default=512, help="prompt tokens read at once")
    return parser


if __name__ == "__main__":
    sys.exit(main())
