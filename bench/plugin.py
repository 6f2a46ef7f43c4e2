"""``python -m bench.plugin [--quick] [--json]``: what our plugin costs inside a real vLLM, on CPU.

Three servers of one model run side by side and are asked in turns, one at a time: two without the plugin (A
and B) and one with it. The plugged one is asked twice a round: as live traffic asks it, and as our shadows
do, with marks and with the steps of each answer fetched at its end. All are started more than once, since two
processes of one program differ in speed by themselves. Figures, of tokens a second and of a server's CPU a
token, each the median of ratios within a round:

- ``off_vs_plain``: plugin there, nobody marked, over the mean of A and B. Bar: at most 2 % fewer tokens/s.
- ``on_vs_plain``: every request marked, over the same. Printed.
- ``plain_vs_plain``: B over A. What this machine calls equal: no figure is finer than that.
- ``hook_off_us``, ``hook_on_us``: what the processor itself takes of a step, called as vLLM calls it; with
  nobody marked, and with eight marked requests of which one has just joined.

Needs ``FORKGATE_VLLM_PYTHON``, a Python that has vLLM; ``make test-engines`` builds one. About six minutes.

Exit code 0: the bar holds. 1: it was missed. 2: usage. 4: something could not be measured, or is void.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator

import aiohttp

from bench import machine
from bench.machine import BenchError
from bench.report import Bar
from bench.stats import Estimate, median_with_interval, ratios
from engines.headers import REQUEST_ID_HEADER, SHADOW_HEADER
from engines.model import ensure_smollm2
from engines.vllm_plugin.marks import MARK
from tools import plugin_venv

BARS = {
    "off_vs_plain": Bar(
        meaning="tokens/s, plugin there and nobody marked, over none", unit="×", at_least=0.98
    ),
    "on_vs_plain": Bar(meaning="tokens/s, every request marked and asked for, over no plugin", unit="×"),
    "plain_vs_plain": Bar(meaning="tokens/s of two servers that are the same", unit="×"),
    "hook_off_us": Bar(meaning="processor's part of a step, nobody marked", unit="µs"),
    "hook_on_us": Bar(meaning="processor's part of a step, one of eight marked has joined", unit="µs"),
}
LENGTHS = (40, 44, 48, 52, 56, 60, 64, 68)
"""Output tokens of the eight requests of a block: they end one by one, so that the batch changes."""
PROMPT = [504, 3575, 260, 905, 281, 253, 2536, 411, 260, 2933, 28]
START_S = 300.0
MODES = ("plain A", "plain B", "off", "on")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    starts: int
    rounds: int


FULL = Sizes(starts=2, rounds=8)
QUICK = Sizes(starts=1, rounds=2)


@dataclasses.dataclass(frozen=True)
class Block:
    """One mode's turn."""

    tokens_per_s: float
    cpu_ms_per_token: float


class Server:
    """One vLLM, and all the processes that it started."""

    def __init__(self, python: str, model: pathlib.Path, folder: pathlib.Path, *, plugged: bool) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--host"]
        command += ["127.0.0.1", "--port", str(port), "--dtype", "bfloat16", "--max-model-len", "512"]
        command += ["--max-num-seqs", "8", "--served-model-name", "m", "--enforce-eager"]
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
        environment.pop("VLLM_PLUGINS", None)
        if plugged:
            environment["VLLM_PLUGINS"] = "forkgate"
        self.url = f"http://127.0.0.1:{port}"
        self._log = (folder / f"{port}.log").open("wb+")
        # Started elsewhere: `python -m` imports from its folder first, and this one has our packages.
        self.process = subprocess.Popen(
            command, stdout=self._log, stderr=self._log, env=environment, cwd=folder
        )

    def wait(self) -> None:
        """Until it serves. Raises :class:`BenchError`."""
        deadline_s = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(self.url + "/health", timeout=5):
                return
            if self.process.poll() is not None or time.monotonic() > deadline_s:
                self._log.seek(0)
                raise BenchError(f"vLLM did not start: {self._log.read()[-2000:].decode(errors='replace')}")
            time.sleep(0.5)

    def cpu_s(self) -> float:
        """CPU that it and its engine core and workers have used."""
        pids, waiting = [], [self.process.pid]
        while waiting:
            pid = waiting.pop()
            pids.append(pid)
            waiting += machine.children(pid)
        return machine.cpu_s(pids)

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()


