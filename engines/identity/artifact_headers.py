"""What a weight file's own header tells, read without its tensors; and whether the file is all there.

safetensors: eight bytes of length, then JSON. GGUF: see ``gguf_header``. Sources: the format's README in
``huggingface/safetensors``.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from typing import Any, BinaryIO

from engines.identity.artifact_kinds import Role
from engines.identity.canonical import CanonicalError, digest_of, parse
from engines.identity.gguf_header import read_gguf_header

_LARGEST_HEADER_BYTES = 100_000_000  # the format's own limit
_LARGEST_JSON_BYTES = 1 << 20
"""Of a configuration file that is read for its values; a tokenizer's vocabulary is larger and is not."""
_JSON_ROLES = frozenset({Role.CONFIG, Role.GENERATION_CONFIG, Role.TOKENIZER, Role.ADAPTER, Role.TEMPLATE})
_DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "C64": 64, "F64": 64,
    "I64": 64, "U64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


class BadHeader(ValueError):  # noqa: N818
    """The file is not what its name says, or ends too early; the message says which."""


def read_safetensors_header(file: BinaryIO) -> dict[str, Any]:
    """``{"format", "tensors", "parameters", "dtypes"}`` and, for the index, ``"names"``.

    Raises:
        BadHeader: truncated, or no safetensors.
        OSError: the file cannot be read.
    """
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    if len(start) < 8:
        raise BadHeader(f"truncated: {size} bytes, and a safetensors header begins with 8")
    length = int.from_bytes(start, "little")
    if length > _LARGEST_HEADER_BYTES:
        raise BadHeader(f"no safetensors: its first 8 bytes tell of a header of {length} bytes")
    if 8 + length > size:
        raise BadHeader(f"truncated: its header alone has {length} bytes, and the file {size}")
    try:
        header = json.loads(file.read(length))
    except (ValueError, RecursionError) as error:
        raise BadHeader(f"no safetensors: its header is not JSON ({error})") from None
    if not isinstance(header, dict):
        raise BadHeader("no safetensors: its header is no JSON object")
    header.pop("__metadata__", None)
    dtypes: Counter[str] = Counter()
    parameters = end = 0
    for name, tensor in header.items():
        try:
            first, last = tensor["data_offsets"]
            dtype, elements = str(tensor["dtype"]), math.prod(tensor["shape"])
            bits = _DTYPE_BITS.get(dtype)
            if not 0 <= first <= last or (bits is not None and (last - first) * 8 != elements * bits):
                raise ValueError(f"{elements} values of {dtype} do not fill bytes {first} to {last}")
        except (KeyError, TypeError, ValueError) as error:
            raise BadHeader(f"no safetensors: tensor {name!r} is not described as one ({error})") from None
        dtypes[dtype] += 1
        parameters += elements
        end = max(end, last)
    if 8 + length + end != size:
        word = "truncated" if 8 + length + end > size else "longer than its header says"
        raise BadHeader(f"{word}: header and tensors make {8 + length + end} bytes, the file has {size}")
    facts = {"format": "safetensors", "tensors": len(header), "parameters": parameters}
    return {**facts, "dtypes": dict(sorted(dtypes.items())), "names": frozenset(header)}


def header_facts(place: str, name: str, role: Role) -> dict[str, Any] | None:
    """What the file at ``place``, called ``name``, tells of itself; None for a kind without a header.

    Raises:
        BadHeader: the file is damaged, or is not what its name says.
        OSError: it cannot be read.
    """
    lowered = name.lower()
    if lowered.endswith(".safetensors"):
        with open(place, "rb") as file:
            return read_safetensors_header(file)
    if lowered.endswith(".gguf"):
        with open(place, "rb") as file:
            try:
                return read_gguf_header(file)
            except ValueError as error:
                raise BadHeader(str(error)) from None
    if lowered.endswith((".bin", ".pt", ".pth")):
        with open(place, "rb") as file:
            start = file.read(4)
        # torch.save: a zip since 1.6, before that a pickle. What is inside needs a pickle reader: not cheap.
        kinds = {b"PK\x03\x04": "torch zip", b"\x80\x02": "torch pickle"}
        told = next((kind for magic, kind in kinds.items() if start.startswith(magic)), None)
        return None if told is None else {"format": told}
    if lowered.endswith(".json") and role in _JSON_ROLES:
        return _json_facts(place)
    return None


def _json_facts(place: str) -> dict[str, Any] | None:
    """The digest of a small JSON file's values, so that other spacing is told from other values."""
    with open(place, "rb") as file:
        text = file.read(_LARGEST_JSON_BYTES + 1)
    if len(text) > _LARGEST_JSON_BYTES:
        return None
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadHeader(f"not JSON: {error}") from None
    try:
        return {"values": digest_of(parse(text))}
    except CanonicalError as error:
        # tokenizer_config.json often has model_max_length 10^30, as an integer.
        return {"values": {"unknown": str(error)}}
