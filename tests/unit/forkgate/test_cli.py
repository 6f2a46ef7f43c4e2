"""The command line: exit statuses, where words go, how little it loads."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from forkgate.cli.app import app
from tests.support.waiting import LIMIT_S

ROOT = Path(__file__).parents[3]
BAD = Path(__file__).parent / "bad_configs"
LONG = "n" * 10_000
RAW = re.compile(
    r"<[\w|\[\]. ]+>|object at 0x|\b(TEXT|PATH|FILENAME|DIRECTORY|INTEGER|FLOAT|RANGE|BOOLEAN|UUID)\b"
)
"""How typer, or click, shows what an option or argument becomes where nobody says what is meant."""


def forkgate(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "forkgate", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        env={**os.environ, **environment},
    )


def test_version_is_data() -> None:
    done = forkgate("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, "forkgate 0.1.0\n", "")


def test_unknown_command_is_a_usage_error() -> None:
    done = forkgate("srve")
    assert done.returncode == 2
    assert done.stdout == ""


def test_check_config_passes_a_good_file() -> None:
    done = forkgate("check-config", str(ROOT / "forkgate.example.yaml"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "ok, 2 pools, home a100, rollouts: a100-to-h100" in done.stdout


def test_check_config_names_every_problem_on_stderr_and_fails() -> None:
    file = BAD / "several_at_once.yaml"
    done = forkgate("check-config", str(file))
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 3
    assert all(line.startswith(f"{file}:") for line in done.stderr.splitlines())


def test_check_config_as_json_is_one_value_on_stdout() -> None:
    done = forkgate("check-config", str(BAD / "percent_range.yaml"), "--json")
    assert (done.returncode, done.stderr) == (2, "")
    told = json.loads(done.stdout)
    assert told["ok"] is False
    assert told["problems"][0]["message"] == "150 is outside 0-100"
    assert told["problems"][0]["path"] == "rollouts[0].shadow.percent"


def test_schema_is_json_on_stdout() -> None:
    done = forkgate("config", "schema")
    assert done.returncode == 0
    assert json.loads(done.stdout)["title"] == "forkgate configuration"


def test_serve_refuses_a_bad_file_before_it_binds_anything(tmp_path: Path) -> None:
    done = forkgate("serve", str(BAD / "home_unknown.yaml"))
    assert done.returncode == 2
    assert "home: no pool is called 'olds', did you mean 'old'?" in done.stderr


def test_serve_refuses_a_missing_file() -> None:
    done = forkgate("serve", "/nonexistent.yaml")
    assert (done.returncode, done.stderr) == (2, "/nonexistent.yaml: no such file\n")


@pytest.mark.parametrize(
    "arguments", [("status",), ("rollout", "list"), ("evidence", "list"), ("evidence", "replay", "x")]
)
def test_nobody_at_the_door_is_could_not_measure(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = forkgate(*arguments, "--state-dir", str(tmp_path))
    assert (done.returncode, done.stdout) == (4, "")
    assert "no judge answers there, is `forkgate serve` running?" in done.stderr


def test_lift_without_a_reason_is_a_usage_error(tmp_path: Path) -> None:
    assert forkgate("rollout", "lift", "r", "--state-dir", str(tmp_path)).returncode == 2
    done = forkgate("rollout", "lift", "r", "--reason", " ", "--state-dir", str(tmp_path))
    assert done.returncode == 2
    assert "--reason: is empty, say why to lift it" in done.stderr


def test_judge_that_says_nonsense_is_reported_not_traced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "admin.sock"))
        listener.listen()

        def answer() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(65_536)
                peer.sendall(b"HTTP/1.1 500 no\r\ncontent-length: 4\r\n\r\noops")

        thread = threading.Thread(target=answer)
        thread.start()
        done = forkgate("status", "--state-dir", str(tmp_path))
        thread.join()
    assert done.returncode == 4
    assert "the judge answered 500" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["", *sorted(typer.main.get_command(app).commands)])
def test_a_list_of_commands_cuts_no_sentence_short(name: str) -> None:
    whole = typer.main.get_command(app)
    group = whole.commands[name] if name else whole
    if isinstance(group, typer.core.TyperGroup):
        done = CliRunner().invoke(app, [*name.split(), "--help"], terminal_width=80)
        assert done.exit_code == 0
        assert "..." not in done.output.split("Commands:")[1]


@pytest.mark.parametrize(
    "arguments",
    [
        ("check-config", LONG),
        ("status", "--config", LONG),
        ("check", "self", str(ROOT / "forkgate.example.yaml"), "--pool", LONG),
        ("policy", "show", LONG),
        ("settings", LONG),
    ],
)
def test_what_was_typed_is_repeated_in_short(arguments: tuple[str, ...]) -> None:
    done = forkgate(*arguments)
    assert done.returncode == 2
    assert len(done.stderr) < 2_000
    assert done.stderr


def commands(group: Any, *path: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that has a help page, with the words that lead to it."""
    yield path, group
    for name, one in getattr(group, "commands", {}).items():
        yield from commands(one, *path, name)


