"""``forkgate environment capture`` where only Python is: the command of the zipapp.

Run it inside an engine's container: ``python forkgate-capture.pyz --pid 1 --url http://localhost:8000``.
Standard library; ``nvidia-ml-py`` is used where it is installed. Python 3.10 or newer.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence

from engines.identity.collect import capture
from engines.identity.collect_http import SilentEngine
from engines.identity.collect_process import NoProcess
from engines.identity.record import Identity, UnknownField
from engines.identity.trouble import ArtifactError, NoArtifact

_USAGE, _UNMEASURED = 2, 4


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 captured, 2 what was typed is wrong, 4 nothing could be captured."""
    parser = argparse.ArgumentParser(
        prog="forkgate-capture", description="Write the environment record of an engine, as JSON."
    )
    parser.add_argument("--pid", type=int, help="the engine's process; 1 in most containers")
    parser.add_argument("--url", help="the engine's HTTP address, asked for what it tells of itself")
    parser.add_argument("--image-digest", help="of the container image: sha256:... or name@sha256:...")
    parser.add_argument("--api-key-env", metavar="NAME", help="variable that holds the engine's API key")
    parser.add_argument("--torch", action="store_true", help="import torch, and ask it too")
    parser.add_argument("-o", "--out", help="write the record here instead of standard output")
    parser.add_argument("--json", action="store_true", help="one line instead of an indented document")
    asked = parser.parse_args(argv)
    try:
        made = capture(
            key=key_of(asked.api_key_env),
            pid=asked.pid,
            url=asked.url,
            image_digest=asked.image_digest,
            ask_torch=asked.torch,
        )
    except (NoProcess, NoArtifact, ValueError) as error:
        return _fail(str(error), _USAGE)
    except (SilentEngine, ArtifactError) as error:
        return _fail(str(error), _UNMEASURED)
    text = document(made, one_line=asked.json)
    if asked.out is None:
        sys.stdout.write(text)
        return 0
    try:
        write_whole(asked.out, text)
    except OSError as error:
        return _fail(f"{asked.out}: the record cannot be written: {error.strerror or error}", _UNMEASURED)
    sys.stderr.write(summary(made) + "\n")
    return 0


def key_of(variable: str | None) -> str | None:
    """An API key, which is never typed where a process list shows it. Raises :class:`ValueError`."""
    if variable is None:
        return None
    key = os.environ.get(variable, "")
    if not key or not key.isascii() or not key.isprintable():
        raise ValueError(f"--api-key-env {variable}: the variable holds no key")
    return key


def document(made: Identity, *, one_line: bool) -> str:
    """The record as text, with a line's end."""
    return json.dumps(made.to_json(), indent=None if one_line else 2, ensure_ascii=False) + "\n"


def summary(made: Identity) -> str:
    """One line for people: the digest, and how much of the record is known."""
    unknown = sum(isinstance(value, UnknownField) for value in made.fields.values())
    return f"{made.digest}: {len(made.fields) - unknown} fields, {unknown} unknown"


def write_whole(path: str | os.PathLike[str], text: str) -> None:
    """Whole or not at all: a record that was cut off proves nothing. Raises :class:`OSError`."""
    folder, name = os.path.split(os.path.abspath(path))
    handle, made = tempfile.mkstemp(dir=folder, prefix=f".{name}-")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(made, 0o666 & ~mask)
        os.replace(made, path)
    except BaseException:
        os.unlink(made)
        raise


def _fail(message: str, status: int) -> int:
    sys.stderr.write(f"forkgate-capture: {message}\n")
    return status
