"""The checks as the judge makes them: when engines have been probed, the floor of one handed to the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from comparator.records import Step
from engines.base import Finish, Prompt, Steps
from forkgate.checks import CheckProgress, CheckReport, CheckRuns, quick_check
from forkgate.checks.progress import Progress
from forkgate.config import loads
from policies.policy import Level
from policies.rollout import CheckKind
from policies.verdict import Answer
from proxy.mirror import MirrorSettings, ShadowPool, ShadowRollout
from tests.support.engines import FakeEndpoint, FakeEngine, Script, fake_step, load, probe
from tests.support.waiting import eventually

CONFIG = loads(
    """
state_dir: state
pools:
  - {name: old, endpoints: ["http://127.0.0.1:9001"]}
  - {name: new, endpoints: ["http://127.0.0.1:9002"]}
home: old
rollouts:
  - name: r
    baseline: old
    candidate: new
    policy: audit
    global_seed: s
    checks: {self_runs: 2, prompts: 3, tokens: 4}
"""
)


def runs(baseline: FakeEndpoint, candidate: FakeEndpoint) -> CheckRuns:
    pools = [ShadowPool(name=name, endpoints=(one,)) for name, one in (("old", baseline), ("new", candidate))]
    return CheckRuns(
        CONFIG,
        (
            ShadowRollout(
                name="r",
                baseline=pools[0],
                candidate=pools[1],
                settings=MirrorSettings(quiet_s=0.2),
                global_seed="s",
            ),
        ),
    )


def test_check_asks_as_much_as_the_rollouts_settings_say() -> None:
    engine = FakeEngine()
    made = runs(FakeEndpoint(engine), FakeEndpoint(FakeEngine()))
    report = asyncio.run(made.run("r", CheckKind.SELF_CHECK, Level.TOKEN))
    assert (report.answer, report.pairs) == (Answer.PASS, 3)
    assert {one.sampling.max_tokens for one in engine.prompts} == {4}


def test_engine_that_still_loads_is_waited_for() -> None:
    async def go() -> CheckReport:
        late = FakeEndpoint(FakeEngine(), error="http://fake: connection refused")
        made = runs(FakeEndpoint(FakeEngine()), late)
        checking = asyncio.create_task(made.run("r", CheckKind.QUICK_CHECK, Level.TOKEN))
        done, _ = await asyncio.wait({checking}, timeout=0.3)
        assert not done
        late.probe, late.error = probe(), None
        return await checking

    assert asyncio.run(go()).answer is Answer.PASS


def test_how_far_a_check_is_can_be_seen_while_it_runs() -> None:
    async def go() -> None:
        engine = FakeEngine()
        engine.gate = asyncio.Event()
        late = FakeEndpoint(engine, error="http://fake: connection refused")
        made = runs(late, FakeEndpoint(FakeEngine()))
        assert made.progress("r") is None
        checking = asyncio.create_task(made.run("r", CheckKind.SELF_CHECK, Level.TOKEN))

        def seen() -> CheckProgress:
            progress = made.progress("r")
            assert progress is not None
            return progress

        await eventually(lambda: made.progress("r") is not None and seen().waiting is not None)
        assert seen().waiting == "1 of 1 endpoints of old have not answered a probe yet"
        assert (seen().answers, seen().wanted) == (0, None)
        late.probe, late.error = probe(), None
        await eventually(lambda: engine.active)
        assert (seen().answers, seen().wanted, seen().waiting) == (0, 6, None)
        met: set[int] = set()
        engine.script = watched(lambda: met.add(seen().answers))
        engine.gate.set()
        await checking
        assert met == set(range(6))
        assert made.progress("r") is None

    asyncio.run(go())


def test_a_quick_check_counts_both_arms_and_what_was_not_run() -> None:
    progress = Progress()
    pools = [
        ShadowPool(name=name, endpoints=(FakeEndpoint(engine),))
        for name, engine in (("old", FakeEngine()), ("new", FakeEngine(encode_shift=1)))
    ]
    settings = CONFIG.rollout("r").checks
    asyncio.run(
        quick_check(*pools, settings, level=Level.TOKEN, rollout="r", global_seed="s", progress=progress)
    )
    assert (progress.answers, progress.wanted) == (6, 6)


def watched(look: Callable[[], None]) -> Script:
    """Answers of one token, each begun with a look."""

    async def script(prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
        look()
        yield Steps((fake_step(prompt, 0),))
        yield Finish(finish_reason="stop", prompt_token_ids=prompt.token_ids)

    return script


def test_check_that_is_cancelled_leaves_no_generation_running() -> None:
    async def go() -> int:
        engine = FakeEngine()
        engine.gate = asyncio.Event()
        checking = asyncio.create_task(
            runs(FakeEndpoint(engine), FakeEndpoint(FakeEngine())).run("r", CheckKind.SELF_CHECK, Level.TOKEN)
        )
        await eventually(lambda: engine.active)
        checking.cancel()
        await asyncio.wait({checking})
        return engine.active

    assert asyncio.run(go()) == 0


@pytest.mark.parametrize("kind", list(CheckKind))
def test_a_check_leaves_a_pool_that_live_work_comes_back_to_and_is_made_anew_once_it_is_quiet(
    kind: CheckKind,
) -> None:
    async def go() -> None:
        engine = FakeEngine()
        engine.gate, engine.now = asyncio.Event(), load(waiting=3)
        made = runs(FakeEndpoint(engine), FakeEndpoint(FakeEngine()))
        checking = asyncio.create_task(made.run("r", kind, Level.TOKEN))
        await eventually(lambda: engine.active)
        if kind is CheckKind.SELF_CHECK:
            assert made.yield_pool("new", "elsewhere") == 0
        assert made.yield_pool("old", "acme comes home") == 1
        await eventually(lambda: not engine.active)
        engine.gate.set()

        def waits() -> bool:
            progress = made.progress("r")
            return progress is not None and "acme comes home" in (progress.waiting or "")

        await eventually(waits)
        asked = len(engine.prompts)
        engine.now = load()
        assert (await checking).answer is Answer.PASS
        assert len(engine.prompts) > asked

    asyncio.run(go())


@pytest.mark.parametrize(("self_first", "fork_class"), [(True, "tie_flip"), (False, "precision_drift")])
def test_quick_check_knows_the_floor_that_the_self_check_found(self_first: bool, fork_class: str) -> None:
    class Wavering(FakeEngine):
        """Every other answer swaps two choices that are 0.01 nats apart."""

        def step(self, prompt: Prompt, index: int) -> Step:
            made = fake_step(prompt, index)
            first, second, *rest = made.top_ids
            gap = 0.01 if index == 2 else 0.02 * (len(self.prompts) % 2) + 1.0
            ids = (second, first, *rest) if self.swaps and index == 2 else made.top_ids
            logprobs = (-0.25, -0.25 - gap, *(one - 3 for one in made.top_logprobs[2:]))
            return Step(ids[0], logprobs[0], ids, logprobs, made.received_s, made.text)

        swaps = False

    exact: Any = probe(dtype="float32")
    candidate = Wavering()
    candidate.swaps = True

    async def go() -> CheckReport:
        made = runs(FakeEndpoint(Wavering(), exact), FakeEndpoint(candidate, exact))
        if self_first:
            await made.run("r", CheckKind.SELF_CHECK, Level.STATISTICAL)
        return await made.run("r", CheckKind.QUICK_CHECK, Level.STATISTICAL)

    report = asyncio.run(go())
    assert report.classes == {fork_class: 3}
