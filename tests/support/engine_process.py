"""The reference engine as the process that users start."""

from __future__ import annotations

import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class EngineProcess:
    url: str
    model: str
    digest: str
    process: subprocess.Popen[str]


@contextlib.contextmanager
def reference_engine(model_dir: pathlib.Path, *options: str) -> Iterator[EngineProcess]:
    """Start ``python -m engines.reference`` on a port of the kernel's choice; terminate it at the end."""
    command = [sys.executable, "-m", "engines.reference", "--model", str(model_dir), *options]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                process.wait()
                errors.seek(0)
                raise AssertionError(f"the engine ended with {process.returncode}: {errors.read()[-2000:]}")
            announced: dict[str, Any] = json.loads(line)
            yield EngineProcess(process=process, **announced)
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
