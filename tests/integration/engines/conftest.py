"""One reference engine on a tiny model, for the whole session."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest

from tests.support.engine_process import EngineProcess, reference_engine
from tests.support.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"), temperature=0.9, top_p=0.95)


@pytest.fixture(scope="session")
def engine(tiny_folder: pathlib.Path) -> Iterator[EngineProcess]:
    with reference_engine(tiny_folder, "--served-model-name", "tiny", "--max-batch", "2") as running:
        yield running
