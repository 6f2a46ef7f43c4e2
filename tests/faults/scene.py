"""A whole ``forkgate serve`` under a steady live load: calm, then a fault, then a rollback that must last."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from tests.faults.figures import Figures, p99
from tests.support.saboteur import StubProcess
from tests.support.sidecar import eventually_async
from tests.support.stack import Answer, Load, Stack, stubs
from tests.support.waiting import eventually

CALM_S = 3.0
LOOK_S = 0.25
"""Between two looks at the ledger."""
CLIENTS = 4
SHADOW: dict[str, Any] = {"arm_timeout_s": 1.5, "in_flight": 16}
"""Shorter than what a live answer may wait, so that each stuck arm ends within the row."""
NAME = "old-to-new"


class Scene:
    """One row's stack, load and figures."""

    def __init__(self, one: Stack, old: StubProcess, new: StubProcess, figures: Figures) -> None:
        self.one, self.old, self.new, self.figures = one, old, new, figures
        self._load: Load | None = None
        self._excuses: list[Callable[[Answer], bool]] = []
        self._memory: dict[str, int] = {}
        self._unbalanced: list[dict[str, Any]] = []
        self._looks = self._captured = 0

    @property
    def load(self) -> Load:
        if self._load is None:
            self._load = Load(self.one, clients=CLIENTS)
        return self._load

    async def calm(self, seconds: float) -> None:
        """The same load without the fault: what an answer takes here and now."""
        await self.load.more()  # connections and caches are warm, memory is taken
        begun = time.monotonic()
        await asyncio.sleep(seconds)
        self.figures.p99_before_s = p99([one.ended - one.started for one in self._since(begun)])
        self._memory = self.memory()

    @contextlib.asynccontextmanager
    async def fault(self) -> AsyncIterator[None]:
        """What happens inside is measured as happening under the fault."""
        begun = time.monotonic()
        try:
            yield
        finally:
            told = self._since(begun)
            self.figures.under_fault += len(told)
            self.figures.p99_s = p99([one.ended - one.started for one in told if one.whole])

    def _since(self, begun: float) -> list[Answer]:
        return [one for one in self.load.answers if one.started >= begun]

    def excuse(self, which: Callable[[Answer], bool]) -> None:
        """Broken answers that the killed process itself had begun."""
        self._excuses.append(which)

    def excuse_ports(self, ports: set[int]) -> None:
        self.excuse(lambda answer: answer.port in ports)

    # -- a person's words ---------------------------------------------------------------------------------

    async def say(self, verb: str, tenant: str | None = None) -> None:
        """It is done once this returns."""
        status, answer = await self.one.word(verb, tenant=tenant)
        assert status == 200, (verb, tenant, answer)

    async def at(self, place: str) -> None:
        """Wait until the rollout is there."""
        await self.one.until(place, place=place)

    async def may_leave(self) -> None:
        """Wait until nothing stands in the way of its next step."""

        async def nothing_left() -> bool:
            return not (await self.show())["blocked_by"]

        await eventually_async(nothing_left, "nothing stands in the step's way")

    async def promote(self, place: str) -> None:
        """One step on, to there."""
        await self.may_leave()
        await self.say("promote")
        await self.at(place)

    # -- a rollback ---------------------------------------------------------------------------------------

    async def roll_back(self) -> None:
        """The candidate forks. Where the fault left the rollout held until somebody looks, a person says it;
        either way its tenant must be home at every edge."""
        self.figures.rollback = "lost"
        held = (await self.show())["held"]
        await self.new.set("forks at token 2")
        if held is not None:
            self.figures.note += "; held, so a person rolled back"
            await self.say("rollback")
        await self.one.until("the rollback", state="rolled_back")
        await self.one.obeyed()
        await self.new.set()

    async def rollback_lasts(self) -> None:
        """Nobody strays to the candidate any more, and the next judge knows of it."""
        await self.stays_home()
        await self.one.until("a durable latch", state="rolled_back", latched=Durable())
        await self.another_judge()
        found = await self.one.until("the rollback in the next life", state="rolled_back")
        assert found["latched"]["durable"], found
        await self.one.obeyed()
        await self.stays_home()
        self.figures.rollback = "kept"

    async def stays_home(self, engine: str = "old") -> None:
        """Whoever asks from now on is answered by the old pool."""
        # One answer of each client may have begun before.
        begun = time.monotonic()
        await self.load.more(3 * CLIENTS)
        strayed = [one for one in self._since(begun) if one.whole and one.engine != engine]
        assert strayed == [], strayed[:3]

    async def stays_home_by_and_by(self) -> None:
        """The newest answers of every client come from the old pool."""
        await eventually(
            lambda: {one.engine for one in self.load.answers[-3 * CLIENTS :]} == {"old"}, "everybody at home"
        )

    async def another_judge(self) -> None:
        """``kill -9`` the judge, and wait for the next."""
        lives = len(self.one.pids("judge"))
        self.one.kill("judge")
        await self.judge_beyond(lives)

    async def another_edge(self, name: str) -> None:
        """``kill -9`` an edge, and wait for the next. The answers that it was giving are excused."""
        lives = len(self.one.pids(name))
        self.excuse_ports(self.one.stop_then_kill(name))
        await eventually(lambda: len(self.one.pids(name)) > lives, f"another {name}")

    async def judge_beyond(self, lives: int) -> None:
        """Wait for a further life of the judge, which answers."""
        await eventually(lambda: len(self.one.pids("judge")) > lives, "another judge")
        await eventually_async(self._answers, "the next judge")

    async def dies_at(self, moment: str, act: Callable[[], Any]) -> None:
        """The judge kills itself at this moment of what ``act`` sets off; the next one is there."""
        lives = len(self.one.pids("judge"))
        (self.one.seams / "moment").write_text(moment)
        with contextlib.suppress(aiohttp.ClientError, OSError):  # nobody is left to answer
            await act()
        await eventually(lambda: len(self.one.pids("judge")) > lives, f"a judge killed {moment}")
        assert (self.one.seams / "fired").read_text() == moment
        await self.judge_beyond(lives)

    async def home_is(self, pool: str) -> None:
        """Wait until home is this pool, for the judge and for every edge."""

        async def moved() -> bool:
            return bool((await self.one.status())["home"] == pool)

        await eventually_async(moved, f"home is {pool}")
        await self.one.obeyed()

    async def _answers(self) -> bool:
        with contextlib.suppress(aiohttp.ClientError, OSError):
            await self.one.obeyed()
            return True
        return False

    async def show(self) -> dict[str, Any]:
        found: dict[str, Any] = await self.one.admin(f"/v1/rollouts/{NAME}")
        return found

    async def evidence(self) -> int:
        """Comparisons that the gate about tokens has counted."""
        (gate,) = (one for one in (await self.show())["verdicts"] if one["gate"] == "token_equality")
        return int(gate["n"])

    async def live_at_engines(self) -> int:
        """Live requests that either engine was asked."""
        counts = [await stub.counts() for stub in (self.old, self.new)]
        return sum(one["live"] for one in counts)

    # -- looks --------------------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Look at the ledger again and again, whatever dies meanwhile."""
        while True:
            with contextlib.suppress(aiohttp.ClientError, OSError, ValueError):
                ledger = await self.one.admin("/v1/ledger")
                self._looks += 1
                self._captured = max(self._captured, ledger["captured"])
                if not ledger["balanced"]:
                    self._unbalanced.append(ledger)
            await asyncio.sleep(LOOK_S)

    def memory(self) -> dict[str, int]:
        """Resident bytes by process."""
        assert self.one.process is not None
        pids = {child: self.one.pids(child)[-1] for child in ("judge", "edge 0", "edge 1")}
        pids["supervisor"] = self.one.process.pid
        found = {}
        for child, pid in pids.items():
            with contextlib.suppress(psutil.NoSuchProcess):
                found[child] = psutil.Process(pid).memory_info().rss
        return found

    def grown(self) -> None:
        """Keep the largest growth since the calm."""
        if self._memory:
            now = self.memory()
            most = max(now[child] - self._memory[child] for child in now.keys() & self._memory.keys())
            self.figures.growth_mib = max(self.figures.growth_mib, most / 2**20)

    async def settled(self) -> None:
        """The load has ended: what it asked is compared or dropped, and every drop has its reason."""
        ledger = await self.one.quiet()
        self.figures.balanced = self._looks > 0 and not self._unbalanced
        assert max(self._captured, ledger["captured"]) > 0, "nothing was ever captured"

    def counted(self) -> None:
        """How the answers were."""
        if self._load is None:
            return
        self.figures.live = len(self.load.answers)
        bad = self.load.bad()
        excused = [one for one in bad if any(which(one) for which in self._excuses)]
        self.figures.excused = len(excused)
        self.figures.errors = len(bad) - len(excused)
        if self.figures.errors and not self.figures.failed:
            first = next(one for one in bad if one not in excused)
            self.figures.failed = f"the first live error: {first}"


