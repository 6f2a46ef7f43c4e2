"""One fixed-size record for every live request, packed where it happens and unpacked at the judge.

The edge pays for a record on every request, so packing is one ``struct.pack_into`` into memory that already
exists, plus three dictionary look-ups: names (tenant, pool, endpoint) become indexes into a string table that
travels with the batch. A batch explains itself; nothing is remembered between two of them, so that one may
be sent again, to another judge too.

Everything is bounded: records, names and bytes of names. What does not fit is *lost* and counted; the
count travels with the next batch and shows as a gap in the records' sequence.

The standard library alone: the edge imports this.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

ABORTED_BY_NOBODY = 0
ABORTED_BY_CLIENT = 1
ABORTED_BY_UPSTREAM = 2
ABORTED_BY_TIMEOUT = 3
ABORTED_BY_DRAIN = 4
ABORTED_BY_FLIP = 5
ABORTED_BY = ("", "client", "upstream", "timeout", "drain", "flip")
"""Index is the wire's number; the value is ``LiveRecord.aborted_by``."""

FLAG_RETRIED = 1
"""Answered by home after the candidate failed."""
FLAG_CANARY = 2
"""Routed to a candidate by the tenant's route."""
FLAG_SAMPLED = 4
"""Drawn for a shadow copy by at least one rule."""
FLAG_STREAMED = 8
"""The response was an event stream."""
FLAG_DRAWABLE = 16
"""At least one rule would have copied it, had its draw come out so."""

ODD_ENVIRONMENT = "?"
"""In place of a digest: the answer told one that is none, or two. It proves nothing, and is counted."""

_FIRST = "<QdddQQHHHHBB"
_SECOND = _FIRST + "H"
_RECORD = struct.Struct(_SECOND + "f")
# sequence, started_unix_s, first_byte_s, total_s, request_bytes, response_bytes,
# tenant, pool, endpoint (indexes of names), status, aborted_by, flags; since then environment (index), and
# since then overhead_s
RECORD_BYTES = _RECORD.size
FIRST_RECORD_BYTES = struct.calcsize(_FIRST)
"""Of an edge that does not tell how long its records are: it knows no environments."""
SECOND_RECORD_BYTES = struct.calcsize(_SECOND)
"""Of an edge that does not measure what itself adds."""
_BY_BYTES = {FIRST_RECORD_BYTES: _FIRST, SECOND_RECORD_BYTES: _SECOND, RECORD_BYTES: _RECORD.format}

MAX_NAMES = 0xFFFF
MAX_NAME_CHARS = 1_024
MAX_NAMES_CHARS = 1_048_576
MAX_ENVIRONMENTS = 256
"""Different digests of one batch. One more than these counts as none that proves anything."""
_NO_NAME = 0xFFFF


class RawRecord(NamedTuple):
    """A record as it travelled, names resolved."""

    sequence: int
    started_unix_s: float
    first_byte_s: float  # NaN when no byte came
    total_s: float
    request_bytes: int
    response_bytes: int
    tenant: str
    pool: str
    endpoint: str
    status: int
    aborted_by: int
    flags: int
    environment: str = ""
    overhead_s: float = math.nan
    """What the edge itself added to the first byte; NaN where none came, or nobody measured it."""


