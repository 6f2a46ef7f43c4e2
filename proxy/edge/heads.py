"""Heads, line by line: a grammar of our own says what is allowed, llhttp must agree, and both are asked once.

The grammar is RFC 9112 sections 3 to 5 without its obsolete corners: no obs-fold, no bare LF, no space before
a colon, no control characters. A head is cut at its CRLFs, and every line must be a field line of that
grammar on its own; nothing in the grammar reaches over a line's end, so a head is good when its lines are.

A field line not met before is also read by llhttp, the parser that many engines' own servers have in them,
in its strict mode, and both must read the same name and value from it. Then its meaning is remembered by its
bytes: clients repeat themselves and each other, and looking a line up costs a tenth of parsing it. Lines with
credentials are read by the grammar each time and never remembered, and so are those of a field that had ever
new values. (A whole head that is nearly its connection's last one is not even cut into lines: ``templates``.)
"""

from __future__ import annotations

import re
from typing import Final

import httptools

from proxy.edge.errors import EdgeError
from proxy.edge.framing import TOKEN

_FIELD: Final = re.compile(rb"(" + TOKEN + rb"):[\t ]*+([\t\x20-\x7e\x80-\xff]*+)")
_REMEMBERED: Final = 4096  # lines
_REMEMBERED_BYTES: Final = 256  # a line; so a megabyte at most, whatever clients send
_VALUES: Final = 64
"""A field with more values than this is one that differs from message to message; memory would not help."""
_LONG_LIVED: Final = b"date"  # of many values, but each good for all the messages of a second
_NEVER_REMEMBERED: Final = frozenset(
    (
        *(b"authorization", b"proxy-authorization", b"cookie", b"set-cookie", b"x-api-key", b"api-key"),
        *(b"content-length", b"traceparent", b"tracestate", b"x-request-id"),
    )
)

Fields = list[tuple[bytes, bytes]]


class MalformedLineError(EdgeError):
    """A line that the grammar of RFC 9112 does not have, or that llhttp reads otherwise."""


class _Collector:
    def __init__(self) -> None:
        self.fields: Fields = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))


def llhttp_reads(line: bytes) -> Fields:
    """The fields that llhttp finds in a head with this one line; empty when it finds fault with it."""
    collector = _Collector()
    try:
        httptools.HttpRequestParser(collector).feed_data(b"GET / HTTP/1.1\r\n%b\r\n\r\n" % line)
    except httptools.HttpParserError:
        return []
    return [(name, value.rstrip(b" \t")) for name, value in collector.fields]


class FieldLines(dict[bytes, int]):
    """What a field line means, by its bytes: ``meaning[line]`` is the role of its name, 0 for 'just forward'.

    ``framing`` are roles whose values the reader of the head checks by itself each time, more strictly than
    llhttp does.
    """

    def __init__(self, roles: dict[bytes, int], framing: frozenset[int]) -> None:
        super().__init__()
        self._roles = roles
        self._framing = framing
        self._values: dict[bytes, int] = {}  # how many of a field were remembered

    def __missing__(self, line: bytes) -> int:
        found = _FIELD.fullmatch(line)
        if found is None:
            raise MalformedLineError
        name, value = found.groups()
        lower = name.lower()
        role = self._roles.get(lower, 0)
        if lower in _NEVER_REMEMBERED:
            return role
        seen = self._values.get(lower, 0)
        if seen > _VALUES and lower != _LONG_LIVED:
            return role
        if role not in self._framing and llhttp_reads(line) != [(name, value.rstrip(b" \t"))]:
            raise MalformedLineError
        if len(line) <= _REMEMBERED_BYTES:
            if len(self) >= _REMEMBERED:
                self.clear()
                self._values.clear()
            self[line] = role
            self._values[lower] = seen + 1
        return role


def value_of(line: bytes) -> bytes:
    """The value of a field line, without white space around it (RFC 9110 section 5.5)."""
    return line.partition(b":")[2].strip(b" \t")


def content_length(value: bytes) -> int | None:
    """RFC 9110 section 8.6: decimal digits and nothing else. 18 of them overflow nobody's 64 bits."""
    return int(value) if value.isdigit() and len(value) <= 18 else None


def fields_of(lines: list[bytes]) -> Fields:
    """Names as spelled and values; for what is off the hot path."""
    return [(name, value.strip(b" \t")) for name, _, value in (line.partition(b":") for line in lines)]


def tokens(value: bytes) -> list[bytes]:
    """The members of a comma-separated list, lower case (RFC 9110 section 5.6.1)."""
    return [part for part in (piece.strip(b" \t").lower() for piece in value.split(b",")) if part]


def without(lines: list[bytes], name: bytes) -> list[bytes]:
    """``lines`` without those of this field. ``name`` is lower case."""
    wanted = name + b":"
    size = len(wanted)
    return [line for line in lines if line[:size].lower() != wanted]
