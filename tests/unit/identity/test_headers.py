"""Headers of weight files: what they tell, and that no damage passes or crashes."""

from __future__ import annotations

import io
import json
import pathlib
import struct
from typing import Any

import pytest

from engines.identity.artifact_headers import BadHeader, header_facts
from engines.identity.artifact_kinds import Role
from tests.support.artifacts import TEMPLATE, gguf, safetensors


def facts(tmp_path: pathlib.Path, name: str, content: bytes) -> dict[str, Any] | None:
    (tmp_path / name).write_bytes(content)
    return header_facts(str(tmp_path / name), name, Role.WEIGHT)


def test_safetensors_tell_tensors_parameters_and_types(tmp_path: pathlib.Path) -> None:
    assert facts(tmp_path, "m.safetensors", safetensors({"a": 3, "b": 5}, dtype="F16")) == {
        "format": "safetensors",
        "tensors": 2,
        "parameters": 8,
        "dtypes": {"F16": 2},
        "names": frozenset({"a", "b"}),
    }


@pytest.mark.parametrize("order", ["<", ">"], ids=["little-endian", "big-endian"])
def test_gguf_tells_architecture_quantisation_and_template(tmp_path: pathlib.Path, order: str) -> None:
    content = gguf(order=order, general__type="model", split__no=1, split__count=3)
    assert facts(tmp_path, "m.gguf", content) == {
        "format": "gguf",
        "version": 3,
        "architecture": "llama",
        "type": "model",
        "quantisation": "Q4_1",
        "split": {"number": 1, "of": 3},
        "split_tensors": 0,
        "tensors": 2,
        "parameters": 40,
        "dtypes": {"F32": 2},
        "templates": {"default": TEMPLATE},
    }


def test_gguf_block_sizes_are_those_of_the_gguf_package() -> None:
    package = pytest.importorskip("gguf")
    from engines.identity.gguf_header import _TYPES

    theirs = {int(kind): (kind.name, *sizes) for kind, sizes in package.GGML_QUANT_SIZES.items()}
    assert {number: theirs.get(number) for number in _TYPES} == _TYPES


def _header(value: Any) -> bytes:
    text = json.dumps(value).encode() if not isinstance(value, bytes) else value
    return len(text).to_bytes(8, "little") + text


WHOLE = safetensors({"a": 3})
TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated: 0 bytes"),
        (b"\x00" * 7, "truncated: 7 bytes"),
        ((1 << 40).to_bytes(8, "little"), "tell of a header of 1099511627776 bytes"),
        (WHOLE[:20], "truncated: its header alone has"),
        (WHOLE[:-1], "truncated: header and tensors make"),
        (WHOLE + b"x", "longer than its header says"),
        (_header(b"{nonsense"), "its header is not JSON"),
        (_header([]), "no JSON object"),
        (_header({"a": 1}), "tensor 'a' is not described as one"),
        (_header({"a": {**TENSOR, "shape": [3]}}), "3 values of F32 do not fill bytes 0 to 8"),
        (_header({"a": {**TENSOR, "data_offsets": [8, 0]}}), "do not fill bytes 8 to 0"),
        (b"version https://git-lfs.github.com/spec/v1\n", "no safetensors"),
    ],
)
def test_damaged_safetensors_are_refused(tmp_path: pathlib.Path, content: bytes, message: str) -> None:
    with pytest.raises(BadHeader, match=message):
        facts(tmp_path, "m.safetensors", content)


GGUF = gguf()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "does not begin with the letters GGUF"),
        (b"GGML" + b"\0" * 40, "does not begin with the letters GGUF"),
        (b"GGUF", "truncated"),
        (b"GGUF" + struct.pack("<I", 9), "version 9"),
        (GGUF[:60], "truncated: its header goes on beyond the end"),
        (GGUF[:-1], "truncated: header and tensors make"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 60), "truncated"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sI", 1, b"k", 99), "value of type 99"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 62, 0) + b"\0" * 64, "truncated"),
    ],
)
def test_damaged_gguf_are_refused(tmp_path: pathlib.Path, content: bytes, message: str) -> None:
    with pytest.raises(BadHeader, match=message):
        facts(tmp_path, "m.gguf", content)


def test_an_array_in_an_array_without_end_is_refused(tmp_path: pathlib.Path) -> None:
    content = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sI", 1, b"k", 9)
    content += struct.pack("<IQ", 9, 1) * 2000
    with pytest.raises(BadHeader, match="value of type 9"):
        facts(tmp_path, "m.gguf", content)


@pytest.mark.parametrize(
    ("name", "start", "told"),
    [("m.bin", b"PK\x03\x04", "torch zip"), ("m.pt", b"\x80\x02x", "torch pickle"), ("m.bin", b"ab", None)],
)
def test_torch_files_tell_how_they_were_saved(
    tmp_path: pathlib.Path, name: str, start: bytes, told: str | None
) -> None:
    assert facts(tmp_path, name, start) == (None if told is None else {"format": told})


def test_reading_a_header_never_reads_the_tensors(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "huge.safetensors"
    count = 1 << 40
    text = json.dumps({"a": {"dtype": "U8", "shape": [count], "data_offsets": [0, count]}}).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.seek(0, io.SEEK_END)
        file.truncate(file.tell() + count)
    told = header_facts(str(path), path.name, Role.WEIGHT)
    assert told is not None
    assert told["parameters"] == count
