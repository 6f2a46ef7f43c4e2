"""Suites for tests: as files that a policy names, and loaded; a mirror and a scorer that only pretend."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from comparator.comparison import Comparison
from comparator.records import Arm
from forkgate.config.suites import LoadedSuite, load_suite, read_suite
from policies.scoring import Judged, questions_of
from policies.suite_section import ScorerSection, SuiteSection
from policies.suites import Sample
from proxy.mirror import SampleAsk
from tests.support.exchanges import comparison, pair


def sample(name: str = "s1", **fields: Any) -> dict[str, Any]:
    """One line of a suite, as plain data."""
    return {"id": name, "category": "short", "template": "t", "prompt": f"Say {name}.", **fields}


def lines(*samples: dict[str, Any]) -> str:
    return "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in samples)


def loaded(
    folder: Path,
    *samples: dict[str, Any],
    passes: int = 1,
    scorers: dict[str, str] | None = None,
    timeout_s: float = 5.0,
) -> LoadedSuite:
    """A suite called ``mine``, read from files in ``folder``; ``scorers`` maps a name to its code."""
    (folder / "mine.jsonl").write_text(lines(*samples), encoding="utf-8")
    sections = {}
    for name, code in (scorers or {}).items():
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
        sections[name] = ScorerSection(python=f"{name}.py:score", timeout_s=timeout_s)
    source, problems = read_suite(
        "mine", SuiteSection(file="mine.jsonl", passes=passes, scorers=sections), folder
    )
    assert source is not None, problems
    return load_suite(source)


class FakeMirror:
    """Answers every sample, but for what ``fate`` says of it."""

    def __init__(self, fate: Callable[[SampleAsk, int], Exception | None] = lambda _ask, _time: None) -> None:
        self.fate = fate
        self.asks: list[SampleAsk] = []
        self.times: defaultdict[tuple[str, int], int] = defaultdict(int)
        self.active = self.most_active = 0
        self.gate: asyncio.Event | None = None

    async def run_sample(self, rollout: str, ask: SampleAsk) -> Comparison:
        assert rollout == "old-to-new"
        self.asks.append(ask)
        key = (ask.sample.sample_id, ask.sample.passage)
        self.times[key] += 1
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            await asyncio.sleep(0)
            if self.gate is not None:
                await self.gate.wait()
            if (error := self.fate(ask, self.times[key])) is not None:
                raise error
        finally:
            self.active -= 1
        capture_id = f"{key[0]}/{key[1]}"
        pairs = [pair(capture_id=capture_id)]
        if ask.control:
            pairs.append(pair(capture_id=capture_id, right_arm=Arm.CONTROL))
        return comparison(*pairs, sample=ask.sample)


class Ones:
    """A scorer that gives everything a 1."""

    def __init__(self) -> None:
        self.answers: list[str] = []

    async def score(self, loaded: LoadedSuite, sample: Sample, answer: str) -> tuple[Judged, ...]:
        self.answers.append(answer)
        return tuple(Judged(question=one, value=1.0) for one in questions_of(sample))

    def forget(self, loaded: LoadedSuite) -> None:
        return

    async def close(self) -> None:
        return
