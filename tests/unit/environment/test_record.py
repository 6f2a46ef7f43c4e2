"""A record on its way: written, read back, and refused when it was changed."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from engines.identity.record import Identity, UnknownField, from_json, load
from engines.identity.trouble import BadRecord, UnreadableFiles

RECORD = Identity(
    fields={"precision.dtype": "bfloat16", "gpu.count": 1, "cuda.driver": UnknownField("no driver")},
    about={"captured_at": "2026-01-01T00:00:00+00:00"},
)


def changed(**parts: Any) -> dict[str, Any]:
    return {**RECORD.to_json(), **parts}


def test_a_record_reads_back_as_it_was_written(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "record.json"
    file.write_text(json.dumps(RECORD.to_json(), indent=3))
    assert load(file) == RECORD
    assert load(file).digest == RECORD.digest


def test_what_is_volatile_may_change_and_the_digest_stays() -> None:
    document = changed(about={"captured_at": "later", "volatile": {"gpu.0": {"temperature_c": 71}}})
    assert from_json(document).digest == RECORD.digest


def test_a_changed_field_is_told_with_both_digests() -> None:
    fields = {**RECORD.to_json()["fields"], "precision.dtype": "float16"}
    with pytest.raises(BadRecord) as error:
        from_json(changed(fields=fields))
    made = Identity(fields={**RECORD.fields, "precision.dtype": "float16"}).digest
    assert RECORD.digest in str(error.value)
    assert made in str(error.value)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "no environment record"),
        ({"fields": {}}, "no environment record"),
        (changed(record="artifact/1"), "'artifact/1' is not \"environment/1\""),
        (changed(record="environment/2"), "'environment/2' is not"),
        (changed(fields=[]), "fields: must be an object"),
        (changed(about=3), "about: must be an object"),
        (changed(more=1), "more: environment/1 has no such part"),
        (changed(digest=None), "digest: the record says None"),
        (changed(fields={"a": {"unknown": 3}}), "fields.a: an unknown field is"),
        (changed(fields={"a": {"unknown": "x", "and": 1}}), "fields.a: an unknown field is"),
        (changed(fields={"a\nb": 1}), "is no name of a field"),
        (changed(fields={"a": 2**60}), "fields: $.fields.a: the integer"),
    ],
)
def test_what_is_no_record_is_refused_by_name(document: Any, message: str) -> None:
    with pytest.raises(BadRecord) as error:
        from_json(document)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [(b"{", "not JSON"), (b'{"record": NaN}', "NaN"), (b"\xff", "not UTF-8"), (b'{"a":1,"a":2}', "twice")],
)
def test_a_file_that_is_none_is_refused_by_its_name(
    tmp_path: pathlib.Path, text: bytes, message: str
) -> None:
    file = tmp_path / "record.json"
    file.write_bytes(text)
    with pytest.raises(BadRecord) as error:
        load(file)
    assert str(file) in str(error.value)
    assert message in str(error.value)


def test_a_file_that_is_not_there_cannot_be_read(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UnreadableFiles, match=r"gone\.json"):
        load(tmp_path / "gone.json")
