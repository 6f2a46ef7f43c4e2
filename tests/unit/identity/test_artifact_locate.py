"""Finding an artifact again: by content, anywhere, whatever the names."""

from __future__ import annotations

import os
import pathlib
import shutil

import pytest

from engines.identity.artifact import ArtifactRecord, record_artifact
from engines.identity.locate import locate_artifact
from engines.identity.trouble import NoArtifact
from tests.support.artifacts import hub_cache, model_folder, safetensors


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    return model_folder(tmp_path / "m")


@pytest.fixture
def record(folder: pathlib.Path) -> ArtifactRecord:
    return record_artifact(folder)


def test_renamed_and_scattered_files_are_found(
    tmp_path: pathlib.Path, folder: pathlib.Path, record: ArtifactRecord
) -> None:
    places = {}
    for number, file in enumerate(record.files):
        place = tmp_path / "disk" / ("d" * number or ".") / "deep" / f"blob{number}"
        place.parent.mkdir(parents=True)
        shutil.move(folder / file.path, place)
        places[file.path] = (str(place),)
    search = locate_artifact(record, [tmp_path / "disk"])
    assert {one.file.path: one.places for one in search.located} == places
    assert (search.gone, search.trouble) == ((), ())


def test_another_file_under_the_old_name_and_size_is_not_it(
    folder: pathlib.Path, record: ArtifactRecord
) -> None:
    (folder / "model.safetensors").write_bytes(safetensors({"wte": 64, "head": 64}, fill=b"\x12"))
    search = locate_artifact(record, [folder])
    assert [file.path for file in search.gone] == ["model.safetensors"]


def test_every_copy_under_every_root_is_told(
    tmp_path: pathlib.Path, folder: pathlib.Path, record: ArtifactRecord
) -> None:
    repository = hub_cache(tmp_path / "hub", folder)
    search = locate_artifact(record, [folder, repository, folder])
    found = {one.file.path: one.places for one in search.located}
    blob = (repository / "snapshots" / ("a" * 40) / "model.safetensors").resolve()
    assert set(found["model.safetensors"]) == {
        str(folder / "model.safetensors"),
        str(blob),
        str(repository / "snapshots" / ("a" * 40) / "model.safetensors"),
    }


def test_a_root_may_be_one_file(folder: pathlib.Path, record: ArtifactRecord) -> None:
    search = locate_artifact(record, [folder / "config.json"])
    assert [one.file.path for one in search.located if one.places] == ["config.json"]


def test_equal_files_share_their_place(tmp_path: pathlib.Path) -> None:
    folder = model_folder(tmp_path / "m", a__bin=b"same", b__bin=b"same", empty__txt=b"")
    record = record_artifact(folder)
    (folder / "b.bin").unlink()
    search = locate_artifact(record, [folder])
    places = {one.file.path: one.places for one in search.located}
    assert places["a.bin"] == places["b.bin"] == (str(folder / "a.bin"),)
    assert places["empty.txt"] == (str(folder / "empty.txt"),)
    assert not search.gone


def test_links_in_circles_pipes_and_dangling_links_do_not_stop_a_search(
    folder: pathlib.Path, record: ArtifactRecord
) -> None:
    os.symlink("..", folder / "up")
    os.symlink("self", folder / "self")
    os.symlink("nowhere", folder / "dangling")
    os.mkfifo(folder / "pipe")
    search = locate_artifact(record, [folder])
    assert not search.gone
    assert search.trouble == ()


def test_a_folder_that_cannot_be_read_is_told(
    tmp_path: pathlib.Path, folder: pathlib.Path, record: ArtifactRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def refuse(path: str) -> object:
        if str(path) == str(folder):  # root may read all, so the refusal is played
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    search = locate_artifact(record, [tmp_path])
    assert len(search.gone) == 5
    assert search.trouble == (
        f"{folder}: may not be read by this user: give it read permission, or run as a user who has it",
    )


def test_a_root_that_is_not_there_is_an_error(record: ArtifactRecord, tmp_path: pathlib.Path) -> None:
    with pytest.raises(NoArtifact, match=r"absent: no such file or folder to look in"):
        locate_artifact(record, [tmp_path, tmp_path / "absent"])


def test_only_files_of_a_wanted_size_are_read(
    folder: pathlib.Path, record: ArtifactRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "large").write_bytes(b"x" * 100_000)
    opened: list[str] = []
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, *rest: (opened.append(str(path)), real(path, *rest))[1])
    locate_artifact(record, [folder])
    assert str(folder / "model.safetensors") in opened
    assert str(folder / "large") not in opened


def test_a_long_walk_tells_how_far_it_is(
    folder: pathlib.Path, record: ArtifactRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engines.identity.locate._TELL_EVERY", 2)
    told: list[int] = []
    search = locate_artifact(record, [folder], looking=told.append)
    assert (told, search.looked_at_files) == ([2, 4, 6], 7)
