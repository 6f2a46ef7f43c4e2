"""The sidecar runs without torch and without vllm."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
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


def test_the_plugin_and_all_that_it_imports_need_the_standard_library_alone() -> None:
    modules = sorted(path.stem for path in (ROOT / "engines" / "vllm_plugin").glob("[a-z]*.py"))
    assert "processor" in modules
    names = ", ".join(f"engines.vllm_plugin.{module}" for module in modules)
    # -S: no site-packages at all, as if nothing were installed.
    command = [
        sys.executable,
        "-I",
        "-S",
        "-c",
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {names}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
