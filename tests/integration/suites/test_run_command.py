"""``forkgate suite run`` against a real reference engine, which is both arms."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.engine_process import EngineProcess, reference_engine
from tests.support.suites import lines, sample
from tests.support.tiny_model import write_tiny_model

CONFIG = """
state_dir: state
pools:
  - {{name: old, endpoints: ["{url}"], engine: {{kind: reference}}}}
  - {{name: new, endpoints: ["{url}"], engine: {{kind: reference}}}}
home: old
rollouts:
  - {{name: r, baseline: old, candidate: new, policy: ./policy.yaml, global_seed: s}}
"""
POLICY = """
level: statistical
alpha: 0.05
gates:
  rule_cases: {suite: mine}
suites:
  mine:
    file: mine.jsonl
    passes: 2
    scorers: {length: {python: "length.py:score"}, sulky: {python: "sulky.py:score"}}
"""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    with reference_engine(write_tiny_model(tmp_path_factory.mktemp("tiny"))) as running:
        yield running


def forkgate(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "forkgate", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_suite_is_asked_scored_and_written_down(engine: EngineProcess, tmp_path: Path) -> None:
    (tmp_path / "forkgate.yaml").write_text(CONFIG.format(url=engine.url))
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "length.py").write_text("def score(answer, sample):\n    return len(answer) > 0\n")
    (tmp_path / "sulky.py").write_text("def score(answer, sample):\n    raise RuntimeError('no mood')\n")
    (tmp_path / "mine.jsonl").write_text(
        lines(
            sample("a", rules=[{"kind": "python", "scorer": "length"}], max_tokens=4),
            sample("b", answer={"kind": "python", "scorer": "sulky"}, max_tokens=4),
            sample("c", prompt=None, messages=[{"role": "user", "content": "hello"}], max_tokens=4),
        )
    )
    done = forkgate(tmp_path, "suite", "run", "--out", "pairs.jsonl", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["asked"], found["run"], found["failed"], found["stopped"]) == (6, 6, {}, None)
    questions = {(one["question"], one["arm"]): one for one in found["questions"]}
    assert questions["rules", "control"]["n"] == 2, "a sample with rules gets a control arm in each pass"
    assert questions["rules", "baseline"]["mean"] == questions["rules", "candidate"]["mean"]
    assert (questions["answer", "candidate"]["n"], questions["answer", "candidate"]["errors"]) == (0, 2)
    assert questions["answer", "candidate"]["first_error"] == "scorer 'sulky': RuntimeError: no mood"
    assert questions["refusal", "baseline"]["n"] == 6

    written = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert [(one["comparison"]["sample"]["sample_id"]) for one in written].count("a") == 2
    judged = forkgate(
        tmp_path, "gate", "evaluate", "--policy", "./policy.yaml", "--pairs", "pairs.jsonl", "--json"
    )
    assert judged.returncode in (0, 3), judged.stderr
    assert json.loads(judged.stdout)["comparisons"] == 6


def test_engine_that_does_not_answer_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "forkgate.yaml").write_text(CONFIG.format(url="http://127.0.0.1:9"))
    (tmp_path / "policy.yaml").write_text(POLICY.partition("    scorers")[0])
    (tmp_path / "mine.jsonl").write_text(lines(sample("a", rules=[{"kind": "regex", "pattern": "x"}])))
    done = forkgate(tmp_path, "suite", "run", "--json")
    assert done.returncode == 4
    assert json.loads(done.stdout)["stopped"].startswith(
        "nothing was measured: pool old: http://127.0.0.1:9: "
    )
