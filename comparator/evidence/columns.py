"""Live records as columns: what a journal holds most of, at about a third of its size in memory, bit for bit.

A blob is a MessagePack array ``[version, rows, texts, column...]``, one column a field of
:class:`~comparator.records.LiveRecord` in the version's order. Text is an index into ``texts``, two bytes
each. Numbers are 8 bytes little-endian, the bytes of one place together (all lowest bytes, then all second
ones...), and where the values rise by little, as their differences: both make columns that deflate well.
Floats travel as their bits, so that a NaN stays the one that it was.

Legend: R rows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from comparator.errors import ComparatorError
from comparator.records import LiveRecord

VERSION = 3

_TEXT, _INT, _FLOAT, _FLAG = "text", "int", "float", "flag"

FIELDS: dict[int, tuple[tuple[str, str], ...]] = {
    1: (
        ("sequence", _INT),
        ("started_unix_s", _FLOAT),
        ("tenant", _TEXT),
        ("pool", _TEXT),
        ("endpoint", _TEXT),
        ("status", _INT),
        ("first_byte_s", _FLOAT),
        ("total_s", _FLOAT),
        ("request_bytes", _INT),
        ("response_bytes", _INT),
        ("aborted_by", _TEXT),
        ("retried", _FLAG),
        ("canary", _FLAG),
        ("sampled", _FLAG),
        ("streamed", _FLAG),
    )
}
"""By version. A field that LiveRecord gains makes a new version; older blobs give it its default."""

FIELDS[2] = (*FIELDS[1], ("drawable", _FLAG))
FIELDS[3] = (*FIELDS[2], ("environment", _TEXT), ("environment_by_probe", _FLAG))

_RISING = {"sequence", "started_unix_s"}
"""Kept as differences (of the bits, where floats)."""

_decoder = msgspec.msgpack.Decoder(list[Any])
_encoder = msgspec.msgpack.Encoder()


class ColumnsError(ComparatorError):
    """Values that no column can hold, or a blob that this version cannot read."""


def encode_live(records: Sequence[LiveRecord]) -> bytes:
    """One blob, not yet deflated.

    Raises:
        ColumnsError: an integer beyond 64 bits, or more than 65,535 different texts.
    """
    texts: dict[str, int] = {}
    columns: list[bytes] = []
    rows = len(records)
    try:
        for name, kind in FIELDS[VERSION]:
            values = [getattr(record, name) for record in records]
            if kind == _TEXT:
                places = [texts.setdefault(value, len(texts)) for value in values]
                columns.append(struct.pack(f"<{rows}H", *places))
            elif kind == _FLAG:
                columns.append(bytes(values))
            else:
                packed = struct.pack(f"<{rows}{'d' if kind == _FLOAT else 'q'}", *values)
                columns.append(_shuffled(packed, rising=name in _RISING))
    except (struct.error, TypeError, ValueError) as exc:
        raise ColumnsError(f"live records cannot be stored: {exc}") from exc
    return _encoder.encode([VERSION, rows, list(texts), *columns])


def decode_live(blob: bytes) -> tuple[LiveRecord, ...]:
    """What :func:`encode_live` was given.

    Raises:
        ColumnsError: not such a blob, or one of a newer version.
    """
    try:
        version, rows, texts, *columns = _decoder.decode(blob)
        fields = FIELDS.get(version)
        if fields is None:
            raise ColumnsError(f"live records of version {version}; this forkgate reads up to {VERSION}")
        values: dict[str, Sequence[Any]] = {}
        for (name, kind), column in zip(fields, columns, strict=True):
            if kind == _TEXT:
                values[name] = [texts[place] for place in struct.unpack(f"<{rows}H", column)]
            elif kind == _FLAG:
                values[name] = [bool(flag) for flag in column]
            else:
                plain = _plain(column, rising=name in _RISING)
                values[name] = struct.unpack(f"<{rows}{'d' if kind == _FLOAT else 'q'}", plain)
        names = tuple(values)
        return tuple(
            LiveRecord(**dict(zip(names, row, strict=True))) for row in zip(*values.values(), strict=True)
        )
    except (msgspec.MsgspecError, struct.error, ValueError, TypeError, IndexError) as exc:
        raise ColumnsError(f"a blob of live records, {len(blob)} bytes, cannot be read: {exc}") from exc


def _shuffled(packed: bytes, *, rising: bool) -> bytes:
    bits: npt.NDArray[np.int64] = np.frombuffer(packed, dtype="<i8")
    if rising:
        bits = np.diff(bits, prepend=np.zeros(1, dtype="<i8")).astype("<i8")
    return np.ascontiguousarray(bits.view(np.uint8).reshape(-1, 8).T).tobytes()


def _plain(column: bytes, *, rising: bool) -> bytes:
    shuffled = np.frombuffer(column, dtype=np.uint8).reshape(8, -1)
    bits = np.ascontiguousarray(shuffled.T).view("<i8").reshape(-1)
    return (np.cumsum(bits, dtype="<i8") if rising else bits).tobytes()