async def _one(session: aiohttp.ClientSession, url: str, place: int, tokens: int, *, marked: bool) -> None:
    name = uuid.uuid4().hex
    body = {"model": "m", "prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, "seed": place}
    body |= {"temperature": 0.8, "logprobs": 5, "stream": True, "return_token_ids": True, "cache_salt": name}
    headers = {}
    if marked:
        body["vllm_xargs"] = {MARK: name}
        headers = {SHADOW_HEADER: "1", REQUEST_ID_HEADER: name}
    async with session.post(url + "/v1/completions", json=body, headers=headers) as answer:
        text = await answer.read()
        if answer.status != 200 or not text.rstrip().endswith(b"[DONE]"):
            raise BenchError(f"{url}: HTTP {answer.status}: {text[-300:]!r}")
    if marked:
        async with session.get(f"{url}/forkgate/batch/{name}") as answer:
            told = await answer.json()
            if answer.status != 200 or not told.get("runs"):
                raise BenchError(f"{url}: no steps came back: {told}")


async def _block(server: Server, *, marked: bool) -> Block:
    async with aiohttp.ClientSession() as session:
        before_s, started_s = server.cpu_s(), time.perf_counter()
        await asyncio.gather(
            *(_one(session, server.url, place, tokens, marked=marked) for place, tokens in enumerate(LENGTHS))
        )
        took_s = time.perf_counter() - started_s
    tokens = sum(LENGTHS)
    return Block(tokens / took_s, (server.cpu_s() - before_s) * 1000 / tokens)


@contextlib.contextmanager
def _servers(
    pythons: tuple[str, str], model: pathlib.Path, folder: pathlib.Path
) -> Iterator[dict[str, Server]]:
    plain, plugged = pythons
    started: list[Server] = []
    try:
        for python in (plain, plain, plugged):
            started.append(Server(python, model, folder, plugged=python == plugged))
            started[-1].wait()  # one by one: three at once would only wait for each other
        yield {"plain A": started[0], "plain B": started[1], "off": started[2], "on": started[2]}
    finally:
        for server in started:
            server.stop()


def measure(
    pythons: tuple[str, str], folder: pathlib.Path, sizes: Sizes, say: Callable[[str], None]
) -> dict[str, list[Block]]:
    """Blocks of each mode, round by round, over all starts."""
    model = ensure_smollm2()
    blocks: dict[str, list[Block]] = {mode: [] for mode in MODES}
    for start in range(sizes.starts):
        say(f"start {start + 1} of {sizes.starts}: three servers")
        with _servers(pythons, model, folder) as servers:
            for mode in MODES:  # the first requests of a server pay for what it makes once
                asyncio.run(_block(servers[mode], marked=mode == "on"))
            for number in range(sizes.rounds):
                turn = number % len(MODES)
                for mode in (*MODES[turn:], *MODES[:turn]):
                    blocks[mode].append(asyncio.run(_block(servers[mode], marked=mode == "on")))
    return blocks


def hook_us(python: str) -> dict[str, float]:
    """The processor alone, in vLLM's own types: microseconds a step."""
    script = pathlib.Path(__file__).with_name("plugin_hook.py")
    done = subprocess.run(
        # -P: the script's folder has names of the standard library's.
        [python, "-P", str(script)],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={**os.environ, "VLLM_PLUGINS": "forkgate", "VLLM_LOGGING_LEVEL": "ERROR"},
    )
    if done.returncode != 0:
        raise BenchError(f"the hook could not be timed: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Run the bench and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.plugin", description="What our plugin costs inside a real vLLM."
    )
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line on stdout")
    parser.add_argument("--quick", action="store_true", help="a minute or two; the numbers say nothing")
    arguments = parser.parse_args()
    sizes = QUICK if arguments.quick else FULL

    def say(text: str) -> None:
        sys.stderr.write(f"bench.plugin: {text}\n")

    about = machine.description()
    try:
        plain = os.environ.get("FORKGATE_VLLM_PYTHON")
        if not plain:
            raise BenchError(
                "FORKGATE_VLLM_PYTHON is not set: a Python with vLLM, as `make test-engines` builds"
            )
        with tempfile.TemporaryDirectory(prefix="forkgate-bench-") as work:
            folder = pathlib.Path(work)
            plugged = str(plugin_venv.make(folder / "venv", plain))
            hook = hook_us(plugged)
            blocks = measure((plain, plugged), folder, sizes, say)
    except (BenchError, OSError, subprocess.CalledProcessError) as error:
        say(str(error))
        return 4
    return tell(blocks, hook, about | {"quick": arguments.quick}, as_json=arguments.json)


def tell(
    blocks: dict[str, list[Block]], hook: dict[str, float], about: dict[str, object], *, as_json: bool
) -> int:
    """Table on stderr, JSON on stdout; the exit code."""
    pairs = {"off_vs_plain": "off", "on_vs_plain": "on", "plain_vs_plain": "plain B"}
    speed = {mode: [block.tokens_per_s for block in found] for mode, found in blocks.items()}
    cpu = {mode: [block.cpu_ms_per_token for block in found] for mode, found in blocks.items()}
    figures: dict[str, Estimate] = {}
    for key, mode in pairs.items():
        for prefix, found in (("", speed), ("cpu_", cpu)):
            one, other = found["plain A"], found["plain B"]
            plain = one if mode == "plain B" else [(a + b) / 2 for a, b in zip(one, other, strict=True)]
            figures[prefix + key] = median_with_interval(ratios(found[mode], plain))
    off = figures["off_vs_plain"]
    # A bar of 2 % is not met, and not missed, by a figure that this machine knows to 2 % no better.
    at_least = BARS["off_vs_plain"].at_least
    assert at_least is not None
    void = off.low < at_least < off.high
    holds = None if void else off.value >= at_least
    for key, figure in figures.items():
        bar = BARS.get(key)
        word = "" if key != "off_vs_plain" else {True: "holds", False: "missed", None: "void"}[holds]
        meaning = bar.meaning if bar is not None else "the same, in CPU a token"
        sys.stderr.write(
            f"{key:<20} {figure.value:.4f} ×  ({figure.low:.4f} - {figure.high:.4f})  "
            f"{bar.words if bar is not None else '-'}  {word}  {meaning}\n"
        )
    for key, value in hook.items():
        sys.stderr.write(f"{key:<20} {value:.2f} µs  {BARS[key].meaning}\n")
    for mode, values in speed.items():
        rate = median_with_interval(values)
        sys.stderr.write(f"{mode:<20} {rate.value:.1f} tokens/s  ({rate.low:.1f} - {rate.high:.1f})\n")
    if as_json:
        document: dict[str, object] = {key: round(figure.value, 5) for key, figure in figures.items()}
        document |= {key: round(value, 3) for key, value in hook.items()}
        document["holds"] = {"off_vs_plain": holds}
        document["bars"] = {key: bar.words for key, bar in BARS.items()}
        document["intervals"] = {
            key: [round(figure.low, 5), round(figure.high, 5)] for key, figure in figures.items()
        }
        document["detail"] = {"tokens_per_s": speed, "cpu_ms_per_token": cpu}
        document["about"] = about
        print(json.dumps(document))
    return 4 if holds is None else 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
