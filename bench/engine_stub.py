"""An engine without a model: speaks vLLM's protocol from rendered bytes, in steps, as an engine's batch does.

``python -m bench.engine_stub --step-s 0.005`` prints one JSON line ``{"port": N}`` and serves until its
standard input closes. Every ``--step-s`` all running requests get their next token, each in a write of its
own: that is how tokens reach a judge in life. Equal seeds give equal tokens, so two stubs never fork.

``POST /control`` with ``stall``, ``endless`` or ``normal`` as its body changes how completions are answered
from then on: not at all, without end, or as asked. ``GET /counts`` tells what was served.
"""

from __future__ import annotations

import argparse
import asyncio
import enum
import gc
import sys
import time
from typing import Any, cast

import httptools
import orjson
import uvloop

from bench import vllm_bytes
from bench.payloads import ANSWERS, STREAM_HEAD, chunk
from bench.timer import Timer

_ABOUT = __doc__.split("\n", 1)[0]


class Mode(enum.StrEnum):
    NORMAL = "normal"
    STALL = "stall"  # takes the request, says nothing
    ENDLESS = "endless"  # never reaches the last token


class Engine:
    """What all connections share: the batch, and its step."""

    def __init__(self, step_s: float) -> None:
        self.mode = Mode.NORMAL
        self.draws = [vllm_bytes.Draw(number) for number in range(vllm_bytes.DRAWS)]
        self.counts = {"completions": 0, "finished": 0, "stalled": 0, "rendered": 0, "live": 0, "tokens": 0}
        self._step_s = step_s
        self._batch: set[Connection] = set()
        self._timer = Timer(self._step)
        self._due = time.monotonic()
        self._timer.at(self._due)

    def join(self, connection: Connection) -> None:
        self._batch.add(connection)

    def leave(self, connection: Connection) -> None:
        self._batch.discard(connection)

    @property
    def running(self) -> int:
        return len(self._batch)

    def _step(self) -> None:
        for connection in tuple(self._batch):
            self.counts["tokens"] += 1
            connection.next_token()
        # A late step is not made up for: an engine that is slow is slow.
        self._due = max(self._due + self._step_s, time.monotonic())
        self._timer.at(self._due)


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body = b""
        self._draw: vllm_bytes.Draw | None = None
        self._prompt: list[int] = []
        self._place = 0
        self._tokens: int | None = None
        """Of this answer; None: without end."""
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._engine.leave(self)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    # llhttp's callbacks

    def on_message_begin(self) -> None:
        self._url = self._body = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._route(self._url.decode())

    def _route(self, url: str) -> None:
        engine = self._engine
        if url == "/v1/completions":
            self._complete(orjson.loads(self._body))
        elif url in ("/v1/completions/render", "/v1/chat/completions/render"):
            engine.counts["rendered"] += 1
            told: Any = vllm_bytes.rendered(orjson.loads(self._body))
            self._json(200, orjson.dumps([told] if url.startswith("/v1/completions") else told))
        elif url == "/v1/chat/completions":
            self._live(orjson.loads(self._body))
        elif url == "/v1/models":
            self._json(200, vllm_bytes.models())
        elif url == "/metrics":
            self._json(200, vllm_bytes.metrics(engine.running))
        elif url == "/version":
            self._json(200, b'{"version":"0.32.0"}')
        elif url == "/health":
            self._json(200, b"")
        elif url == "/control":
            engine.mode = Mode(self._body.decode())
            self._json(200, b"{}")
        elif url == "/counts":
            self._json(200, orjson.dumps(engine.counts))
        else:
            self._json(404, b'{"detail":"Not Found"}')

    def _json(self, status: int, body: bytes) -> None:
        assert self._transport is not None
        self._transport.write(
            b"HTTP/1.1 %d x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (status, len(body), body)
        )

    def _complete(self, call: dict[str, Any]) -> None:
        """``/v1/completions`` with token IDs, streamed or not; refuses what vLLM refuses."""
        assert self._transport is not None
        priority = call.get("priority", 0)
        if call.get("cache_salt") == "" or not isinstance(priority, int) or not call.get("prompt"):
            self._json(400, b'{"error":{"message":"invalid request","type":"BadRequestError","code":400}}')
            return
        self._engine.counts["completions"] += 1
        if self._engine.mode is Mode.STALL:
            self._engine.counts["stalled"] += 1
            return
        if not call.get("stream"):
            self._json(200, b'{"object":"text_completion","choices":[]}')
            return
        self._draw = self._engine.draws[int(call.get("seed") or 0) % vllm_bytes.DRAWS]
        self._prompt = call["prompt"]
        self._place = 0
        self._tokens = None if self._engine.mode is Mode.ENDLESS else int(call.get("max_tokens", 16))
        self._transport.write(STREAM_HEAD)
        self._engine.join(self)

    def _live(self, call: dict[str, Any]) -> None:
        """``/v1/chat/completions`` of a client: one answer, or a stream without end."""
        assert self._transport is not None
        self._engine.counts["live"] += 1
        if not call.get("stream"):
            self._transport.write(ANSWERS[0])
            return
        self._draw = None
        self._place = 0
        self._transport.write(STREAM_HEAD)
        self._engine.join(self)

    def next_token(self) -> None:
        """The engine's step: one more token, in a write of its own."""
        transport = self._transport
        if transport is None or self._paused:  # a reader that is behind holds its own stream up, nothing else
            return
        place, self._place = self._place, self._place + 1
        draw = self._draw
        if draw is None:
            transport.write(chunk(place))
            return
        last = self._place == self._tokens
        transport.write(draw.event(place, last=last) if place else draw.first(self._prompt))
        if last:
            transport.write(vllm_bytes.ending(len(self._prompt), self._place))
            self._engine.counts["finished"] += 1
            self._engine.leave(self)


async def _serve(step_s: float) -> None:
    loop = asyncio.get_running_loop()
    engine = Engine(step_s)
    server = await loop.create_server(lambda: Connection(engine), "127.0.0.1", 0, backlog=4096)
    sys.stdout.write(orjson.dumps({"port": server.sockets[0].getsockname()[1]}).decode() + "\n")
    sys.stdout.flush()
    gc.collect()
    gc.freeze()
    closed = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), closed.set)  # only ever readable at end of file
    await closed.wait()


def main() -> None:
    """Command line of the engine stub."""
    parser = argparse.ArgumentParser(prog="python -m bench.engine_stub", description=_ABOUT)
    parser.add_argument("--step-s", type=float, default=0.005, help="seconds between a request's tokens")
    uvloop.run(_serve(parser.parse_args().step_s))


if __name__ == "__main__":
    main()
