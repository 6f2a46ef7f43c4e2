"""CPU of one token in the judge, from engine socket to step: ``python -m tools.engine_step_cost``.

A stub process sends vLLM's completions events with top-20 over a real socket; the adapter reads them.
Printed: µs of this process's CPU a step (best of five), decoding alone and with the socket, for tokens that
come one by one and in bursts.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import time
from multiprocessing.connection import Connection

import uvloop

from comparator.records import Sampling
from engines import EngineOptions, Prompt, Steps, open_engine
from engines.sse import EventParser
from engines.wire import CompletionDecoder

TOKENS = 64
TOP = 20
STREAMS = 100
CONCURRENT = 8


def events() -> list[bytes]:
    """The events of one answer, the drawn token outside the top-k in one step of ten, as under sampling."""
    drawn = random.Random(7)  # noqa: S311 - test data
    told = []
    for place in range(TOKENS):
        ids = drawn.sample(range(49152), TOP + 1)
        values = sorted((-drawn.random() * 12 for _ in ids), reverse=True)
        top = list(zip(ids, values, strict=True))
        if place % 10:
            top.pop()
        else:
            top.insert(0, top.pop())
        names = {f"token_id:{one}": value for one, value in top}
        first = next(iter(names))
        choice = {
            "index": 0,
            "text": " word",
            "logprobs": {
                "text_offset": [5 * place],
                "token_logprobs": [names[first]],
                "tokens": [first],
                "top_logprobs": [names],
            },
            "finish_reason": "length" if place == TOKENS - 1 else None,
            "stop_reason": None,
            "token_ids": [top[0][0]],
        }
        event = {"id": "cmpl-82a69cdbeca6dc7f", "object": "text_completion", "created": 1, "model": "m"}
        told.append(
            b"data: " + json.dumps({**event, "choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"
        )
    told.append(b"data: [DONE]\n\n")
    return told


def stub(told: Connection) -> None:
    """Answer every request with the same events; a path that ends in /burst has them in one write."""
    answer = events()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    chunks = [b"%x\r\n%s\r\n" % (len(event), event) for event in answer]
    end = b"0\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                lower = request.lower()
                at = lower.index(b"content-length:") + 15
                await reader.readexactly(int(lower[at : lower.index(b"\r\n", at)]))
                if b"x-burst: 1" in lower:
                    writer.write(head + b"".join(chunks) + end)
                    await writer.drain()
                    continue
                writer.write(head)
                for chunk in chunks:
                    writer.write(chunk)
                    await asyncio.sleep(0.001)
                writer.write(end)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        told.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    uvloop.run(main())


def decoding_alone() -> float:
    """µs a step of parser and decoder, all events of an answer in one read."""
    received = b"".join(events())
    started = time.process_time()
    for _ in range(STREAMS):
        decoder = CompletionDecoder("http://e", depth=TOP, prompt=(1,))
        assert len(decoder.feed(EventParser().feed(received), 0.0)) == TOKENS
    return (time.process_time() - started) / (STREAMS * TOKENS) * 1e6


async def through_a_socket(port: int, *, burst: bool) -> float:
    """µs a step of this process, the whole adapter included."""
    options = EngineOptions(kind="vllm", headers={"x-burst": "1"} if burst else {})
    engine = open_engine(f"http://127.0.0.1:{port}", options)
    sampling = Sampling(max_tokens=TOKENS, logprobs=TOP)
    prompt = Prompt(exchange_id="x", model="m", token_ids=(1,) * 50, sampling=sampling, cache_salt="s")
    left = iter(range(STREAMS))

    async def client() -> None:
        for _ in left:
            steps = 0
            async for part in engine.generate(prompt):
                steps += len(part.steps) if isinstance(part, Steps) else 0
            assert steps == TOKENS

    started = time.process_time()
    await asyncio.gather(*(client() for _ in range(CONCURRENT)))
    spent = time.process_time() - started
    await engine.close()
    return spent / (STREAMS * TOKENS) * 1e6


def main() -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=stub, args=(theirs,), daemon=True)
    process.start()
    port = ours.recv()
    try:
        print(f"decoding alone     {min(decoding_alone() for _ in range(5)):6.1f} µs a step")  # noqa: T201
        for burst in (True, False):
            cost = min(uvloop.run(through_a_socket(port, burst=burst)) for _ in range(5))
            print(f"{'socket, bursts' if burst else 'socket, one by one':18} {cost:6.1f} µs a step")  # noqa: T201
    finally:
        process.terminate()
        process.join()


if __name__ == "__main__":
    main()