class Durable:
    """Equals a latch that is on the disk."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict) and other["durable"] is True

    __hash__ = None  # type: ignore[assignment]


Act = Callable[[Scene], Any]


async def play(
    figures: Figures,
    directory: Path,
    act: Act,
    *,
    rollback_after: bool = True,
    plan: dict[str, Any] | None = None,
    calm_s: float = CALM_S,
    **options: Any,
) -> None:
    """One row: a calm, the fault, and then, unless the fault had one, a rollback that must last.

    Args:
        act: what happens while the load goes on, from the calm on.
        plan: what its rollout has otherwise than :class:`Stack` gives it.
        calm_s: how long the load is measured without the fault.
        options: of :class:`Stack`.
    """
    options.setdefault("shadow", SHADOW)
    async with stubs("old", "new") as (old, new):
        one = Stack(directory, old.url, new.url, **options)
        one.config["rollouts"][0] |= plan or {}
        one.write()
        scene = Scene(one, old, new, figures)
        watching = None
        try:
            await one.start()
            watching = asyncio.create_task(scene.watch())
            async with scene.load:
                await scene.calm(calm_s)
                await act(scene)
                scene.grown()
                if rollback_after:
                    await scene.roll_back()
                    await scene.rollback_lasts()
            await scene.settled()
        finally:
            if watching is not None:
                watching.cancel()
            scene.counted()
            await one.close()
