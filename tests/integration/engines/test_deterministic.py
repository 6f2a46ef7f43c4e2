"""``forkgate engine --deterministic`` and ``forkgate determinism audit``, as processes."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.support.engine_process import EngineProcess, reference_engine
from tests.support.tiny_model import write_tiny_model
from tests.support.waiting import LIMIT_S

_NONDETERMINISTIC = '''
"""A head that writes by put_, which has no deterministic implementation: loaded with the folder's config."""
import torch
from transformers import LlamaForCausalLM

forward = LlamaForCausalLM.forward


def bad(self, *args, **kwargs):
    output = forward(self, *args, **kwargs)
    output.logits.put_(torch.tensor([0]), torch.tensor([0.0]))
    return output


LlamaForCausalLM.forward = bad
'''


@pytest.fixture(scope="module")
def deterministic(tiny_folder: pathlib.Path) -> Iterator[EngineProcess]:
    options = ("--served-model-name", "tiny", "--deterministic", "--seed", "5", "--max-batch", "4")
    with reference_engine(tiny_folder, *options) as running:
        yield running


@pytest.fixture
def nondeterministic(tmp_path: pathlib.Path) -> dict[str, str]:
    """An environment in which the model has such an operator: a module that Python loads as it starts."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "patched_model.py").write_text(_NONDETERMINISTIC)
    # Applied when transformers is imported by the engine, not at once: the front door imports no torch.
    (tmp_path / "site" / "sitecustomize.py").write_text(
        "import builtins, sys\n"
        "real = builtins.__import__\n"
        "def hooked(name, *args, **kwargs):\n"
        "    found = real(name, *args, **kwargs)\n"
        "    if name == 'engines.reference.rows' and 'patched_model' not in sys.modules:\n"
        "        real('patched_model')\n"
        "    return found\n"
        "builtins.__import__ = hooked\n"
    )
    return {**os.environ, "PYTHONPATH": str(tmp_path / "site")}


async def ask(engine: EngineProcess, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    async with aiohttp.ClientSession() as session:

        async def one(body: dict[str, Any]) -> dict[str, Any]:
            async with session.post(f"{engine.url}/v1/completions", json=body) as answer:
                assert answer.status == 200, await answer.text()
                told: dict[str, Any] = await answer.json()
                return told

        return list(await asyncio.gather(*(one(body) for body in bodies)))


def body(prompt: str, **more: Any) -> dict[str, Any]:
    return {
        "model": "tiny",
        "prompt": prompt,
        "max_tokens": 12,
        "ignore_eos": True,
        "return_token_ids": True,
        "logprobs": 5,
        **more,
    }


def choice(answer: dict[str, Any]) -> tuple[list[int], list[float]]:
    told = answer["choices"][0]
    return told["token_ids"], told["logprobs"]["token_logprobs"]


@pytest.mark.parametrize("more", [{"temperature": 0}, {"temperature": 1.0, "seed": 9}])
def test_a_request_gets_the_same_bits_whoever_runs_beside_it(
    deterministic: EngineProcess, more: dict[str, Any]
) -> None:
    (alone,) = asyncio.run(ask(deterministic, [body("The quick brown fox", **more)]))
    others = [body(text, temperature=0.9) for text in ("one", "two two", "a third, and a longer one" * 9)]
    for place in range(4):
        crowd = [*others[:place], body("The quick brown fox", **more), *others[place:]]
        beside = asyncio.run(ask(deterministic, crowd))
        assert choice(beside[place]) == choice(alone)


def test_a_request_without_a_seed_gets_the_engines(deterministic: EngineProcess) -> None:
    first, second = asyncio.run(ask(deterministic, [body("seedless", temperature=1.0)] * 2))
    (named,) = asyncio.run(ask(deterministic, [body("seedless", temperature=1.0, seed=5)]))
    assert choice(first) == choice(second) == choice(named)


def test_another_process_gives_the_same_answer_under_the_same_digest(
    deterministic: EngineProcess, tiny_folder: pathlib.Path
) -> None:
    asked = [body("again", temperature=0), body("and again", temperature=1.0, seed=3)]
    told = [choice(one) for one in asyncio.run(ask(deterministic, asked))]
    options = ("--served-model-name", "tiny", "--deterministic", "--seed", "5", "--max-batch", "4")
    with reference_engine(tiny_folder, *options) as other:
        assert other.digest == deterministic.digest
        assert [choice(one) for one in asyncio.run(ask(other, asked))] == told


def test_the_mode_and_its_settings_are_part_of_the_identity(
    deterministic: EngineProcess, engine: EngineProcess
) -> None:
    async def fields(running: EngineProcess) -> dict[str, Any]:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{running.url}/forkgate/identity") as answer,
        ):
            document = await answer.json()
            assert document["digest"] == running.digest
            told: dict[str, Any] = document["fields"]
            return told

    strict, plain = asyncio.run(fields(deterministic)), asyncio.run(fields(engine))
    assert strict["deterministic"] is True
    assert strict["determinism.batch_invariant"] is True
    assert strict["torch.deterministic"] is True
    assert strict["sampler.seed"] == 5
    assert strict["determinism.settings"]["use_deterministic_algorithms"] is True
    assert strict["determinism.settings"]["warn_only"] is False
    assert strict["determinism.settings"]["PYTHONHASHSEED"] == "5"
    assert strict["determinism.settings"]["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert plain["determinism.batch_invariant"] is False
    assert plain["torch.deterministic"] is False
    assert deterministic.digest != engine.digest


def test_its_own_settings_are_met_when_it_is_checked(deterministic: EngineProcess) -> None:
    command = ["settings", "reference", "--seed", "5", "--dtype", "float32", "--json"]
    found = forkgate(*command, "--check", deterministic.url, "--pid", str(deterministic.process.pid))
    told = {one["name"]: one["state"] for one in json.loads(found.stdout)["settings"]}
    assert told["deterministic mode"] == "met"
    assert told["engine seed (torch, numpy, random)"] == "met"
    # Neither was given here, and a default is not a setting.
    assert told["fixed threads"] == "not met"
    assert found.returncode == 1
    afar = forkgate(*command, "--check", deterministic.url)
    assert afar.returncode == 0, afar.stdout
    other = forkgate(
        "settings", "reference", "--seed", "6", "--dtype", "float32", "--check", deterministic.url
    )
    assert other.returncode == 1
    assert "NOT MET          --seed 6: its endpoints tell sampler.seed 5" in other.stdout


def test_it_refuses_to_serve_a_model_with_such_an_operator_and_names_it(
    tiny_folder: pathlib.Path, nondeterministic: dict[str, str]
) -> None:
    command = [sys.executable, "-m", "engines.reference", "--model", str(tiny_folder), "--deterministic"]
    done = subprocess.run(
        command, env=nondeterministic, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout == "", "it never announced a port"
    assert "--deterministic: refuses to serve" in done.stderr
    assert "aten::put_" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_audit_names_the_operator_and_still_tells_the_cost(
    tiny_folder: pathlib.Path, nondeterministic: dict[str, str]
) -> None:
    options = ("--rounds", "2", "--tokens", "3", "--concurrency", "2", "--json")
    done = forkgate(
        "determinism", "audit", "--model", str(tiny_folder), *options, environment=nondeterministic
    )
    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert told["verdict"] == "fail"
    assert {(one["operator"], one["module"]) for one in told["operators"]["alerts"]} == {
        ("aten::put_", "(model)")
    }
    assert told["operators"]["alerts"][0]["count"] > 10
    assert told["cost"]["warn_only"] is True
    assert {one["way"] for one in told["cost"]["figures"]} == {"plain", "strict", "deterministic"}


def test_an_audit_passes_a_model_that_repeats_itself(tiny_folder: pathlib.Path) -> None:
    done = forkgate(
        "determinism", "audit", "--model", str(tiny_folder), "--rounds", "0", "--runs", "2", "--tokens", "4"
    )
    assert done.returncode == 0, done.stderr
    assert "operators without a deterministic implementation: 0, of" in done.stdout
    assert "alone: every bit equal, tokens equal" in done.stdout
    assert done.stdout.splitlines()[-1] == "pass"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--model", "/nowhere"], 2, "/nowhere: there is no config.json in it"),
        (["--model", "MODEL", "--runs", "0"], 2, "--runs: 0 is outside 1-10000"),
        (["--model", "MODEL", "--seed", "-1"], 2, "--seed: -1 is outside"),
        (["--model", "MODEL", "--max-batch", "1", "--device", "cuda:7"], 4, "--device cuda:7: "),
        ([], 2, "--model"),
    ],
)
def test_a_bad_audit_says_what_is_wrong(
    tiny_folder: pathlib.Path, arguments: list[str], status: int, words: str
) -> None:
    given = [one.replace("MODEL", str(tiny_folder)) for one in arguments]
    done = forkgate("determinism", "audit", *given)
    assert done.returncode == status, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_nan_weights_cannot_be_measured(tmp_path: pathlib.Path) -> None:
    folder = write_tiny_model(tmp_path / "nan")
    _spoil(folder / "model.safetensors")
    done = forkgate("determinism", "audit", "--model", str(folder), "--rounds", "0")
    assert done.returncode == 4, done.stderr
    assert "not one logit" in done.stderr


def _spoil(path: pathlib.Path) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(path)
    name = next(one for one in weights if one.endswith("norm.weight"))
    save_file({**weights, name: weights[name] * float("nan")}, path, metadata={"format": "pt"})


def forkgate(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "forkgate", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
