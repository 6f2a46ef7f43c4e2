"""``forkgate settings`` and ``forkgate determinism``: what a person and a script see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from forkgate.cli.app import app


def settings(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(app, ["settings", *arguments])
    assert result.exit_code == status, (result.output, result.exception)
    return result


def test_json_has_flags_environment_and_sources() -> None:
    told = json.loads(settings("vllm", "--level", "token", "--seed", "3", "--json").stdout)
    assert told["engine"] == "vllm"
    assert told["environment"]["PYTHONHASHSEED"] == "3"
    assert told["arguments"][told["arguments"].index("--seed") + 1] == "3"
    assert all(row["reason"] and row["cost"] and row["source"] for row in told["settings"])


def test_a_shell_script_and_a_table() -> None:
    assert settings("llama.cpp", "--shell").stdout.startswith("#!/bin/sh\n")
    assert "cost:" in settings("llama.cpp").stdout


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["ollama"], 2, "'ollama' is not one of vllm"),
        (["vllm", "--level", "bits"], 2, "--level: 'bits' is not one of artifact, environment"),
        (["vllm", "--batch", "two"], 2, "--batch: 'two' is not one of one, invariant"),
        (["vllm", "--dtype", "auto"], 2, "--dtype: 'auto' is not one of float32"),
        (["vllm", "--seed", "-3"], 2, "--seed: -3 is outside"),
        (["vllm", "--version", "0.9.1"], 3, "nothing was looked up for vllm 0.9.1"),
        (["llama.cpp", "--batch", "invariant"], 2, "no batch-invariant mode"),
        (["vllm", "--shell", "--json"], 2, "--shell: not together"),
        (["vllm", "--check", "no-url"], 2, "--check: "),
        (["vllm", "--check", "http://127.0.0.1:9"], 4, "no answer"),
        (["vllm", "--pid", "999999999"], 4, "999999999"),
    ],
)
def test_bad_input_is_named(arguments: list[str], status: int, words: str) -> None:
    assert words in settings(*arguments, status=status).stderr


@pytest.fixture
def sleeper() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def start(started: list[subprocess.Popen[bytes]], *arguments: str, **variables: str) -> str:
    """A process whose command line reads like an engine's; returns its PID once that stands in /proc."""
    code = "import sys; print('up', flush=True); sys.stdin.read()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **variables},
    )
    started.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return str(process.pid)


def test_a_process_is_compared_by_command_line_and_variables(sleeper: list[subprocess.Popen[bytes]]) -> None:
    told = json.loads(settings("llama.cpp", "--level", "environment", "--json").stdout)
    good = start(sleeper, "llama-server", *told["arguments"])
    found = json.loads(
        settings("llama.cpp", "--level", "environment", "--pid", good, "--json", status=0).stdout
    )
    assert (found["not_met"], found["unknown"]) == (0, 0)
    assert found["met"] == len(found["settings"])
    bad = start(sleeper, "llama-server", *told["arguments"], "--cache-prompt")
    found = json.loads(
        settings("llama.cpp", "--level", "environment", "--pid", bad, "--json", status=1).stdout
    )
    assert [one["name"] for one in found["settings"] if one["state"] == "not met"] == ["no prompt cache"]


def test_what_requests_must_carry_is_told_and_is_no_state_of_the_engine(
    sleeper: list[subprocess.Popen[bytes]],
) -> None:
    told = json.loads(settings("llama.cpp", "--json").stdout)
    result = settings("llama.cpp", "--pid", start(sleeper, "llama-server", *told["arguments"]), status=0)
    assert "each request must carry" in result.stderr
    assert "MET" in result.stdout
    assert "NOT MET" not in result.stdout


def test_another_engine_than_the_named_one_is_refused(sleeper: list[subprocess.Popen[bytes]]) -> None:
    pid = start(sleeper, "llama-server", "--seed", "0")
    assert "is llama.cpp, and ENGINE is vllm" in settings("vllm", "--pid", pid, status=2).stderr
    other = start(sleeper, "nothing")
    assert "starts no engine that is known here" in settings("vllm", "--pid", other, status=2).stderr


def test_no_command_imports_torch() -> None:
    code = (
        "import sys\nfrom forkgate.cli.app import app\n"
        "app(['settings', 'reference'], standalone_mode=False)\n"
        "assert not {'torch', 'transformers', 'vllm', 'numpy'} & set(sys.modules), 'heavy'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
