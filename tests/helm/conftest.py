"""The image's files are built once for all tests of this directory."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.rootfs import build


@pytest.fixture(scope="session")
def rootfs() -> Iterator[Path]:
    """What the image holds beside its base, below a directory that any user may enter."""
    directory = Path(tempfile.mkdtemp(prefix="forkgate-rootfs-"))
    try:
        directory.chmod(0o755)
        build(directory / "root", link=True)
        yield directory / "root"
    finally:
        shutil.rmtree(directory)
