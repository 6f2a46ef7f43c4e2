"""Heads, line by line: a grammar of our own says what is allowed, llhttp must agree, and both are asked once.

The grammar is RFC 9112 sections 3 to 5 without its obsolete corners: no obs-fold, no bare LF, no space before
a colon, no control characters. A head is cut at its CRLFs, and every line must be a field line of that
grammar on its own; nothing in the grammar reaches over a line's end, so a head is good when its lines are.

A field line not met before is also read by llhttp, the parser that many engines' own servers have in them,
in its strict mode, and both must read the same name and value from it. Then its meaning is remembered by its
bytes. Clients repeat themselves: on a kept-alive connection nearly every line of a request was in the last
one, and looking a line up costs a tenth of parsing it. Lines with credentials are read by the grammar each
time and never remembered, and so are those of a field that had ever new values.
"""

from __future__ import annotations

import re
from typing import Final

import httptools

from proxy.edge.errors import EdgeError
from proxy.edge.framing import TOKEN

CONTENT_LENGTH: Final = re.compile(rb"[0-9]{1,18}")

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
    """A line that is no field line of RFC 9112 section 5."""


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


class Repeat:
    """Recognises a head that differs from one read before in the digits of its Content-Length at most.

    Such a head means what the other meant, since its bytes are the same. A connection remembers its last head
    this way: clients and engines that keep a connection alive send the same one again and again.
    """

    __slots__ = ("_after", "_at", "_before", "_block_after", "_block_before", "_most")

    def __init__(self, head: bytes, block: bytes, length_line: bytes | None, most: int) -> None:
        """``block`` is what is sent in place of ``head``, with the same Content-Length line in it, spelled
        ``length_line``; None when there is none. Lengths above ``most`` are not recognised."""
        cut = b"" if length_line is None else length_line[: length_line.index(b":") + 2]
        self._most = most
        self._before, self._after = _cut(head, cut)
        self._block_before, self._block_after = _cut(block, cut)
        self._at = len(self._before)

    def match(self, head: bytes) -> tuple[bytes, int] | None:
        """The block for this head and its Content-Length, or None when it is another head."""
        if not head.startswith(self._before):
            return None
        after = self._after
        if not after:
            return (self._block_before, 0) if len(head) == self._at else None
        end = head.find(b"\r", self._at)
        digits = head[self._at : end]
        if head[end:] != after or not digits.isdigit() or len(digits) > 18:
            return None
        length = int(digits)
        if length > self._most:
            return None
        return b"".join((self._block_before, digits, self._block_after)), length


def _cut(text: bytes, name: bytes) -> tuple[bytes, bytes]:
    """``text`` up to the digits of its Content-Length line, and from behind them."""
    if not name:
        return text, b""
    start = text.index(b"\r\n" + name) + 2 + len(name)
    return text[:start], text[text.index(b"\r", start) :]


PLAIN_LENGTH: Final = re.compile(rb"[A-Za-z-]+: [0-9]{1,18}")
"""A Content-Length line as everybody writes it: what ``Repeat`` can cut."""


def value_of(line: bytes) -> bytes:
    """The value of a field line, without white space around it (RFC 9110 section 5.5)."""
    return line.partition(b":")[2].strip(b" \t")


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
