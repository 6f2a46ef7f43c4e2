"""``forkgate demo``: two real models, two tenants, one fork, and traffic back on the old pool by itself."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from engines.model import ModelError, ensure_smollm2
from forkgate.cli.exits import Exit
from forkgate.demo.door import AsyncDoor
from forkgate.demo.plain import PlainStages
from forkgate.demo.prompts import PROMPTS
from forkgate.demo.stack import Child, DemoError, start_engine
from forkgate.demo.story import Seen, judge, tell
from forkgate.demo.traffic import TENANTS, Answer, Traffic, ask
from forkgate.state.paths import StatePaths

ABOUT = "Two real models, two tenants, one fork, and traffic back on the old pool by itself."
BASELINE, CANDIDATE, ROLLOUT = "float32", "bfloat16", "float32-to-bfloat16"
CANARY = TENANTS[0]
READY_S = 120.0
SETTLE_S = 60.0
MOST_REQUESTS = 2 * len(PROMPTS) * len(TENANTS)
"""Live requests without a rollback after which the demo gives up and says so."""
CONFIG = """\
# Written by `forkgate demo`: two reference engines on one machine, audit policy.
listen: {{host: 127.0.0.1, port: 0, workers: 2}}
state_dir: {state}
pools:
  - {{name: {baseline}, endpoints: ["{baseline_url}"], engine: {{kind: reference}}}}
  - {{name: {candidate}, endpoints: ["{candidate_url}"], engine: {{kind: reference}}}}
home: {baseline}
identity: {{tenant_header: x-tenant, trusted_peers: [127.0.0.0/8]}}
tenants: [{{name: acme}}, {{name: globex}}]
rollouts:
  - name: {rollout}
    baseline: {baseline}
    candidate: {candidate}
    policy: audit
    global_seed: demo
    # At level token the quick check finds this candidate's fork by itself and holds the rollout before any
    # traffic moves. The demo is to show what happens when nobody looked: a fork in live traffic.
    checks: {{self_check: false, quick_check: false}}
    shadow: {{percent: 50, token_only_percent: 0, max_tokens: 32, logprobs: 20, in_flight: 1}}
    start: on_load
    shadow_stage: {{skip: true}}
    steps: [{{tenants: [acme]}}]
"""


def main(argv: Sequence[str]) -> int:
    """Run the demo. Returns 0 only if everything it promises was seen to happen."""
    parser = argparse.ArgumentParser(prog="forkgate demo", description=ABOUT)
    parser.add_argument("--keep", action="store_true", help="leave everything running to play with")
    parser.add_argument("--json", action="store_true", help="the story as JSON on standard output")
    parser.add_argument(
        "--dir", type=Path, help="where configuration, state and logs go (default: a new folder)"
    )
    options = parser.parse_args(list(argv))
    console = Console(stderr=True, highlight=False)
    folder = (options.dir or Path(tempfile.mkdtemp(prefix="forkgate-demo-"))).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        console.print(f"[red]demo:[/] --dir {escape(str(folder))}: {error.strerror}", soft_wrap=True)
        return Exit.USAGE
    try:
        return asyncio.run(_demo(folder, console, keep=options.keep, as_json=options.json))
    except (DemoError, ModelError) as error:
        console.print(f"[red]demo:[/] {escape(str(error))}", soft_wrap=True)
        return Exit.UNMEASURED
    except (aiohttp.ClientError, OSError) as error:
        console.print(f"[red]demo:[/] {escape(str(error))}; the logs are in {folder}", soft_wrap=True)
        return Exit.UNMEASURED
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print(f"demo: stopped; the logs are in {folder}", soft_wrap=True)
        return Exit.UNMEASURED


async def _demo(folder: Path, console: Console, *, keep: bool, as_json: bool) -> int:
    started = time.monotonic()
    _cancelled_by_sigterm()
    with contextlib.ExitStack() as children:
        with _bar(console) as bar:
            config, paths, fingerprints_of = await _start(folder, bar, children)
            async with AsyncDoor(paths.admin_socket) as door:
                seen = await _watch(door, paths, bar, fingerprints_of)
        checks = judge(seen)
        kept = all(check.kept for check in checks)
        if as_json:
            _write_json({"ok": kept, "checks": checks, "story": tell(seen, checks), "config": str(config)})
        else:
            sys.stdout.write("\n".join(tell(seen, checks)) + "\n")
        console.print(
            f"[dim]{time.monotonic() - started:.0f} s. Its configuration, state and logs are in {folder}[/]",
            soft_wrap=True,
        )
        if keep:
            await _keep(console, config, seen)
        else:
            console.print("[dim]Keep it running and look around: make demo DEMO_ARGS=--keep[/]")
    return Exit.PASS if kept else Exit.FAIL


def _cancelled_by_sigterm() -> None:
    """Whoever ends the demo politely ends its children too, as Ctrl-C does."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)


