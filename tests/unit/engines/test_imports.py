"""The sidecar runs without torch and without vllm."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

ASK = "import json, sys, {0}; print(json.dumps(sorted(name for name in sys.modules if '.' not in name)))"


@pytest.mark.parametrize(
    "module",
    [
        "engines",
        "engines.vllm",
        "engines.reference.client",
        "engines.reference.options",
        "engines.model",
        "engines.settings.choose",
    ],
)
def test_adapters_import_no_tensor_library(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ASK.format(module)], capture_output=True, text=True, check=True
    )
    assert not {"torch", "transformers", "vllm", "numpy"} & set(json.loads(done.stdout))
