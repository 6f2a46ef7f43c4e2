"""One tiny model for the package, and the variable that strict settings ask for."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.support.tiny_model import write_tiny_model

if TYPE_CHECKING:
    from engines.reference.model import LoadedModel


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def tiny(tiny_folder: pathlib.Path) -> LoadedModel:
    """Loaded anew for each test, since some of them change it."""
    from engines.reference import model
    from engines.reference.options import EngineServerOptions

    return model.load(EngineServerOptions(model_dir=str(tiny_folder)))


@pytest.fixture(autouse=True)
def settings_as_they_were(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from engines.determinism import strict

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = strict.read()
    yield
    assert strict.read() == before
