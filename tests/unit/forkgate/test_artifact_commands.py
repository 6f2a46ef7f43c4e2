"""``forkgate artifact``: what a person and a script see."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from forkgate.cli.app import app
from tests.support.artifacts import model_folder, safetensors


@pytest.fixture(autouse=True)
def own_cache(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv("FORKGATE_IMAGE_DIGEST", raising=False)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    return model_folder(tmp_path / "m")


def artifact(*arguments: Any, status: int = 0) -> Result:
    result = CliRunner().invoke(app, ["artifact", *map(str, arguments)])
    assert result.exit_code == status, (result.output, result.exception)
    return result


@pytest.fixture
def record(folder: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    artifact("record", folder, "-o", tmp_path / "record.json")
    return tmp_path / "record.json"


def test_record_prints_the_document_and_json_prints_it_on_one_line(folder: pathlib.Path) -> None:
    pretty, line = artifact("record", folder), artifact("record", folder, "--json")
    assert json.loads(pretty.stdout) == json.loads(line.stdout)
    assert line.stdout.count("\n") == 1
    assert json.loads(line.stdout)["record"] == "artifact/1"
    assert "5 files, 0.00 GiB: 5 hashed in" in pretty.stderr


def test_record_into_a_file_prints_its_digest(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    out = tmp_path / "r.json"
    told = artifact("record", folder, "-o", out).stdout
    document = json.loads(out.read_text())
    assert told.splitlines()[0] == document["digest"]
    assert "5 files, 669 bytes, 2 ignored; runtime image unknown: not given" in told
    as_json = json.loads(artifact("record", folder, "-o", out, "--json").stdout)
    assert (as_json["record"], as_json["digest"]) == (str(out), document["digest"])


def test_a_record_kept_beside_the_model_is_no_part_of_it(folder: pathlib.Path) -> None:
    inside = folder / "record.json"
    artifact("record", folder, "-o", inside)
    first = json.loads(inside.read_text())
    artifact("record", folder, "-o", inside)
    assert json.loads(inside.read_text())["digest"] == first["digest"]
    artifact("verify", inside, folder)


def test_record_that_cannot_be_written_leaves_nothing(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    result = artifact("record", folder, "-o", tmp_path / "absent" / "r.json", status=4)
    assert "the record cannot be written: No such file or directory" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        (lambda m: os.truncate(m / "model.safetensors", 9), 1, "truncated"),
        (lambda m: os.symlink("nowhere", m / "x.bin"), 4, "a link to nowhere, which is not there"),
        (lambda m: [one.unlink() for one in m.iterdir()], 2, "no file of a model is there, nothing"),
    ],
    ids=["damaged", "unreadable", "empty"],
)
def test_record_says_what_is_wrong_and_prints_no_record(
    folder: pathlib.Path, change: Any, status: int, message: str
) -> None:
    change(folder)
    result = artifact("record", folder, "--json", status=status)
    assert result.stdout == ""
    assert message in result.stderr


def test_record_takes_no_tag_for_a_digest(folder: pathlib.Path) -> None:
    result = artifact("record", folder, "--image-digest", "vllm:latest", status=2)
    assert "--image-digest: 'vllm:latest' is no image digest" in result.stderr


def test_verify_passes_and_names_differences(folder: pathlib.Path, record: pathlib.Path) -> None:
    assert artifact("verify", record, folder).stdout.startswith("equal: 5 of 5 files as recorded")
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").rename(folder / "w.safetensors")
    (folder / "tokenizer.json").unlink()
    (folder / "extra.bin").write_bytes(b"PK")
    result = artifact("verify", record, folder, status=1)
    assert result.stdout.splitlines()[:4] == [
        "missing  tokenizer.json",
        "changed  config.json: recorded 42 bytes, here 2 bytes",
        "moved    model.safetensors: its content is in w.safetensors",
        "extra    extra.bin",
    ]
    told = json.loads(artifact("verify", record, folder, "--json", status=1).stdout)
    assert told["files_equal"] is False
    assert [one["path"] for one in told["missing"]] == ["tokenizer.json"]
    assert told["moved"][0]["now"] == {"path": "w.safetensors"}
    assert told["extra"] == [{"path": "extra.bin"}]


def test_verify_uses_sums_it_knows_unless_told_not_to(
    folder: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every stamp counts as old enough: a test neither sleeps nor can set a file's ctime back.
    monkeypatch.setattr("engines.identity.hash_cache._FINE_TICK_NS", -(10**12))
    artifact("record", folder, "-o", tmp_path / "r.json")
    known = artifact("verify", tmp_path / "r.json", folder).stderr
    anew = artifact("verify", tmp_path / "r.json", folder, "--no-cache").stderr
    assert (": 0 hashed in" in known, "5 known from before" in known) == (True, True)
    assert (": 5 hashed in" in anew, "0 known from before" in anew) == (True, True)


def test_verify_without_the_recorded_image_is_inconclusive(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    one, other = ("sha256:" + digit * 64 for digit in "12")
    record = tmp_path / "r.json"
    artifact("record", folder, "-o", record, "--image-digest", one)
    result = artifact("verify", record, folder, status=3)
    assert "give --image-digest, or ask for --files-only" in result.stderr
    artifact("verify", record, folder, "--files-only")
    artifact("verify", record, folder, "--image-digest", one)
    assert "image differs" in artifact("verify", record, folder, "--image-digest", other, status=1).stdout


@pytest.mark.parametrize("command", ["verify", "locate", "diff"])
def test_a_tampered_record_is_refused_by_every_command(
    folder: pathlib.Path, record: pathlib.Path, command: str
) -> None:
    record.write_text(record.read_text().replace('"role": "weight"', '"role": "other"'))
    result = artifact(command, record, folder, status=2)
    assert result.stdout == ""
    assert "it was changed after it was made" in result.stderr
    assert result.stderr.count("sha256:") == 2


@pytest.mark.parametrize("command", ["verify", "locate", "diff"])
def test_a_record_that_is_not_there_is_a_usage_error(folder: pathlib.Path, command: str) -> None:
    result = artifact(command, folder / "absent.json", folder, status=2)
    assert (
        "absent.json: no record is there: `forkgate artifact record DIR -o FILE` writes one" in result.stderr
    )


def test_diff_takes_records_and_folders(
    folder: pathlib.Path, record: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    assert artifact("diff", record, folder).stdout.splitlines()[-1] == "equal"
    other = model_folder(
        tmp_path / "other", model__safetensors=safetensors({"wte": 64, "head": 64}, dtype="F32")
    )
    result = artifact("diff", record, other, status=1)
    assert "SURELY   weight changed: model.safetensors" in result.stdout
    told = json.loads(artifact("diff", record, other, "--json", status=1).stdout)
    assert (told["equal"], told["model_equal"]) == (False, False)
    assert [one["moves_tokens"] for one in told["differences"]] == ["surely"]


def test_locate_prints_where_each_file_is_and_which_are_gone(
    folder: pathlib.Path, record: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "disk").mkdir()
    (folder / "model.safetensors").rename(tmp_path / "disk" / "blob")
    found = artifact("locate", record, tmp_path / "disk", folder)
    assert f"found    model.safetensors\n         {tmp_path}/disk/blob\n" in found.stdout
    assert "5 of 5 files found" in found.stdout
    gone = artifact("locate", record, folder, status=1)
    assert "gone     model.safetensors: " in gone.stdout
    told = json.loads(artifact("locate", record, folder, "--json", status=1).stdout)
    assert (told["found_all"], told["gone"]) == (False, [{"path": "model.safetensors"}])
    missing = artifact("locate", record, tmp_path / "nowhere", status=2)
    assert "no such file or folder to look in" in missing.stderr


def test_names_of_any_bytes_are_printed_on_one_line(folder: pathlib.Path, tmp_path: pathlib.Path) -> None:
    name = os.fsencode(folder) + b"/new\nline\xff.bin"
    with open(name, "wb") as file:
        file.write(b"content")
    artifact("record", folder, "-o", tmp_path / "r.json")
    os.unlink(name)
    result = artifact("verify", tmp_path / "r.json", folder, status=1)
    assert result.stdout.splitlines()[0] == "missing  new\\nline\\xff.bin"
    told = json.loads(artifact("verify", tmp_path / "r.json", folder, "--json", status=1).stdout)
    assert bytes.fromhex(told["missing"][0]["path_hex"]) == b"new\nline\xff.bin"


def test_the_command_loads_no_engine_and_no_numbers(folder: pathlib.Path) -> None:
    code = (
        "import sys; from forkgate.cli import main\n"
        "sys.argv = ['forkgate', 'artifact', 'record', sys.argv[1]]\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "sys.stderr.write(' '.join(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    loaded = set(done.stderr.splitlines()[-1].split())
    assert not {"aiohttp", "grpc", "msgspec", "numpy", "torch", "transformers"} & loaded
