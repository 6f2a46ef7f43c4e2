"""``python -m bench.shadow_cost [--quick] [--json]``: what live traffic pays for shadows on one shared pool.

A real engine (the reference engine, SmolLM2-135M) is both sides of a comparison *and* serves the live
traffic: the worst case, since every copy costs the live engine two more answers. Two ``forkgate serve`` stand
in front of it, one that copies nothing and one that copies every request under the shipped rules: an arm
starts only while nothing waits at the engine and its KV cache has room, at the lowest priority, a few at a
time. They take turns, block by block in turning order, and between two blocks the engine is waited for until
it is idle.

Figures, each the median over rounds of on over off, with its interval over rounds:

- ``ttft_p50``, ``ttft_p99``: request sent → first byte of the answer's body;
- ``total_p50``, ``total_p99``: request sent → end of the answer.

A round's p99 is over its own requests: with few of them, nearly its slowest. ``detail`` holds the same over
all requests of a mode, the copies that ran, and those that the rules kept from running. There is no bar: two
answers that share an engine's passes with a third are slower by what that engine makes of a larger batch, and
what matters is to know it. ``shadow_endpoints`` bring the ratio to 1; so does a smaller ``percent``.

About ten minutes on two idle cores. Exit code 0: measured. 2: usage. 4: it could not be measured.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import pathlib
import signal
import sys
import tempfile
import time
from typing import Any

import aiohttp

from bench import machine
from bench.machine import BenchError
from bench.stats import median_with_interval, quantile, ratios
from engines.model import ensure_smollm2
from forkgate.demo.stack import Child, DemoError

MODES = ("off", "on")
CLIENTS = 2
TOKENS = 24
IDLE_S = 120.0
"""The longest that an engine may take to come to rest between two blocks."""
START_S = 300.0
"""Two judges probe one engine at once, each for two pools: a busy machine takes minutes for that."""
PROMPTS = (
    "Name three rivers of Europe and say where each of them ends.",
    "Write two sentences about a lighthouse in winter.",
    "Explain to a child why the moon changes its shape.",
    "List five things that a baker needs in the morning.",
)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    rounds: int
    requests: int
    """A block, over all clients."""


FULL = Sizes(rounds=8, requests=16)
QUICK = Sizes(rounds=2, requests=6)


@dataclasses.dataclass(frozen=True)
class Block:
    """One mode's turn: a number a request, in seconds."""

    ttft_s: list[float]
    total_s: list[float]


class Sidecar:
    """One ``forkgate serve`` in front of the engine."""

    def __init__(self, mode: str, engine: str, folder: pathlib.Path, stack: contextlib.ExitStack) -> None:
        self.mode = mode
        self.state = folder / mode
        self.state.mkdir()
        (self.state / "policy.yaml").write_text(
            "level: token\nalpha: 0.05\non_fail: hold\ngates:\n  token_equality: {minimum_pairs: 100000}\n"
        )
        pools = [
            {"name": name, "endpoints": [engine], "engine": {"kind": "reference"}} for name in ("old", "new")
        ]
        rollout = {
            "name": "shared",
            "baseline": "old",
            "candidate": "new",
            "policy": "policy.yaml",
            "global_seed": "bench",
            "start": "on_load",
            "checks": {"self_check": False, "quick_check": False},
            "shadow": {"percent": 100.0 if mode == "on" else 0.0, "control_percent": 0.0},
        }
        file = self.state / "forkgate.yaml"
        config = {
            "listen": {"host": "127.0.0.1", "port": 0},
            "state_dir": "state",
            "pools": pools,
            "home": "old",
            "rollouts": [rollout],
        }
        file.write_text(json.dumps(config))
        child = Child(mode, [sys.executable, "-m", "forkgate", "serve", str(file)], self.state / "log")
        stack.callback(child.stop)
        self._child = child
        self.url = ""

    async def ask(self, path: str) -> Any:
        """The judge's admin API."""
        connector = aiohttp.UnixConnector(str(self.state / "state" / "admin.sock"))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(f"http://x{path}") as got,
        ):
            return await got.json()

    async def ready(self) -> None:
        """Until it serves and its judge knows the engine. Raises :class:`BenchError`."""
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            self._child.check()
            with contextlib.suppress(aiohttp.ClientError, OSError, IndexError, KeyError):
                status = await self.ask("/v1/status")
                if not status["troubles"] and status["edges"]:
                    self.url = f"http://{status['listen'][0]}"
                    return
            await asyncio.sleep(0.2)
        raise BenchError(f"the sidecar of mode {self.mode} was not ready within {START_S:g} s")


async def _one(session: aiohttp.ClientSession, url: str, model: str, number: int) -> tuple[float, float]:
    """(TTFT, total) of one live request, in seconds."""
    body = {"model": model, "stream": True, "temperature": 0.0, "max_tokens": TOKENS}
    body |= {"messages": [{"role": "user", "content": f"{PROMPTS[number % len(PROMPTS)]} ({number})"}]}
    began = time.perf_counter()
    first: float | None = None
    last = b""
    async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
        async for piece in answer.content.iter_any():
            first = time.perf_counter() - began if first is None else first
            last = piece
        if answer.status != 200 or first is None or not last.rstrip().endswith(b"[DONE]"):
            raise BenchError(f"{url}: HTTP {answer.status}, an answer that is not whole: {last[-200:]!r}")
    return first, time.perf_counter() - began