async def _start(
    folder: Path, bar: Progress | PlainStages, children: contextlib.ExitStack
) -> tuple[Path, StatePaths, dict[str, str]]:
    """Model, two engines, forkgate. Returns the configuration file, its state and the engines' URLs."""
    task = bar.add_task("model SmolLM2-135M", total=1.0)
    model = await asyncio.to_thread(
        ensure_smollm2, None, lambda what, share: bar.update(task, description=what, completed=share)
    )
    bar.update(task, description="model SmolLM2-135M is there", completed=1.0)

    task = bar.add_task("starting two engines", total=2)
    urls: dict[str, str] = {}
    for pool in (BASELINE, CANDIDATE):
        urls[pool] = await asyncio.to_thread(start_engine, pool, model, pool, folder, children)
        bar.advance(task)
    bar.update(task, description=f"engines: {BASELINE} (old), {CANDIDATE} (new)", completed=2)

    config = folder / "forkgate.yaml"
    paths = StatePaths(folder / "state")
    config.write_text(
        CONFIG.format(
            state=paths.root,
            baseline=BASELINE,
            candidate=CANDIDATE,
            rollout=ROLLOUT,
            baseline_url=urls[BASELINE],
            candidate_url=urls[CANDIDATE],
        ),
        encoding="utf-8",
    )
    task = bar.add_task("starting forkgate, probing the engines", total=1)
    serve = Child(
        "forkgate", [sys.executable, "-m", "forkgate", "serve", str(config)], folder / "forkgate.log"
    )
    children.callback(serve.stop)
    await _until_ready(paths, serve)
    bar.update(task, description="forkgate: 2 edge workers, 1 judge, engines probed", completed=1)
    return config, paths, urls


async def _until_ready(paths: StatePaths, serve: Child) -> None:
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        serve.check()
        if paths.admin_socket.exists() and paths.listen.exists():
            async with AsyncDoor(paths.admin_socket) as door:
                # Its first step is taken once the old pool has been looked at.
                if await door.ready() and (await door.get(f"/v1/rollouts/{ROLLOUT}"))["state"] != "shadow":
                    return
        await asyncio.sleep(0.1)
    raise DemoError(f"forkgate was not ready within {READY_S:.0f} s; see {serve.log}")


async def _watch(
    door: AsyncDoor, paths: StatePaths, bar: Progress | PlainStages, urls: dict[str, str]
) -> Seen:
    """Send traffic until the rollback, then a little more; gather what is needed to judge."""
    url = "http://" + (await door.get("/v1/status"))["listen"][0]
    fingerprints = {pool: await _fingerprint(engine) for pool, engine in urls.items()}
    task = bar.add_task("live traffic of two tenants", total=None)

    def answered(_answer: Answer) -> None:
        bar.advance(task)

    traffic = Traffic(url, answered)
    running = asyncio.create_task(traffic.run())
    try:
        while not (rollout := await door.get(f"/v1/rollouts/{ROLLOUT}"))["latched"]:
            if running.done():
                await running
            if len(traffic.answers) >= MOST_REQUESTS:
                break
            bar.update(task, description=f"live traffic; {rollout['pairs']} pairs")
            await asyncio.sleep(0.2)
    finally:
        traffic.stop()
        await running
    bar.update(
        task,
        description=f"live traffic until the rollout is {rollout['state'].replace('_', ' ')}",
        total=len(traffic.answers),
    )

    task = bar.add_task("the same two tenants, after the rollback", total=4)
    after = []
    async with aiohttp.ClientSession(url) as session:
        for prompt in PROMPTS[:2]:
            for tenant in TENANTS:
                after.append(await ask(session, tenant, prompt))
                bar.advance(task)
    status = await _settled(door)
    rollout = next(found for found in status["rollouts"] if found["name"] == ROLLOUT)
    deciding = (rollout["latched"] or {}).get("deciding_id")
    return Seen(
        canary=CANARY,
        fingerprints=fingerprints,
        baseline=BASELINE,
        candidate=CANDIDATE,
        before=traffic.answers,
        after=after,
        rollout=rollout,
        ledger=status["ledger"],
        flips=status["flips"],
        explanation=await _explanation(door, deciding) if deciding else None,
    )


async def _settled(door: AsyncDoor) -> dict[str, Any]:
    """The status once nothing is in flight any more."""
    end = time.monotonic() + SETTLE_S
    while True:
        status: dict[str, Any] = await door.get("/v1/status")
        if (status["ledger"]["in_flight"] == 0 and status["flips"]) or time.monotonic() > end:
            return status
        await asyncio.sleep(0.2)


async def _explanation(door: AsyncDoor, capture_id: str) -> dict[str, Any] | None:
    found: list[dict[str, Any]] = (await door.get(f"/v1/evidence/{capture_id}"))["explanations"]
    return found[0] if found else None


async def _fingerprint(url: str) -> str | None:
    """What an engine calls itself when it is asked without forkgate in between."""
    async with aiohttp.ClientSession(url) as session:
        return (await ask(session, CANARY, PROMPTS[0])).fingerprint


async def _keep(console: Console, config: Path, seen: Seen) -> None:
    deciding = (seen.rollout["latched"] or {}).get("deciding_id", "ID")
    console.print("\nStill running. From another terminal, in this folder:")
    for command in (
        f"status --config {config}",
        f"rollout show {ROLLOUT} --config {config}",
        f"evidence list --forked --config {config}",
        f"evidence show {deciding} --config {config}",
        f"evidence replay {deciding} --config {config}",
        f'rollout lift {ROLLOUT} --reason "once more" --config {config}',
    ):
        console.print(f"  .venv/bin/forkgate {command}", soft_wrap=True)
    console.print("Ctrl-C ends it.")
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()
    console.print("stopping ...")


def _bar(console: Console) -> Progress | PlainStages:
    if not console.is_terminal:
        return PlainStages(console)
    return Progress(
        TextColumn("{task.description:<52}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:.0f}"),
        TimeElapsedColumn(),
        console=console,
    )


def _write_json(value: dict[str, Any]) -> None:
    import msgspec

    sys.stdout.buffer.write(orjson.dumps(msgspec.to_builtins(value), option=orjson.OPT_APPEND_NEWLINE))
