"""Recording an artifact: what is in it, what is not, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
import shutil
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from engines.identity import artifact, artifact_files
from engines.identity.artifact import ArtifactRecord, record_artifact
from engines.identity.artifact_kinds import Role, kind_of
from engines.identity.trouble import DamagedArtifact, NoArtifact, UnreadableFiles
from tests.support.artifacts import TEMPLATE, gguf, hub_cache, model_folder, safetensors, sharded


def by_path(record: ArtifactRecord) -> dict[str, Any]:
    return {file.path: file for file in record.files}


def ignored(record: ArtifactRecord) -> dict[str, str]:
    return {one["path"]: one["reason"] for one in record.about["ignored"]}


def test_every_file_has_its_sum_its_size_and_its_role(tmp_path: pathlib.Path) -> None:
    folder = model_folder(tmp_path / "m")
    record = record_artifact(folder)
    assert {path: file.role.value for path, file in by_path(record).items()} == {
        "config.json": "config",
        "generation_config.json": "generation_config",
        "model.safetensors": "weight",
        "tokenizer.json": "tokenizer",
        "tokenizer_config.json": "tokenizer",
    }
    for path, file in by_path(record).items():
        content = (folder / path).read_bytes()
        assert (file.sha256, file.bytes) == (hashlib.sha256(content).hexdigest(), len(content))
    assert by_path(record)["model.safetensors"].header == {
        "format": "safetensors",
        "tensors": 2,
        "parameters": 128,
        "dtypes": {"BF16": 2},
    }
    assert ignored(record) == {
        ".gitattributes": "house-keeping of another tool",
        "README.md": "words for people",
    }


def test_what_is_ignored_and_where_it_lies_is_not_in_the_digest(tmp_path: pathlib.Path) -> None:
    one = record_artifact(model_folder(tmp_path / "one"))
    other = record_artifact(model_folder(tmp_path / "two", README__md="other words", notes__md="more"))
    assert one.about != other.about
    assert one.to_json()["digest"] == other.to_json()["digest"]


@pytest.mark.parametrize(
    "change",
    [
        {"model__safetensors": safetensors({"wte": 64, "head": 64}, fill=b"\x12")},
        {"config__json": '{"model_type": "llama", "eos_token_id": 3}'},
        {"generation_config__json": "{}"},
        {"tokenizer__json": "{}"},
        {"modeling_new__py": "x = 1\n"},
        {"empty__dat": b""},
    ],
)
def test_any_other_file_is_another_digest(tmp_path: pathlib.Path, change: dict[str, Any]) -> None:
    one = record_artifact(model_folder(tmp_path / "one"))
    other = record_artifact(model_folder(tmp_path / "two", **change))
    assert one.digest != other.digest
    assert one.model_digest != other.model_digest


def test_the_runtime_image_is_in_the_digest_and_not_in_the_models(tmp_path: pathlib.Path) -> None:
    folder = model_folder(tmp_path / "m")
    known = record_artifact(folder, image_digest="registry.example/vllm@sha256:" + "1" * 64)
    unknown = record_artifact(folder)
    assert known.image == {"digest": "sha256:" + "1" * 64}
    assert set(unknown.image) == {"unknown"}
    assert known.digest != unknown.digest
    assert known.model_digest == unknown.model_digest


def test_a_snapshot_of_the_hub_cache_is_the_plain_folder(tmp_path: pathlib.Path) -> None:
    plain = model_folder(tmp_path / "plain")
    repository = hub_cache(tmp_path / "hub", plain)
    of_plain = record_artifact(plain)
    for place in (repository, repository / "snapshots" / ("a" * 40)):
        record = record_artifact(place)
        assert record.digest == of_plain.digest
        assert record.about["source"] == {"layout": "hub_cache", "repo": "acme/tiny", "revision": "a" * 40}


def test_of_several_revisions_the_one_that_main_names_is_taken(tmp_path: pathlib.Path) -> None:
    hub_cache(tmp_path, model_folder(tmp_path / "new", config__json="{}"), revision="b" * 40)
    repository = hub_cache(tmp_path, model_folder(tmp_path / "old"), revision="a" * 40)
    assert record_artifact(repository).about["source"]["revision"] == "a" * 40
    assert record_artifact(repository, revision="bbb").digest == record_artifact(tmp_path / "new").digest
    (repository / "refs" / "main").unlink()
    with pytest.raises(NoArtifact, match=r"which revision is meant is not told.*--revision: a{40}, b{40}"):
        record_artifact(repository)
    with pytest.raises(NoArtifact, match="revision cafe is not here"):
        record_artifact(repository, revision="cafe")
    with pytest.raises(NoArtifact, match=r"a hub cache of 1 models.*models--acme--tiny"):
        record_artifact(tmp_path)


def test_a_rotten_blob_of_the_hub_cache_is_told(tmp_path: pathlib.Path) -> None:
    repository = hub_cache(tmp_path, model_folder(tmp_path / "plain"))
    blob = (repository / "snapshots" / ("a" * 40) / "model.safetensors").resolve()
    content = blob.read_bytes()
    blob.write_bytes(content[:-1] + b"\xff")
    with pytest.raises(DamagedArtifact, match=rf"its blob is named {blob.name} and holds [0-9a-f]{{64}}"):
        record_artifact(repository)


def test_an_adapter_is_its_own_artifact_and_a_part_of_one(tmp_path: pathlib.Path) -> None:
    folder = model_folder(tmp_path / "m")
    lora = folder / "lora"
    lora.mkdir()
    (lora / "adapter_config.json").write_text('{"r": 8}')
    (lora / "adapter_model.safetensors").write_bytes(safetensors({"a": 4}, dtype="F32"))
    (lora / "extra.bin").write_bytes(b"PK\x03\x04rest")
    whole = by_path(record_artifact(folder))
    alone = by_path(record_artifact(lora))
    assert {path: file.role for path, file in whole.items() if path.startswith("lora/")} == {
        f"lora/{path}": Role.ADAPTER for path in alone
    }
    assert whole["lora/adapter_model.safetensors"].header["dtypes"] == {"F32": 1}
    assert whole["lora/extra.bin"].header == {"format": "torch zip"}
    (tmp_path / "lora.gguf").write_bytes(gguf(template=None, general__type="adapter"))
    (file,) = record_artifact(tmp_path / "lora.gguf").files
    assert file.role is Role.ADAPTER


def test_one_template_is_recognised_in_every_container(tmp_path: pathlib.Path) -> None:
    folders = {
        "jinja": {"tokenizer_config__json": "{}", "chat_template__jinja": TEMPLATE.rstrip("\n")},
        "windows": {"tokenizer_config__json": "{}", "chat_template__jinja": TEMPLATE.replace("\n", "\r\n")},
        "config": {},
        "named": {
            "tokenizer_config__json": json.dumps(
                {"chat_template": [{"name": "default", "template": TEMPLATE}]}
            )
        },
        "json": {
            "tokenizer_config__json": "{}",
            "chat_template__json": json.dumps({"chat_template": TEMPLATE}),
        },
    }
    found = {name: record_artifact(model_folder(tmp_path / name, **files)) for name, files in folders.items()}
    (tmp_path / "m.gguf").write_bytes(gguf())
    found["gguf"] = record_artifact(tmp_path / "m.gguf")
    sums = {name: [(one.name, one.sha256) for one in record.templates] for name, record in found.items()}
    text = TEMPLATE.rstrip("\n").encode()
    assert sums == {name: [("default", hashlib.sha256(text).hexdigest())] for name in folders | {"gguf": {}}}


def test_templates_that_differ_between_files_are_told(tmp_path: pathlib.Path) -> None:
    record = record_artifact(model_folder(tmp_path / "m", chat_template__jinja="another"))
    assert len(record.templates) == 2
    places = "; ".join(one.files[0] for one in record.templates)
    note = f"the chat template 'default' differs between files ({places}): which one is taken depends on"
    assert record.about["notes"] == [note + " the engine"]
    same = record_artifact(model_folder(tmp_path / "s", chat_template__jinja=TEMPLATE))
    assert [one.files for one in same.templates] == [("chat_template.jinja", "tokenizer_config.json")]
    assert same.about["notes"] == []


def test_a_sharded_model_is_recorded_with_its_index(tmp_path: pathlib.Path) -> None:
    record = record_artifact(sharded(tmp_path / "m"))
    roles = {path: file.role for path, file in by_path(record).items() if path.startswith("model")}
    assert sorted(roles.values()) == [Role.CONFIG, Role.WEIGHT, Role.WEIGHT, Role.WEIGHT]
    assert by_path(record)["model.safetensors.index.json"].reason == "which file holds which tensor"


def _drop_shard(folder: pathlib.Path) -> None:
    (folder / "model-00002-of-00003.safetensors").unlink()


def _drop_from_index(folder: pathlib.Path) -> None:
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    del index["weight_map"]["layer.2"]
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _other_shard(folder: pathlib.Path) -> None:
    (folder / "model-00002-of-00003.safetensors").write_bytes(safetensors({"other": 16}))


@pytest.mark.parametrize(
    ("damage", "messages"),
    [
        (
            _drop_shard,
            [
                r"^model-00002-of-00003.safetensors: not there, though 2 of 3 parts are",
                r"index.json: names model-00002-of-00003.safetensors, which is not there: finish",
            ],
        ),
        (
            _drop_from_index,
            [r"index.json: does not name model-00002-of-00003.safetensors, which is numbered"],
        ),
        (_other_shard, [r"layer.2 should be in model-00002-of-00003.safetensors, whose header has no such"]),
        (
            lambda folder: (folder / "model.safetensors.index.json").write_text("[]"),
            [r"an index without a weight_map"],
        ),
        (
            lambda folder: (folder / "model-00001-of-00003.safetensors").write_bytes(b""),
            [r"model-00001-of-00003.safetensors: 0 bytes, and weights cannot be empty"],
        ),
        (
            lambda folder: os.truncate(folder / "model-00003-of-00003.safetensors", 50),
            [r"model-00003-of-00003.safetensors: truncated: .*: download it again"],
        ),
        (
            lambda folder: (folder / "model-00003-of-00003.safetensors.incomplete").write_bytes(b"x"),
            [r"safetensors.incomplete: an unfinished download"],
        ),
        (
            lambda folder: (folder / "config.json").write_text("{'single': quotes}"),
            [r"config.json: not JSON: .*line 1"],
        ),
        (
            lambda folder: (folder / "chat_template.jinja").write_bytes(b"\xff\xfe"),
            [r"chat_template.jinja: no template: byte 0 is not UTF-8"],
        ),
        (
            lambda folder: (folder / "chat_template.json").write_text('{"chat_template": 5}'),
            [r"chat_template.json: chat_template: neither a text nor named texts"],
        ),
    ],
)
def test_an_artifact_that_is_not_whole_is_refused(
    tmp_path: pathlib.Path, damage: Any, messages: list[str]
) -> None:
    folder = sharded(tmp_path / "m")
    damage(folder)
    with pytest.raises(DamagedArtifact) as refused:
        record_artifact(folder)
    for message in messages:
        assert any(re.search(message, problem) for problem in refused.value.problems), refused.value.problems


def test_a_split_gguf_needs_all_its_parts(tmp_path: pathlib.Path) -> None:
    for number in (1, 3):
        (tmp_path / f"m-{number:05}-of-00003.gguf").write_bytes(gguf(split__count=3, split__no=number - 1))
    with pytest.raises(DamagedArtifact, match=r"m-00002-of-00003.gguf: not there, though 2 of 3"):
        record_artifact(tmp_path)
    (tmp_path / "m-00002-of-00003.gguf").write_bytes(gguf(split__count=3, split__no=1))
    assert [file.header["split"]["number"] for file in record_artifact(tmp_path).files if file.header] == [
        0,
        1,
        2,
    ]
    with pytest.raises(DamagedArtifact, match="name the folder that holds all parts"):
        record_artifact(tmp_path / "m-00001-of-00003.gguf")


@pytest.fixture
def listening(tmp_path: pathlib.Path) -> Iterator[None]:
    folder = model_folder(tmp_path / "m")
    with socket.socket(socket.AF_UNIX) as one:
        here = os.getcwd()
        os.chdir(folder)  # a socket's path may not be long
        try:
            one.bind("control")
        finally:
            os.chdir(here)
        yield


def test_all_troubles_are_told_at_once(tmp_path: pathlib.Path, listening: None) -> None:
    folder = tmp_path / "m"
    os.mkfifo(folder / "pipe.bin")
    os.symlink("../gone.safetensors", folder / "dangling.safetensors")
    os.symlink("itself.json", folder / "itself.json")
    os.symlink("..", folder / "up")
    with pytest.raises(UnreadableFiles) as refused:
        record_artifact(folder)
    told = [problem.replace(str(folder), "M") for problem in refused.value.problems]
    way_out = "finish the download, or remove the link"
    assert told[:4] == [
        "M/control: a socket, and an artifact is made of plain files: move it elsewhere",
        f"M/dangling.safetensors: a link to ../gone.safetensors, which is not there: {way_out}",
        "M/itself.json: a link that leads back to itself: remove it",
        "M/pipe.bin: a named pipe, and an artifact is made of plain files: move it elsewhere",
    ]
    assert told[4].endswith("a link that leads back to a folder above it: remove it")


def test_a_link_to_a_folder_elsewhere_is_followed(tmp_path: pathlib.Path) -> None:
    elsewhere = model_folder(tmp_path / "elsewhere")
    (tmp_path / "m").mkdir()
    os.symlink(elsewhere, tmp_path / "m" / "inner")
    assert "inner/model.safetensors" in by_path(record_artifact(tmp_path / "m"))


def test_two_files_of_equal_content_are_two_files(tmp_path: pathlib.Path) -> None:
    folder = model_folder(tmp_path / "m")
    shutil.copy(folder / "model.safetensors", folder / "copy.safetensors")
    os.link(folder / "model.safetensors", folder / "linked.safetensors")
    sums = [file.sha256 for file in record_artifact(folder).files if file.path.endswith(".safetensors")]
    assert len(sums) == 3
    assert len(set(sums)) == 1


def test_a_name_of_any_bytes_is_kept_exactly(tmp_path: pathlib.Path) -> None:
    folder = model_folder(tmp_path / "m")
    name = b"w\xff\x80\xc3\xa9.safetensors"
    with open(os.path.join(os.fsencode(folder), name), "wb") as file:
        file.write(safetensors({"a": 1}))
    record = record_artifact(folder)
    told = [file for file in record.to_json()["files"] if "path_hex" in file]
    assert [(one["path"], one["path_hex"]) for one in told] == [("w\\xff\\x80é.safetensors", name.hex())]


def test_a_file_that_vanishes_during_the_walk_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model_folder(tmp_path / "m")
    real = artifact_files.kind_of

    def vanishing(name: str, **rest: Any) -> Any:
        if name == "model.safetensors":
            (folder / name).unlink()
        return real(name, **rest)

    monkeypatch.setattr(artifact_files, "kind_of", vanishing)
    with pytest.raises(UnreadableFiles, match=r"model.safetensors: vanished while it was looked at"):
        record_artifact(folder)


def test_a_file_that_changes_after_it_was_hashed_is_named(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model_folder(tmp_path / "m")
    real = artifact.header_facts

    def changing(place: str, *rest: Any) -> Any:
        if place.endswith("config.json"):
            pathlib.Path(place).write_text('{"longer": "than before, and still JSON"}')
        return real(place, *rest)

    monkeypatch.setattr(artifact, "header_facts", changing)
    with pytest.raises(UnreadableFiles, match=r"config.json: changed while it was hashed \(it was written"):
        record_artifact(folder)


def test_a_folder_without_a_model_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(NoArtifact, match=r"absent: no such file or folder"):
        record_artifact(tmp_path / "absent")
    with pytest.raises(NoArtifact, match=r"no file of a model is there, nothing: name the folder"):
        record_artifact(tmp_path)
    (tmp_path / "README.md").write_text("")
    (tmp_path / "data.csv").write_text("1,2")
    with pytest.raises(NoArtifact, match=r"no file of a model is there, only data.csv, README.md: name"):
        record_artifact(tmp_path)
    with pytest.raises(NoArtifact, match="a revision was asked for"):
        record_artifact(model_folder(tmp_path / "m"), revision="main")
    with pytest.raises(NoArtifact, match="a character device"):
        record_artifact("/dev/null")


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("model-00001-of-00002.safetensors", "weight"),
        ("pytorch_model.bin", "weight"),
        ("consolidated.00.pth", "weight"),
        ("Model.GGUF", "weight"),
        ("adapter_model.bin", "adapter"),
        ("tokenizer.model", "tokenizer"),
        ("vocab.json", "tokenizer"),
        ("merges.txt", "tokenizer"),
        ("special_tokens_map.json", "tokenizer"),
        ("tekken.json", "tokenizer"),
        ("chat_template.json", "template"),
        ("tool_use.jinja", "template"),
        ("generation_config.json", "generation_config"),
        ("quantize_config.json", "config"),
        ("preprocessor_config.json", "config"),
        ("modeling_x.py", "other"),
        ("something.xyz", "other"),
        ("LICENSE", None),
        ("optimizer.pt", None),
        ("training_args.bin", None),
        ("picture.PNG", None),
        ("model.safetensors.lock", None),
    ],
)
def test_a_role_is_told_by_the_name(name: str, role: str | None) -> None:
    kind = kind_of(name)
    assert (kind.role.value if kind.role is not None else None) == role
    if kind.role in (None, Role.OTHER):
        assert kind.reason
