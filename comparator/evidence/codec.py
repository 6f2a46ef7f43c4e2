"""The content of one exchange as one blob: columns, little-endian, floats bit-exact as they were received.

Legend: T steps, P prompt tokens, K entries of a step's top-k (usually the same for all steps).

A blob is a MessagePack array, the fields of :class:`_Blob` in order. Token IDs are unsigned 32-bit, or signed
64-bit where one does not fit (``wide_ids``). Logprobs are binary64 as JSON gave them; where every one of
a column survives the way to binary32 and back *bit for bit* (engines compute them in float32, so this is the
rule), the column holds binary32 at half the size (``*_half``). Nothing is rounded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from comparator.errors import ComparatorError
from comparator.records import Step

VERSION = 1


class ContentError(ComparatorError):
    """A blob that this version cannot read, or values that no blob can hold."""


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What pruning takes away: the token IDs of a prompt and the steps of its answer."""

    prompt_token_ids: tuple[int, ...]
    steps: tuple[Step, ...]


class _Blob(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    version: int
    tokens: int
    """T"""
    wide_ids: bool
    prompt: bytes
    """P IDs"""
    ids: bytes
    """T IDs"""
    received: bytes
    """T binary64 seconds"""
    logprobs: bytes
    """T floats of the drawn tokens; 0 where ``absent``"""
    logprobs_half: bool
    absent: bytes
    """T bytes, 1 where the engine gave no logprob; empty when it gave all"""
    top_id_counts: int | bytes
    """K of every step, or T unsigned 32-bit counts"""
    top_ids: bytes
    top_logprob_counts: int | bytes
    top_logprobs: bytes
    top_half: bool
    texts: list[str | None] | None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Blob)


def encode_content(prompt_token_ids: Sequence[int], steps: Sequence[Step]) -> bytes:
    """The blob of one exchange.

    Raises:
        ContentError: an ID is no 64-bit integer, or a number is not one.
    """
    try:
        return _encode(prompt_token_ids, steps, wide=False)
    except struct.error:
        pass  # an ID beyond 32 bits, or no number at all: the wide form tells
    try:
        return _encode(prompt_token_ids, steps, wide=True)
    except (struct.error, TypeError) as exc:
        raise ContentError(f"exchange content cannot be stored: {exc}") from exc


def decode_content(blob: bytes) -> Content:
    """What :func:`encode_content` was given, every float bit for bit.

    Raises:
        ContentError: not such a blob, or one of a newer version.
    """
    try:
        return _decode(_decoder.decode(blob))
    except (msgspec.MsgspecError, struct.error, ValueError) as exc:
        raise ContentError(f"content blob of {len(blob)} bytes cannot be read: {exc}") from exc


def _encode(prompt: Sequence[int], steps: Sequence[Step], *, wide: bool) -> bytes:
    id_code = "q" if wide else "I"
    drawn = [step.logprob for step in steps]
    top_ids = [step.top_ids for step in steps]
    top_logprobs = [step.top_logprobs for step in steps]
    texts = [step.text for step in steps]
    absent = b""
    if None in drawn:
        absent = bytes(logprob is None for logprob in drawn)
    logprobs, logprobs_half = _floats(0.0 if logprob is None else logprob for logprob in drawn)
    top, top_half = _floats(chain.from_iterable(top_logprobs))
    return _encoder.encode(
        _Blob(
            version=VERSION,
            tokens=len(steps),
            wide_ids=wide,
            prompt=_packed(id_code, prompt),
            ids=_packed(id_code, [step.token_id for step in steps]),
            received=_packed("d", [step.received_s for step in steps]),
            logprobs=logprobs,
            logprobs_half=logprobs_half,
            absent=absent,
            top_id_counts=_counts(top_ids),
            top_ids=_packed(id_code, chain.from_iterable(top_ids)),
            top_logprob_counts=_counts(top_logprobs),
            top_logprobs=top,
            top_half=top_half,
            texts=None if texts.count(None) == len(texts) else texts,
        )
    )


def _packed(code: str, values: Iterable[float]) -> bytes:
    row = tuple(values)
    return struct.pack(f"<{len(row)}{code}", *row)


def _floats(values: Iterable[float]) -> tuple[bytes, bool]:
    packed = _packed("d", values)
    wide = np.frombuffer(packed, dtype="<f8")
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = wide.astype("<f4")
        # compared as bytes: NaN payloads and the sign of zero count
        half = narrow.astype("<f8").tobytes() == packed
    return (narrow.tobytes(), True) if half else (packed, False)


def _counts(rows: Sequence[Sequence[object]]) -> int | bytes:
    lengths = [len(row) for row in rows]
    if not lengths:
        return 0
    if lengths.count(lengths[0]) == len(lengths):
        return lengths[0]
    return _packed("I", lengths)


def _decode(blob: _Blob) -> Content:
    if blob.version != VERSION:
        raise ContentError(f"content blob of version {blob.version}; this forkgate reads {VERSION}")
    id_code = "q" if blob.wide_ids else "I"
    t = blob.tokens
    ids = _unpacked(blob.ids, id_code)
    received = _unpacked(blob.received, "d")
    logprobs: Sequence[float | None] = _unpacked(blob.logprobs, "f" if blob.logprobs_half else "d")
    if blob.absent:
        logprobs = [None if gone else x for gone, x in zip(blob.absent, logprobs, strict=True)]
    top_ids = _rows(_unpacked(blob.top_ids, id_code), blob.top_id_counts, t)
    top = _unpacked(blob.top_logprobs, "f" if blob.top_half else "d")
    top_logprobs = _rows(top, blob.top_logprob_counts, t)
    texts: list[str | None] = blob.texts if blob.texts is not None else [None] * t
    steps = tuple(
        map(Step, ids, logprobs, top_ids, top_logprobs, received, texts)  # columns to rows, in field order
    )
    if not len(steps) == len(ids) == len(received) == len(texts) == t:
        raise ContentError(f"content blob: columns of unequal length, {t} steps declared")
    return Content(prompt_token_ids=_unpacked(blob.prompt, id_code), steps=steps)


def _unpacked(data: bytes, code: str) -> tuple[Any, ...]:
    return struct.unpack(f"<{len(data) // struct.calcsize('<' + code)}{code}", data)


def _rows(flat: tuple[Any, ...], counts: int | bytes, t: int) -> list[tuple[Any, ...]]:
    if isinstance(counts, int):
        if counts == 0:
            return [()] * t
        return list(zip(*[iter(flat)] * counts, strict=True))
    rows = []
    start = 0
    for count in _unpacked(counts, "I"):
        rows.append(flat[start : start + count])
        start += count
    return rows
