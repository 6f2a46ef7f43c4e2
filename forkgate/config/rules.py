"""Checks that several sections need: names, and files that must be there."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

Found = Iterator[tuple[str, str]]
"""Path within the file, and what is wrong there."""


def check_name(path: str, name: str) -> Found:
    """Names become metric attributes, file names and URL segments."""
    if not _NAME.fullmatch(name):
        yield (
            path,
            f"{name!r} is not a name: a letter or digit, then up to 62 of letters, digits, '.', '_', '-'",
        )


def check_files(path: str, **files: str | None) -> Found:
    """Every file that is named exists and can be read."""
    for key, file in files.items():
        if file is None:
            continue
        if not Path(file).is_file():
            yield f"{path}.{key}", f"no such file: {file!r}"
        elif not os.access(file, os.R_OK):
            yield f"{path}.{key}", f"{file!r} cannot be read by this user"