async def block(sidecar: Sidecar, model: str, sizes: Sizes, first: int) -> Block:
    """One mode's turn: a few clients, each one request after another."""
    numbers = iter(range(first, first + sizes.requests))
    found: list[tuple[float, float]] = []

    async def client(session: aiohttp.ClientSession) -> None:
        for number in numbers:
            found.append(await _one(session, sidecar.url, model, number))

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(client(session) for _ in range(CLIENTS)))
    return Block([one[0] for one in found], [one[1] for one in found])


async def rest(sidecar: Sidecar) -> None:
    """Until every copy has ended, so that one mode's shadows are not in the other's block."""
    end = time.monotonic() + IDLE_S
    while time.monotonic() < end:
        if (await sidecar.ask("/v1/ledger"))["in_flight"] == 0:
            return
        await asyncio.sleep(0.1)
    raise BenchError(f"copies of mode {sidecar.mode} did not end within {IDLE_S:g} s")


async def measure(sizes: Sizes, folder: pathlib.Path) -> tuple[dict[str, list[Block]], dict[str, Any]]:
    """Blocks by mode, and what became of the copies. Raises BenchError, DemoError."""
    model = await asyncio.to_thread(ensure_smollm2)
    with contextlib.ExitStack() as stack:
        argv = [sys.executable, "-m", "engines.reference", "--model", str(model), "--dtype", "float32"]
        argv += ["--host", "127.0.0.1", "--port", "0", "--threads", "1", "--max-batch", "4"]
        engine = Child("engine", argv, folder / "engine.log", {"HF_HUB_OFFLINE": "1"})
        stack.callback(engine.stop)
        url = str(json.loads(await asyncio.to_thread(engine.first_line))["url"])
        sidecars = [Sidecar(mode, url, folder, stack) for mode in MODES]
        for one in sidecars:
            await one.ready()
        blocks: dict[str, list[Block]] = {mode: [] for mode in MODES}
        asked = 0
        for number in range(-1, sizes.rounds):
            turn = sidecars if number % 2 else sidecars[::-1]
            for one in turn:
                found = await block(one, model.name, sizes, asked)
                await rest(one)
                if number >= 0:  # the first round pays for what is made once
                    blocks[one.mode].append(found)
            asked += (
                sizes.requests
            )  # the same questions for both, and never again: no cache helps one of them
            sys.stderr.write(f"bench.shadow_cost: round {number + 1} of {sizes.rounds}\n")
        ledgers = {one.mode: await one.ask("/v1/ledger") for one in sidecars}
        loads = {one.mode: (await one.ask("/v1/rollouts/shared"))["load"] for one in sidecars}
    if ledgers["off"]["captured"] or not ledgers["on"]["compared"]:
        raise BenchError(f"copies were made where none belong, or none where all do: {ledgers}")
    copies = {
        "captured": ledgers["on"]["captured"],
        "compared": ledgers["on"]["compared"],
        "dropped": ledgers["on"]["dropped"],
        "load": loads["on"],
    }
    return blocks, copies


def tell(
    blocks: dict[str, list[Block]], copies: dict[str, Any], about: dict[str, Any], *, as_json: bool
) -> None:
    """A table on stderr; with ``as_json`` one object as the last line on stdout."""
    document: dict[str, Any] = {"intervals": {}, "detail": {"copies": copies}, "about": about}
    for name in ("ttft", "total"):
        for share, label in ((0.5, "p50"), (0.99, "p99")):
            each = {
                mode: [quantile(getattr(one, f"{name}_s"), share) for one in found]
                for mode, found in blocks.items()
            }
            one = median_with_interval(ratios(each["on"], each["off"]))
            pooled = {
                mode: quantile([value for one in found for value in getattr(one, f"{name}_s")], share)
                for mode, found in blocks.items()
            }
            key = f"{name}_{label}"
            document[key] = round(one.value, 4)
            document["intervals"][key] = [round(one.low, 4), round(one.high, 4)]
            document["detail"][key] = {"rounds_s": each, "all_s": pooled}
            sys.stderr.write(
                f"{key:<10} {one.value:.3f} ×  ({one.low:.3f} - {one.high:.3f})  "
                f"off {pooled['off']:.3f} s, on {pooled['on']:.3f} s over all requests\n"
            )
    sys.stderr.write(f"copies     {json.dumps(copies)}\n")
    if as_json:
        print(json.dumps(document))


def main() -> int:
    """Run the bench and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.shadow_cost", description="Live latency with shadows on and off, one pool."
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line on stdout")
    parser.add_argument("--quick", action="store_true", help="a minute; the numbers say nothing")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))  # or its children outlive it
    about = {**machine.description(), "quick": arguments.quick}
    try:
        with tempfile.TemporaryDirectory(prefix="forkgate-bench-") as work:
            sizes = QUICK if arguments.quick else FULL
            blocks, copies = asyncio.run(measure(sizes, pathlib.Path(work)))
    except (BenchError, DemoError, OSError, aiohttp.ClientError) as error:
        sys.stderr.write(f"bench.shadow_cost: {error}\n")
        return 4
    tell(blocks, copies, about, as_json=arguments.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
