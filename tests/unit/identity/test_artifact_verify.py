"""Verifying: what is missing, changed, moved, extra."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest

from engines.identity.artifact import record_artifact
from engines.identity.artifact_verify import Verification, verify_artifact
from engines.identity.trouble import NoArtifact, UnreadableFiles
from tests.support.artifacts import hub_cache, model_folder, safetensors


def told(seen: Verification) -> dict[str, list[str]]:
    return {
        "missing": [one.path for one in seen.missing],
        "changed": [one.file.path for one in seen.changed],
        "moved": [f"{one.file.path} -> {one.path}" for one in seen.moved],
        "extra": list(seen.extra),
    }


NOTHING: dict[str, list[str]] = {"missing": [], "changed": [], "moved": [], "extra": []}


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    return model_folder(tmp_path / "m")


def test_an_untouched_folder_and_a_copy_in_a_hub_cache_are_equal(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    record = record_artifact(folder)
    for place in (folder, hub_cache(tmp_path, folder)):
        seen = verify_artifact(record, place)
        assert seen.files_equal
        assert told(seen) == NOTHING
        assert len(seen.equal) == 5


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda m: (m / "config.json").unlink(), {"missing": ["config.json"]}),
        (lambda m: (m / "config.json").write_text("{}"), {"changed": ["config.json"]}),
        (lambda m: (m / "new.gguf").write_bytes(b"x"), {"extra": ["new.gguf"]}),
        (lambda m: (m / "README.md").write_text("other words"), {}),
        (
            lambda m: (m / "model.safetensors").rename(m / "renamed.safetensors"),
            {"moved": ["model.safetensors -> renamed.safetensors"]},
        ),
        (lambda m: os.truncate(m / "model.safetensors", 0), {"changed": ["model.safetensors"]}),
        (
            lambda m: (m / "model.safetensors").write_bytes(
                safetensors({"wte": 64, "head": 64}, fill=b"\x12")
            ),
            {"changed": ["model.safetensors"]},
        ),
        (
            lambda m: (
                (m / "tokenizer.json").rename(m / "t"),
                (m / "config.json").rename(m / "tokenizer.json"),
                (m / "t").rename(m / "config.json"),
            ),
            {"changed": ["config.json", "tokenizer.json"]},
        ),
    ],
    ids=["missing", "changed", "extra", "ignored", "renamed", "emptied", "one byte, same size", "swapped"],
)
def test_each_difference_is_named(folder: pathlib.Path, change: Any, expected: dict[str, list[str]]) -> None:
    record = record_artifact(folder)
    change(folder)
    seen = verify_artifact(record, folder)
    assert told(seen) == NOTHING | expected
    assert seen.files_equal is (not expected)


def test_an_emptied_folder_misses_everything(folder: pathlib.Path) -> None:
    record = record_artifact(folder)
    for file in folder.iterdir():
        file.unlink()
    assert len(told(verify_artifact(record, folder))["missing"]) == 5


def test_one_content_under_two_recorded_names_is_not_moved_twice(folder: pathlib.Path) -> None:
    (folder / "a.bin").write_bytes(b"same")
    (folder / "b.bin").write_bytes(b"same")
    record = record_artifact(folder)
    (folder / "a.bin").unlink()
    (folder / "b.bin").rename(folder / "c.bin")
    assert told(verify_artifact(record, folder)) == NOTHING | {
        "missing": ["b.bin"],
        "moved": ["a.bin -> c.bin"],
    }


def test_a_file_of_another_size_is_not_read(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = record_artifact(folder)
    (folder / "model.safetensors").write_bytes(b"short")
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: (opened.append(str(path)), real(path, *rest))[1])
    (change,) = verify_artifact(record, folder).changed
    assert (change.bytes, change.sha256) == (5, None)
    assert not [path for path in opened if path.endswith("model.safetensors")]


@pytest.mark.parametrize(
    ("recorded", "here", "answer"),
    [
        (None, "sha256:" + "1" * 64, "not recorded"),
        ("sha256:" + "1" * 64, None, "unknown here"),
        ("sha256:" + "1" * 64, "sha256:" + "1" * 64, "equal"),
        ("sha256:" + "1" * 64, "sha256:" + "2" * 64, "differs"),
    ],
)
def test_the_runtime_image_is_compared_where_it_is_known(
    folder: pathlib.Path, recorded: str | None, here: str | None, answer: str
) -> None:
    record = record_artifact(folder, image_digest=recorded)
    assert verify_artifact(record, folder, image_digest=here).image == answer


def test_what_cannot_be_read_is_no_difference_but_an_error(folder: pathlib.Path) -> None:
    record = record_artifact(folder)
    (folder / "config.json").unlink()
    os.symlink("nowhere", folder / "config.json")
    with pytest.raises(UnreadableFiles, match=r"config.json: a link to nowhere"):
        verify_artifact(record, folder)
    with pytest.raises(NoArtifact, match="no such file or folder"):
        verify_artifact(record, folder / "absent")


def test_an_unfinished_download_is_told_beside_the_differences(folder: pathlib.Path) -> None:
    record = record_artifact(folder)
    (folder / "model.safetensors").rename(folder / "model.safetensors.incomplete")
    seen = verify_artifact(record, folder)
    assert told(seen) == NOTHING | {"missing": ["model.safetensors"]}
    assert seen.damage[0].endswith(
        "model.safetensors.incomplete: an unfinished download: finish it, or remove the file"
    )
