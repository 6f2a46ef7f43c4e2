"""A GGUF file's header: architecture, quantisation, its place in a split, and its chat templates.

Layout after ``docs/gguf.md`` of ``ggml-org/ggml``: magic, version, counts, key-value pairs, tensor
descriptions, then the tensors. Everything is read in one pass with a bounded buffer; long arrays (a
vocabulary) are stepped over.
"""

from __future__ import annotations

import math
import os
import struct
from collections import Counter
from typing import Any, BinaryIO

_LONGEST_STRING_BYTES = 16 << 20
_DEEPEST_ARRAY = 4
_DEFAULT_ALIGNMENT = 32
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
# ggml's types: name, values in a block, bytes of a block.
_TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8),
    28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
}  # fmt: skip
_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S",
    12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K",
    19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL",
    26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0",
    37: "TQ2_0", 38: "MXFP4_MOE", 39: "NVFP4", 40: "Q1_0",
}  # fmt: skip
_WANTED = (
    "general.architecture",
    "general.type",
    "general.file_type",
    "general.quantization_version",
    "general.alignment",
    "split.no",
    "split.count",
    "split.tensors.count",
)
_TEMPLATE = "tokenizer.chat_template"


def read_gguf_header(file: BinaryIO) -> dict[str, Any]:
    """Its facts (``format``, ``version``, ``architecture``, ``quantisation``, ``tensors``, ``parameters``,
    ``dtypes``, ``split``), and under ``templates`` the text of each chat template by its name.

    Raises:
        ValueError: truncated, or no GGUF; the message says which.
        OSError: the file cannot be read.
    """
    reader = _Reader(file)
    try:
        return _read(reader)
    except EOFError:
        raise ValueError(
            f"truncated: its header goes on beyond the end of the file, {reader.size} bytes"
        ) from None


def _read(reader: _Reader) -> dict[str, Any]:
    if reader.size < 4 or reader.bytes(4) != b"GGUF":
        raise ValueError("no GGUF: it does not begin with the letters GGUF")
    version = reader.number("I")
    if version & 0xFFFF == 0:  # ggml's own test: a file of the other byte order has it in the upper half
        reader.order = ">"
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in (2, 3):
        raise ValueError(f"GGUF of version {version}, and only 2 and 3 are known here")
    tensors, pairs = reader.number("Q"), reader.number("Q")
    told: dict[str, Any] = {}
    templates: dict[str, str] = {}
    for _ in range(pairs):
        key = reader.string()
        kind = reader.number("I")
        if key == _TEMPLATE or key.startswith(_TEMPLATE + "."):
            value = reader.value(kind, keep=kind == _STRING)
            if isinstance(value, str):
                templates[key.removeprefix(_TEMPLATE).removeprefix(".") or "default"] = value
        elif key in _WANTED:
            told[key] = reader.value(kind, keep=kind != _ARRAY)
        else:
            reader.value(kind, keep=False)
    types, parameters = _tensors(reader, tensors, told.get("general.alignment"))
    facts: dict[str, Any] = {"format": "gguf", "version": version}
    for name, key in (("architecture", "general.architecture"), ("type", "general.type")):
        if key in told:
            facts[name] = told[key]
    if "general.file_type" in told:
        number = told["general.file_type"]
        facts["quantisation"] = _FILE_TYPES.get(number, f"file type {number}")
    if told.get("split.count", 0) > 1:
        facts["split"] = {"number": told.get("split.no", 0), "of": told["split.count"]}
        facts["split_tensors"] = told.get("split.tensors.count", 0)
    return {
        **facts,
        "tensors": tensors,
        "parameters": parameters,
        "dtypes": dict(sorted(types.items())),
        "templates": templates,
    }


def _tensors(reader: _Reader, count: int, alignment: object) -> tuple[Counter[str], int]:
    """Types of the tensors and their number of values; checks that the file holds them all."""
    types: Counter[str] = Counter()
    parameters = end = 0
    for _ in range(count):
        name = reader.string()
        dimensions = reader.number("I")
        if dimensions > 8:
            raise ValueError(f"no GGUF: tensor {name!r} has {dimensions} dimensions")
        values = math.prod(reader.number("Q") for _ in range(dimensions))
        kind, offset = reader.number("I"), reader.number("Q")
        # A type that is newer than this table: at least its first byte must be there.
        label, block, block_bytes = _TYPES.get(kind, (f"type {kind}", 0, 1))
        types[label] += 1
        parameters += values
        end = max(end, offset + (values // block * block_bytes if block else 1))
    step = alignment if isinstance(alignment, int) and alignment > 0 else _DEFAULT_ALIGNMENT
    start = -(-reader.place // step) * step
    if count and start + end > reader.size:
        raise ValueError(
            f"truncated: header and tensors make {start + end} bytes, the file has {reader.size}"
        )
    return types, parameters


class _Reader:
    """Numbers and strings, never past the end of the file and never more than a bound at once."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = os.fstat(file.fileno()).st_size
        self.place = 0
        self.order = "<"

    def bytes(self, count: int) -> bytes:
        if count > self.size - self.place:
            raise EOFError
        if count > _LONGEST_STRING_BYTES:
            raise ValueError(f"no GGUF: a text of {count} bytes stands in its header")
        read = self._file.read(count)
        if len(read) < count:
            raise EOFError
        self.place += count
        return read

    def skip(self, count: int) -> None:
        if count > self.size - self.place:
            raise EOFError
        self._file.seek(count, os.SEEK_CUR)
        self.place += count

    def number(self, code: str) -> Any:
        layout = self.order + code
        return struct.unpack(layout, self.bytes(struct.calcsize(layout)))[0]

    def string(self) -> str:
        return self.bytes(self.number("Q")).decode("utf-8", "replace")

    def value(self, kind: int, *, keep: bool, depth: int = 0) -> Any:
        """One value; None where it was only stepped over."""
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind == _STRING:
            if keep:
                return self.string()
            self.skip(self.number("Q"))
            return None
        if kind != _ARRAY or depth > _DEEPEST_ARRAY:
            raise ValueError(f"no GGUF: a value of type {kind} stands in its header")
        inner, count = self.number("I"), self.number("Q")
        if inner in _SCALARS:
            self.skip(count * struct.calcsize("=" + _SCALARS[inner]))
            return None
        # Each item takes at least eight bytes, so a count that lies meets the end of the file.
        for _ in range(count):
            self.value(inner, keep=False, depth=depth + 1)
        return None
