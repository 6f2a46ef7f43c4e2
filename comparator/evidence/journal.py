"""What a journal entry holds, as bytes.

Evidence is an array of parts in fold order, each a run of one kind: a comparison or a fork is the key that
it is stored under, live records are columns (:mod:`comparator.evidence.columns`), engine samples are
MessagePack. The first byte says whether the rest is deflated: short entries, which most are, would grow.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import msgspec

from comparator.comparison import Comparison
from comparator.errors import ComparatorError
from comparator.evidence.columns import ColumnsError, decode_live, encode_live
from comparator.evidence.rows import JournalItem
from comparator.pair import ForkSeen
from comparator.records import EngineSample, LiveRecord

VERSION = 1
_PLAIN, _DEFLATED = b"p", b"z"
_SHORT_BYTES = 200


class JournalError(ComparatorError):
    """An entry that cannot be kept, or bytes that are none."""


class ComparisonRef(msgspec.Struct, frozen=True):
    """A comparison, by the capture whose it is."""

    capture_id: str


class ForkRef(msgspec.Struct, frozen=True):
    """A fork that was folded when it was seen, before its comparison was finished."""

    capture_id: str
    left_arm: str
    right_arm: str
    replicate: int


Part = ComparisonRef | ForkRef | LiveRecord | EngineSample

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Any])


def encode_items(items: Sequence[JournalItem]) -> bytes:
    """Evidence of one event, in its order.

    Raises:
        JournalError: a value that cannot be kept.
    """
    parts: list[list[Any]] = []
    for kind, run in groupby(items, type):
        if kind is LiveRecord:
            try:
                parts.append(["l", encode_live(list(run))])  # type: ignore[arg-type]
            except ColumnsError as exc:
                raise JournalError(str(exc)) from exc
        elif kind is EngineSample:
            parts.append(["e", list(run)])
        else:
            parts += [_reference(item) for item in run]
    try:
        return pack(_encoder.encode([VERSION, *parts]))
    except (TypeError, OverflowError) as exc:
        raise JournalError(f"evidence cannot be kept in the journal: {exc}") from exc


def decode_items(body: bytes) -> tuple[Part, ...]:
    """What :func:`encode_items` was given, references in place of what is stored elsewhere.

    Raises:
        JournalError: not such bytes, or of a newer forkgate.
    """
    items: list[Part] = []
    try:
        version, *parts = _decoder.decode(unpack(body))
        if version != VERSION:
            raise JournalError(f"a journal entry of version {version}; this forkgate reads {VERSION}")
        for tag, *rest in parts:
            if tag == "l":
                items += decode_live(rest[0])
            elif tag == "e":
                items += msgspec.convert(rest[0], tuple[EngineSample, ...])
            elif tag == "c":
                items.append(ComparisonRef(*rest))
            elif tag == "f":
                items.append(ForkRef(*rest))
            else:
                raise JournalError(f"a journal entry with a part of unknown kind {tag!r}")
    except (msgspec.MsgspecError, ColumnsError, TypeError, ValueError, IndexError) as exc:
        raise JournalError(f"a journal entry of {len(body)} bytes cannot be read: {exc}") from exc
    return tuple(items)


def pack(raw: bytes) -> bytes:
    """Deflated where that pays."""
    return _PLAIN + raw if len(raw) < _SHORT_BYTES else _DEFLATED + zlib.compress(raw, 6)


def unpack(body: bytes) -> bytes:
    """What :func:`pack` was given. Raises JournalError."""
    if body[:1] == _PLAIN:
        return body[1:]
    if body[:1] != _DEFLATED:
        raise JournalError(f"a body of {len(body)} bytes that is none of a journal")
    try:
        return zlib.decompress(body[1:])
    except zlib.error as exc:
        raise JournalError(f"a damaged body of {len(body)} bytes: {exc}") from exc


def _reference(item: JournalItem) -> list[Any]:
    if isinstance(item, Comparison):
        return ["c", item.capture_id]
    if isinstance(item, ForkSeen):
        return ["f", item.capture_id, item.left_arm.value, item.right_arm.value, item.replicate]
    raise JournalError(f"{type(item).__name__} is no evidence that a journal knows")