@pytest.mark.parametrize(
    "path",
    [path for path, one in commands(typer.main.get_command(app)) if one.add_help_option],
    ids=lambda path: " ".join(path) or "forkgate",
)
def test_help_names_what_is_wanted_and_not_its_type(path: tuple[str, ...]) -> None:
    done = CliRunner().invoke(app, [*path, "--help"], terminal_width=100)
    assert done.exit_code == 0
    assert not RAW.search(done.output), done.output


def test_help_and_status_load_nothing_heavy() -> None:
    code = (
        "import sys; import forkgate.cli.app, forkgate.cli.door, forkgate.state.paths;"
        "heavy = {'grpc', 'numpy', 'scipy', 'aiohttp', 'torch', 'opentelemetry', 'ruamel', 'sqlite3'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_engine_without_torch_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import importlib.util, sys; real = importlib.util.find_spec;"
        "importlib.util.find_spec = lambda name, *a: None if name == 'torch' else real(name, *a);"
        "sys.argv = ['forkgate', 'engine', '--model', 'x']; from forkgate.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "forkgate engine: torch not installed, run: pip install 'forkgate[torch]'\n"


@pytest.mark.parametrize("command", ["serve", "edge", "judge", "check-config"])
@pytest.mark.parametrize("typed", [("{}",), ("--config", "{}"), ("-c", "{}"), ("{}", "--config", "{}")])
def test_file_is_an_argument_or_an_option(command: str, typed: tuple[str, ...]) -> None:
    bad = str(BAD / "home_unknown.yaml")
    done = forkgate(command, *(word.format(bad) for word in typed), FORKGATE_CONFIG="/nonexistent.yaml")
    assert done.returncode == 2
    assert "home: no pool is called 'olds', did you mean 'old'?" in done.stderr


@pytest.mark.parametrize("command", ["serve", "check-config"])
def test_two_different_files_are_refused(command: str) -> None:
    done = forkgate(command, "a.yaml", "--config", "b.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "FILE is a.yaml and --config is b.yaml: name one configuration file\n"


@pytest.mark.parametrize("command", ["serve", "check-config"])
def test_file_that_nobody_typed_is_the_environments(command: str) -> None:
    done = forkgate(command, FORKGATE_CONFIG="/nonexistent.yaml")
    assert (done.returncode, done.stderr) == (2, "/nonexistent.yaml: no such file\n")


def test_serve_refuses_a_taken_metrics_port(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        file = tmp_path / "forkgate.yaml"
        file.write_text(
            "listen: {port: 0}\n"
            "state_dir: state\n"
            "pools: [{name: old, endpoints: ['http://127.0.0.1:9']}]\n"
            "home: old\n"
            f"telemetry: {{prometheus: {{port: {port}}}}}\n"
        )
        done = forkgate("serve", str(file))
    assert done.returncode == 2
    told = f"telemetry.prometheus.port: 127.0.0.1:{port} is taken by another process"
    assert told in done.stderr.splitlines()[-1]
