"""``forkgate check`` as users type it, against real reference engines."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.engine_process import EngineProcess, reference_engine
from tests.support.tiny_model import write_tiny_model

CONFIG = """
state_dir: state
pools:
  - {{name: old, endpoints: ["{old}"], engine: {{kind: reference}}}}
  - {{name: new, endpoints: ["{new}"], engine: {{kind: reference}}}}
  - {{name: gone, endpoints: ["http://127.0.0.1:9"], engine: {{kind: reference}}}}
home: old
rollouts:
  - name: r
    baseline: old
    candidate: {candidate}
    policy: audit
    global_seed: s
    checks: {{self_runs: 2, prompts: 3, tokens: 6}}
"""


@dataclass(frozen=True, kw_only=True)
class Engines:
    old: EngineProcess
    other_template: EngineProcess


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    other = Path(shutil.copytree(folder, tmp_path_factory.mktemp("other") / "tiny"))
    template = other / "chat_template.jinja"
    template.write_text(template.read_text().replace("assistant\n", "assistant: "))
    with reference_engine(folder) as old, reference_engine(other) as changed:
        yield Engines(old=old, other_template=changed)


def check(folder: Path, config: str, *arguments: str) -> tuple[int, Any, str]:
    """Exit status, the JSON on standard output, and standard error."""
    (folder / "forkgate.yaml").write_text(config)
    done = subprocess.run(
        [sys.executable, "-m", "forkgate", "check", *arguments, "--json"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def config(engines: Engines, candidate: str = "new") -> str:
    return CONFIG.format(old=engines.old.url, new=engines.other_template.url, candidate=candidate)


def test_engine_that_reproduces_itself_passes(engines: Engines, tmp_path: Path) -> None:
    status, found, said = check(tmp_path, config(engines), "self")
    assert status == 0, said
    assert (found["answer"], found["level"], found["pairs"], found["equal"]) == ("pass", "token", 3, 3)
    assert found["floor"]["sigma_nats"] == 0
    assert all(one["said"] for one in found["prompts"])
    assert "asking old: 3 prompts of 6 tokens, 2 runs" in said


def test_other_chat_template_fails_the_quick_check_as_what_it_is(engines: Engines, tmp_path: Path) -> None:
    status, found, said = check(tmp_path, config(engines), "quick", "--rollout", "r")
    assert status == 1
    assert found["answer"] == "fail"
    assert "encoding_mismatch: prompt token IDs differ from position" in found["reason"]
    assert found["reason"] in said
    assert found["classes"] == {}


def test_pool_that_does_not_answer_was_not_measured(engines: Engines, tmp_path: Path) -> None:
    status, found, _ = check(tmp_path, config(engines, "gone"), "quick")
    assert status == 4
    assert found["reason"].startswith("nothing was measured: pool gone: http://127.0.0.1:9: ")


def test_unknown_pool_is_a_usage_error(engines: Engines, tmp_path: Path) -> None:
    status, found, said = check(tmp_path, config(engines), "self", "--pool", "odl")
    assert (status, found) == (2, None)
    assert said.strip() == "--pool: no pool is called 'odl', did you mean 'old'?"


def test_unknown_rollout_is_a_usage_error(engines: Engines, tmp_path: Path) -> None:
    status, found, said = check(tmp_path, config(engines), "quick", "--rollout", "x")
    assert (status, found) == (2, None)
    assert said.strip() == "--rollout: no rollout is called 'x', known: r"