class LivePacker:
    """Collects records until somebody takes them. Neither grows nor raises nor waits."""

    def __init__(self, capacity: int) -> None:
        """``capacity``: records held at most; their memory is reserved here, once."""
        self._buffer = bytearray(capacity * RECORD_BYTES)
        self._end = capacity * RECORD_BYTES
        self._at = 0
        self._names: dict[str, int] = {}
        self._names_chars = 0
        self._environments = 0
        self._sequence = 0
        self.lost = 0
        """Records since the start that found no room."""

    def __len__(self) -> int:
        return self._at // RECORD_BYTES

    def add(
        self,
        started_unix_s: float,
        tenant: str,
        pool: str,
        endpoint: str,
        status: int,
        first_byte_s: float,
        total_s: float,
        request_bytes: int,
        response_bytes: int,
        aborted_by: int,
        flags: int,
        environment: str = "",
        overhead_s: float = math.nan,
    ) -> None:
        """Pack one record, or count it as lost. Each takes a sequence number either way."""
        self._sequence = sequence = self._sequence + 1
        at = self._at
        if at >= self._end:
            self.lost += 1
            return
        names = self._names
        tenant_index = names.get(tenant)
        if tenant_index is None:
            tenant_index = self._intern(tenant)
        pool_index = names.get(pool)
        if pool_index is None:
            pool_index = self._intern(pool)
        endpoint_index = names.get(endpoint)
        if endpoint_index is None:
            endpoint_index = self._intern(endpoint)
        environment_index = names.get(environment) if environment else _NO_NAME
        if environment_index is None:
            environment_index = self._intern_environment(environment)
        try:
            _RECORD.pack_into(
                self._buffer,
                at,
                sequence,
                started_unix_s,
                first_byte_s,
                total_s,
                request_bytes,
                response_bytes,
                tenant_index,
                pool_index,
                endpoint_index,
                status,
                aborted_by,
                flags,
                environment_index,
                overhead_s,
            )
        except struct.error:  # a full string table (-1), or a number that no request can have
            self.lost += 1
            return
        self._at = at + RECORD_BYTES

    def _intern(self, name: str) -> int:
        """A new index for ``name``, or -1 (which does not pack) when the table is full."""
        chars = len(name)
        if (
            chars > MAX_NAME_CHARS
            or len(self._names) >= MAX_NAMES
            or self._names_chars + chars > MAX_NAMES_CHARS
        ):
            return -1
        index = len(self._names)
        self._names[name] = index
        self._names_chars += chars
        return index

    def _intern_environment(self, digest: str) -> int:
        """As :meth:`_intern`; engines that tell ever new digests must not cost the place of tenants."""
        if self._environments < MAX_ENVIRONMENTS:
            self._environments += 1
            return self._intern(digest)
        odd = self._names.get(ODD_ENVIRONMENT)
        return self._intern(ODD_ENVIRONMENT) if odd is None else odd

    def take(self) -> tuple[bytes, list[str]]:
        """All records held, with their string table; the packer is empty afterwards."""
        packed = bytes(memoryview(self._buffer)[: self._at])
        names = list(self._names)
        self._at = 0
        self._names.clear()
        self._names_chars = 0
        self._environments = 0
        return packed, names


def unpack(packed: bytes, names: Sequence[str], record_bytes: int = RECORD_BYTES) -> Iterator[RawRecord]:
    """The records of one batch, in order.

    Args:
        record_bytes: of one record, as its edge packs them. An older edge's are shorter, and tell less; what
            a newer one packs behind the fields known here is left alone.

    Raises:
        ValueError: the bytes are no whole number of records, or an index points outside ``names``.
    """
    fields = _BY_BYTES.get(record_bytes)
    if fields is None and record_bytes < RECORD_BYTES:
        raise ValueError(f"live records: of {record_bytes} bytes each, which no edge packs")
    if len(packed) % record_bytes:
        raise ValueError(f"live records: {len(packed)} bytes are no multiple of {record_bytes}")
    layout = struct.Struct(fields or f"{_RECORD.format}{record_bytes - RECORD_BYTES}x")
    count = len(names)
    for (
        sequence,
        started_unix_s,
        first_byte_s,
        total_s,
        request_bytes,
        response_bytes,
        tenant,
        pool,
        endpoint,
        status,
        aborted_by,
        flags,
        *more,
    ) in layout.iter_unpack(packed):
        environment = more[0] if more else _NO_NAME
        if (
            max(tenant, pool, endpoint) >= count
            or count <= environment != _NO_NAME
            or aborted_by >= len(ABORTED_BY)
        ):
            raise ValueError(f"live record {sequence}: an index outside its table of {count} names")
        yield RawRecord(
            sequence,
            started_unix_s,
            first_byte_s,
            total_s,
            request_bytes,
            response_bytes,
            names[tenant],
            names[pool],
            names[endpoint],
            status,
            aborted_by,
            flags,
            names[environment] if environment != _NO_NAME else "",
            more[1] if len(more) > 1 else math.nan,
        )
