"""A record read back: exactly what was written, or refused."""

from __future__ import annotations

import copy
import json
import pathlib
from typing import Any

import pytest

from engines.identity.artifact import ArtifactRecord, record_artifact
from engines.identity.artifact_json import from_json, load
from engines.identity.canonical import digest_of
from engines.identity.trouble import BadRecord, UnreadableFiles
from tests.support.artifacts import model_folder


@pytest.fixture
def record(tmp_path: pathlib.Path) -> ArtifactRecord:
    return record_artifact(model_folder(tmp_path / "m", code__py="x = 1"))


def signed(document: dict[str, Any]) -> dict[str, Any]:
    """A document whose digest fits, whatever it holds."""
    body = {name: value for name, value in document.items() if name not in ("digest", "about")}
    return {**document, "digest": digest_of(body)}


def test_a_record_reads_back_as_it_was_written(record: ArtifactRecord, tmp_path: pathlib.Path) -> None:
    (tmp_path / "record.json").write_text(json.dumps(record.to_json(), indent=2))
    again = load(tmp_path / "record.json")
    assert again == record
    assert again.to_json() == record.to_json()


def test_every_single_change_outside_about_is_noticed(record: ArtifactRecord) -> None:
    document = record.to_json()
    tampered = 0
    for keys, value in list(_leaves(document)):
        if keys[0] == "about":
            continue
        changed = copy.deepcopy(document)
        inner: Any = changed
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value + 1 if isinstance(value, int) else value + "x"
        with pytest.raises(BadRecord):
            from_json(changed)
        tampered += 1
    assert tampered > 30


def _leaves(value: Any, keys: tuple[Any, ...] = ()) -> Any:
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(inner, (*keys, key))
    else:
        yield keys, value


def test_a_tampered_record_is_refused_with_both_digests(
    record: ArtifactRecord, tmp_path: pathlib.Path
) -> None:
    document = record.to_json()
    document["files"][0]["sha256"] = "0" * 64
    made = signed(document)["digest"]
    (tmp_path / "r.json").write_text(json.dumps(document))
    with pytest.raises(BadRecord) as refused:
        load(tmp_path / "r.json")
    assert str(refused.value).startswith(
        f"{tmp_path}/r.json: digest: the record says {record.digest} and its content makes {made}: "
        "it was changed after it was made"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"record": "environment/1"}, r"record: 'environment/1' is not \"artifact/1\""),
        ({"files": None}, r"files: must be a list"),
        ({"files": [{}]}, r"files\[0\].path: must be a text"),
        ({"files": [5]}, r"files\[0\].path: must be a text"),
        ({"image": {}}, r"image: must be"),
        ({"image": {"digest": 5}}, r"image: must be"),
        ({"templates": [{"name": "a", "sha256": "x" * 64, "in": []}]}, r"templates\[0\].sha256: 'x+' is not"),
        ({"templates": [{"name": "a", "sha256": "0" * 64}]}, r"templates\[0\].in: must be a list of paths"),
        ({"about": 5}, r"about: must be an object"),
        ({"model_digest": "sha256:0"}, r"fields that artifact/1 does not have"),
        ({"surprise": 1}, r"fields that artifact/1 does not have"),
    ],
)
def test_a_record_of_another_form_is_refused(
    record: ArtifactRecord, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadRecord, match=message):
        from_json(signed({**record.to_json(), **change}))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("path", "/etc/passwd", "no path under the artifact's folder"),
        ("path", "../up", "no path under"),
        ("path", "", "no path under"),
        ("path", "a\0b", "no path under"),
        ("path_hex", "zz", "not hex"),
        ("role", "king", "'king' is not one of weight, adapter"),
        ("bytes", -1, "-1 is no count"),
        ("bytes", True, "True is no count"),
        ("bytes", 1.5, "1.5 is no count"),
        ("header", [], "must be an object"),
        ("reason", 5, "must be a text"),
    ],
)
def test_a_file_of_another_form_is_refused(
    record: ArtifactRecord, field: str, value: Any, message: str
) -> None:
    document = record.to_json()
    document["files"][0][field] = value
    with pytest.raises(BadRecord, match=rf"files\[0\]\.{field}: .*{message}"):
        from_json(signed(document))


def test_a_path_that_stands_twice_is_refused(record: ArtifactRecord) -> None:
    document = record.to_json()
    document["files"].append(document["files"][0])
    with pytest.raises(BadRecord, match=r"files: .* stands twice"):
        from_json(signed(document))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"not JSON: .* line 1, column 1"),
        (b"[]", r"no artifact record: `forkgate artifact record` writes one"),
        (b"\xff", r"not JSON: byte 0 is not UTF-8"),
        (b'{"record": "artifact/1", "record": "artifact/1"}', r"the key 'record' stands twice"),
        (b'{"record": "artifact/1", "files": [{"bytes": 99999999999999999}]}', r".*is beyond 2\^53"),
    ],
)
def test_a_file_that_is_no_record_is_refused(tmp_path: pathlib.Path, content: bytes, message: str) -> None:
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(BadRecord, match=rf"r\.json: {message}"):
        load(tmp_path / "r.json")
    with pytest.raises(UnreadableFiles, match=r"cannot be read: Is a directory"):
        load(tmp_path)
