"""The flags of ``forkgate settings`` against the engines' own argument parsers."""

from __future__ import annotations

import json
import subprocess

import pytest

from engines.settings import text
from engines.settings.choose import for_level, sheet_of
from engines.settings.values import Batch, Choice, Level
from tests.engines.conftest import named
from tests.support.waiting import LIMIT_S

# Built and asked in one process: every flag must exist, and every value must be one that it takes.
_PARSE = """
import json, sys
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.entrypoints.launchers.cli_args import make_arg_parser
import vllm, vllm.envs as envs
asked = json.loads(sys.argv[1])
parser = make_arg_parser(FlexibleArgumentParser())
known = {one for action in parser._actions for one in action.option_strings}
parsed = [vars(parser.parse_args(["--model", "m", *arguments])) for arguments in asked["arguments"]]
keep = ("seed", "dtype", "max_num_seqs", "enable_prefix_caching", "max_num_batched_tokens", "kv_cache_dtype",
        "logprobs_mode", "generation_config", "load_format", "disable_cascade_attn")
print(json.dumps({
    "version": vllm.__version__,
    "unknown": sorted(one for one in asked["flags"] if one not in known),
    "variables": sorted(one for one in asked["variables"] if one not in envs.environment_variables),
    "parsed": [{name: one[name] for name in keep} for one in parsed],
}))
"""


def test_vllm_takes_every_flag_and_knows_every_variable_of_its_own() -> None:
    choices = [Choice(seed=7), Choice(seed=7, batch=Batch.INVARIANT)]
    rows = [for_level(sheet_of("vllm", choice), Level.TOKEN) for choice in choices]
    every = [row for some in rows for row in some]
    asked = {
        "arguments": [text.arguments(some) for some in rows],
        "flags": [
            flag for row in every for flag in (row.flag, row.absent, *row.aliases, *row.contrary) if flag
        ],
        "variables": [row.variable for row in every if row.variable and row.variable.startswith("VLLM_")],
    }
    done = subprocess.run(
        [named("FORKGATE_VLLM_PYTHON"), "-c", _PARSE, json.dumps(asked)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["unknown"] == []
    assert told["variables"] == []
    one, invariant = told["parsed"]
    assert one == {
        "seed": 7,
        "dtype": "bfloat16",
        "max_num_seqs": 1,
        "enable_prefix_caching": False,
        "max_num_batched_tokens": 8192,
        "kv_cache_dtype": "auto",
        "logprobs_mode": "raw_logprobs",
        "generation_config": "vllm",
        "load_format": "safetensors",
        "disable_cascade_attn": True,
    }
    assert invariant["max_num_seqs"] != 1
    assert sheet_of("vllm", choices[0], told["version"]), "the rows are for another version"


@pytest.mark.llamacpp
@pytest.mark.parametrize("given", [["--parallel", "x"], ["--no-such-flag"]])
def test_llama_server_refuses_what_it_does_not_take(given: list[str]) -> None:
    assert _llama(given).returncode != 0


@pytest.mark.llamacpp
def test_llama_server_takes_every_flag_and_value() -> None:
    rows = for_level(sheet_of("llama.cpp", Choice(seed=7)), Level.TOKEN)
    done = _llama([*text.arguments(rows), "--version"])
    assert done.returncode == 0, done.stderr[-2000:]
    known = _llama(["--help"])
    for row in rows:
        for flag in (row.flag, *row.aliases, *row.contrary):
            assert flag is None or flag in (known.stdout + known.stderr), flag


def _llama(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    server = named("FORKGATE_LLAMA_SERVER")
    return subprocess.run([server, *arguments], capture_output=True, text=True, timeout=LIMIT_S, check=False)
