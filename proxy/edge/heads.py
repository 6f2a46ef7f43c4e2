"""Heads, read twice: by a grammar of our own that says what is allowed, and by llhttp that says what it means.

The grammar is RFC 9112 sections 3 to 5 without its obsolete corners: no obs-fold, no bare LF, no space before a
colon, no control characters. It is one regular expression of possessive parts, so its time is linear. What it
lets through goes to llhttp, the parser that most engines' servers have in them (uvicorn, aiohttp, Node), in its
strict mode. A head must please both.
"""

from __future__ import annotations

import re
from typing import Final

import httptools

from proxy.edge.framing import FIELD_LINE, TOKEN

_SPELLINGS: Final = 4096  # spellings of header names that are remembered

REQUEST_GRAMMAR = re.compile(rb"(" + TOKEN + rb") ([!-~]++) HTTP/1\.([01])\r\n(?:" + FIELD_LINE + rb")*+\r\n")
ANSWER_GRAMMAR = re.compile(
    rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [\t\x20-\x7e\x80-\xff]*+)?+\r\n(?:" + FIELD_LINE + rb")*+\r\n"
)
CONTENT_LENGTH = re.compile(rb"[0-9]{1,18}")

Fields = list[tuple[bytes, bytes]]


class _Once:
    """Collects fields at the speed of C: llhttp calls ``dict.__setitem__`` itself."""

    def __init__(self) -> None:
        self.fields: dict[bytes, bytes] = {}
        self.on_header = self.fields.__setitem__


class _Each:
    """Collects fields one by one, repeated ones too."""

    def __init__(self) -> None:
        self.fields: Fields = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))


class FieldReader:
    """Reads the fields of heads that passed the grammar. One a worker and direction; not re-entrant."""

    __slots__ = ("_kind", "_once")

    def __init__(self, *, answers: bool) -> None:
        self._kind = httptools.HttpResponseParser if answers else httptools.HttpRequestParser
        self._once = _Once()

    def read(self, head: bytes) -> Fields:
        """Names as spelled, values without white space around them, in order.

        Raises ``httptools.HttpParserError`` when llhttp does not accept the head.
        """
        once = self._once
        fields = once.fields
        fields.clear()
        try:
            self._kind(once).feed_data(head)
        except httptools.HttpParserUpgrade:
            pass  # it stops after a head that asks for another protocol; the head was read
        # Repeated names fell together in the dict; lines are CRLF-ended, and two more end start line and head.
        if len(fields) == head.count(b"\r\n") - 2:
            return list(fields.items())
        each = _Each()
        try:
            self._kind(each).feed_data(head)
        except httptools.HttpParserUpgrade:
            pass
        return each.fields


class Roles(dict[bytes, int]):
    """What a header name means to the edge, by spelling. 0, for most, is 'forward and forget'.

    A dictionary that learns spellings as they come, so that the usual lookup is one C call. It forgets all
    it learned when a client invents too many.
    """

    def __init__(self, known: dict[bytes, int]) -> None:
        super().__init__(known)
        self._known = known

    def __missing__(self, name: bytes) -> int:
        role = self._known.get(name.lower(), 0)
        if len(self) >= _SPELLINGS:
            self.clear()
            self.update(self._known)
        self[name] = role
        return role


def tokens(value: bytes) -> list[bytes]:
    """The members of a comma-separated list, lower case (RFC 9110 section 5.6.1)."""
    return [part for part in (piece.strip(b" \t").lower() for piece in value.split(b",")) if part]
