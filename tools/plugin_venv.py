"""A venv that stands for an engine's image with the vLLM plugin in it: vLLM's packages, and this wheel alone.

``python -m tools.plugin_venv TARGET VLLM_PYTHON``. It sees the packages of the venv that VLLM_PYTHON runs
(by a .pth file: nothing is copied, nothing there is changed) and gets the forkgate wheel with ``--no-deps``.
The wheel is built from this tree without build isolation, so hatchling must be installed here.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
import tempfile
import venv

ROOT = pathlib.Path(__file__).resolve().parents[1]


def build_wheel(folder: pathlib.Path) -> pathlib.Path:
    """The wheel of this tree."""
    _pip(sys.executable, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(ROOT))
    (wheel,) = folder.glob("forkgate-*.whl")
    return wheel


def make(target: pathlib.Path, vllm_python: str) -> pathlib.Path:
    """The venv's Python. Raises :class:`subprocess.CalledProcessError`: a step failed, and has said why."""
    venv.create(target, with_pip=True, clear=True)
    python = target / "bin" / "python"
    # A venv's own setuptools would hide the engine's.
    _pip(python, "uninstall", "--yes", "setuptools")
    (_purelib(python) / "vllm.pth").write_text(f"{_purelib(vllm_python)}\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        _pip(python, "install", "--no-index", "--no-deps", str(build_wheel(pathlib.Path(folder))))
    return python


def _pip(python: pathlib.Path | str, *command: str) -> None:
    quiet = ("-m", "pip", "--quiet", "--disable-pip-version-check")
    subprocess.run([str(python), *quiet, *command], check=True)


def _purelib(python: pathlib.Path | str) -> pathlib.Path:
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    told = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    return pathlib.Path(told)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tools.plugin_venv", description=__doc__)
    parser.add_argument("target", type=pathlib.Path)
    parser.add_argument("vllm_python")
    given = parser.parse_args()
    make(given.target, given.vllm_python)


if __name__ == "__main__":
    main()
