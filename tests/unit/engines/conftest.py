"""One tiny model, written and loaded once."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING

import pytest

from tests.support.tiny_model import write_tiny_model

if TYPE_CHECKING:
    from engines.reference.model import LoadedModel


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny(tiny_folder: pathlib.Path) -> LoadedModel:
    from engines.reference import model
    from engines.reference.options import EngineServerOptions

    return model.load(EngineServerOptions(model_dir=str(tiny_folder)))
