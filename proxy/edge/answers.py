"""Response heads: what a pool's says, and what goes to the client in its place."""

from __future__ import annotations

import re
from typing import Final

from proxy.edge.errors import BadAnswerError
from proxy.edge.framing import CHUNKED, UNTIL_CLOSE
from proxy.edge.heads import (
    CONTENT_LENGTH,
    PLAIN_LENGTH,
    FieldLines,
    MalformedLineError,
    Repeat,
    tokens,
    value_of,
    without,
)

_HOP: Final = 1
_LENGTH: Final = 2
_ENCODING: Final = 3
_CONNECTION: Final = 4
_UPGRADE: Final = 5
_TYPE: Final = 6

_ROLES: Final[dict[bytes, int]] = {
    b"keep-alive": _HOP,
    b"proxy-connection": _HOP,
    b"te": _HOP,
    b"x-request-id": _HOP,  # the edge's own stands in its place
    b"content-length": _LENGTH,
    b"transfer-encoding": _ENCODING,
    b"connection": _CONNECTION,
    b"upgrade": _UPGRADE,
    b"content-type": _TYPE,
}
_FRAMING: Final = frozenset((_LENGTH, _ENCODING, _CONNECTION, _UPGRADE))
_NEVER_HOP: Final = frozenset(
    (b"content-length", b"transfer-encoding", b"content-type", b"set-cookie", b"date")
)
# RFC 9112 section 4; a server may leave the last space and the reason out, and many leave out both.
_START: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [\t\x20-\x7e\x80-\xff]*+)?+")


_MOST: Final = 10**18
_BODILESS: Final = frozenset((204, 304))


class Answer:
    """A response head that was accepted. Good for one answer, and then for the next that ``repeats`` it."""

    __slots__ = (
        "block",
        "event_stream",
        "keep_alive",
        "length",
        "length_line",
        "repeat",
        "status",
        "websocket",
    )

    status: int
    keep_alive: bool
    """The pool's connection may be used again after this answer."""
    length: int
    """Of the body: bytes, ``CHUNKED`` or ``UNTIL_CLOSE``; 0 where there is none."""
    event_stream: bool
    websocket: bool
    block: bytes
    """The head for the client, CRLF-ended lines, except for Transfer-Encoding, Connection, x-request-id and
    the empty line: those depend on the client."""
    repeat: Repeat | None

    length_line: bytes | None

    def remember(self, head: bytes, method: bytes) -> None:
        """Be ready for ``head``, from which this was read, to come again as the answer to a like request."""
        line = self.length_line
        if self.status in _BODILESS or self.status < 200 or method == b"HEAD":
            return  # their lengths are not those of a body
        if line is None or PLAIN_LENGTH.fullmatch(line):
            self.repeat = Repeat(head, self.block, line, _MOST)

    def repeats(self, head: bytes, method: bytes) -> bool:
        """Is ``head`` this one again? Then this is its meaning, with its own length."""
        if self.repeat is None or method == b"HEAD":
            return False
        found = self.repeat.match(head)
        if found is None:
            return False
        self.block = found[0]
        if self.length >= 0:
            self.length = found[1]
        return True


class AnswerReader:
    """Reads response heads; one a worker."""

    def __init__(self, headers: int) -> None:
        self._headers = headers
        self._meaning = FieldLines(_ROLES, _FRAMING)
        self._starts: dict[bytes, tuple[bytes, int]] = {}

    def read(self, head: bytes, method: bytes) -> Answer:
        """Accept ``head``, the answer to a ``method`` request, or raise ``BadAnswerError``."""
        start, *lines = head[:-4].split(b"\r\n")
        minor, status = self._starts.get(start) or self._start(start)
        if len(lines) > self._headers:
            raise BadAnswerError(f"more than {self._headers} header fields")
        answer = Answer()
        answer.status = status
        answer.keep_alive = minor == b"1"
        answer.event_stream = answer.websocket = False
        meaning = self._meaning
        length = encoding = connection = None
        length_line = b""
        upgrade = b""
        out = [start if minor == b"1" else b"HTTP/1.1" + start[8:]]
        try:
            for line in lines:
                role = meaning[line]
                if not role:
                    out.append(line)
                elif role == _LENGTH:
                    if length is not None:
                        raise BadAnswerError("Content-Length occurs twice")
                    length = value_of(line)
                    length_line = line
                    if CONTENT_LENGTH.fullmatch(length) is None:
                        raise BadAnswerError("Content-Length is no number")
                elif role == _TYPE:
                    answer.event_stream = value_of(line)[:17].lower() == b"text/event-stream"
                    out.append(line)
                elif role == _ENCODING:
                    if encoding is not None:
                        raise BadAnswerError("Transfer-Encoding occurs twice")
                    encoding = value_of(line)
                elif role == _CONNECTION:
                    value = value_of(line)
                    connection = value if connection is None else connection + b"," + value
                elif role == _UPGRADE:
                    upgrade = value_of(line)
        except MalformedLineError:
            raise BadAnswerError("a header line breaks the grammar of RFC 9112 section 5") from None
        if connection is not None:
            for option in tokens(connection):
                if option == b"close":
                    answer.keep_alive = False
                elif option == b"upgrade":
                    answer.websocket = upgrade.lower() == b"websocket"
                elif option != b"keep-alive" and option not in _NEVER_HOP:
                    out[1:] = without(out[1:], option)
        answer.length = _body_length(status, method, minor, length, encoding)
        if answer.length == UNTIL_CLOSE:
            answer.keep_alive = False
        if length is not None and (status >= 200 and status != 204):
            # RFC 9110 section 8.6; in a 304 or to a HEAD it tells of the body that a GET would have had.
            out.append(length_line)
        out.append(b"")
        answer.block = b"\r\n".join(out)
        answer.repeat = None
        answer.length_line = None if length is None else length_line
        return answer

    def _start(self, start: bytes) -> tuple[bytes, int]:
        found = _START.fullmatch(start)
        if found is None:
            raise BadAnswerError("its status line breaks the grammar of RFC 9112 section 4")
        minor, status = found[1], int(found[2])
        if len(start) <= 64:
            if len(self._starts) >= 256:
                self._starts.clear()
            self._starts[start] = minor, status
        return minor, status


def _body_length(
    status: int, method: bytes, minor: bytes, length: bytes | None, encoding: bytes | None
) -> int:
    """RFC 9112 section 6.3, in its order; what it would have us repair, we refuse."""
    if encoding is not None:
        if length is not None:
            raise BadAnswerError("Content-Length and Transfer-Encoding together")
        if minor != b"1":
            raise BadAnswerError("Transfer-Encoding in HTTP/1.0")
        if encoding.lower() != b"chunked":
            raise BadAnswerError("a transfer coding other than chunked")
        if status < 200 or status == 204:
            raise BadAnswerError(f"Transfer-Encoding in a {status}")
    if status < 200 or status == 204 or status == 304 or method == b"HEAD":
        return 0
    if encoding is not None:
        return CHUNKED
    return int(length) if length is not None else UNTIL_CLOSE
