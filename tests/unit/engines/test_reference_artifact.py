"""The reference engine proves the files that it serves, and refuses those it cannot prove."""

from __future__ import annotations

import os
import pathlib
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from engines.identity.artifact import record_artifact

if TYPE_CHECKING:
    from engines.reference.model import LoadedModel


@pytest.fixture
def folder(
    tiny_folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> pathlib.Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    return pathlib.Path(shutil.copytree(tiny_folder, tmp_path / "model"))


def load(folder: pathlib.Path) -> LoadedModel:
    from engines.reference import model
    from engines.reference.options import EngineServerOptions

    return model.load(EngineServerOptions(model_dir=str(folder)))


def test_the_record_is_that_of_the_folder(folder: pathlib.Path) -> None:
    assert load(folder).artifact == record_artifact(folder).to_json()


def test_a_damaged_model_is_refused_before_it_is_loaded(folder: pathlib.Path) -> None:
    from engines.reference.model import UnsupportedModel

    os.truncate(folder / "model.safetensors", 1000)
    with pytest.raises(
        UnsupportedModel, match=r"--model .*model.safetensors: truncated: .*download it again"
    ):
        load(folder)


def test_files_that_change_while_they_are_loaded_are_refused(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import transformers

    from engines.reference.model import UnsupportedModel

    real = transformers.AutoTokenizer.from_pretrained

    def meanwhile(*arguments: Any, **options: Any) -> Any:
        (folder / "generation_config.json").write_text('{"temperature": 0.1}')
        return real(*arguments, **options)

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", meanwhile)
    with pytest.raises(UnsupportedModel, match="its files changed while they were loaded: start again"):
        load(folder)
