"""Response heads: what a pool's says, and what goes to the client in its place."""

from __future__ import annotations

import re
from typing import Final

from proxy.edge.errors import BadAnswerError
from proxy.edge.framing import CHUNKED, UNTIL_CLOSE
from proxy.edge.heads import (
    FieldLines,
    MalformedLineError,
    content_length,
    tokens,
    value_of,
    without,
)
from proxy.edge.templates import Head
from proxy.live import ODD_ENVIRONMENT

_HOP: Final = 1
_LENGTH: Final = 2
_ENCODING: Final = 3
_CONNECTION: Final = 4
_UPGRADE: Final = 5
_TYPE: Final = 6
_ENVIRONMENT: Final = 7

ENVIRONMENT_HEADER: Final = b"x-forkgate-environment"
"""In which an engine tells the digest of the environment that answers (``engines.identity``)."""
_ROLES: Final[dict[bytes, int]] = {
    b"keep-alive": _HOP,
    b"proxy-connection": _HOP,
    # RFC 9110 sections 11.7.1 and 11.7.3: for whom a proxy asks, and that is the edge.
    b"proxy-authenticate": _HOP,
    b"proxy-authentication-info": _HOP,
    b"te": _HOP,
    b"x-request-id": _HOP,  # the edge's own stands in its place
    b"content-length": _LENGTH,
    b"transfer-encoding": _ENCODING,
    b"connection": _CONNECTION,
    b"upgrade": _UPGRADE,
    b"content-type": _TYPE,
    ENVIRONMENT_HEADER: _ENVIRONMENT,  # passed on, and noted; never a hole of a template
}
_FRAMING: Final = frozenset((_LENGTH, _ENCODING, _CONNECTION, _UPGRADE))
_MAY_DIFFER: Final = frozenset((0, _HOP, _LENGTH))  # from an answer to the next that fits its template
_NEVER_HOP: Final = frozenset(
    (b"content-length", b"transfer-encoding", b"content-type", b"set-cookie", b"date")
)
# RFC 9112 section 4; a server may leave the last space and the reason out, and many leave out both.
_START: Final = re.compile(rb"HTTP/1\.([01]) ([1-5][0-9][0-9])(?: [\t\x20-\x7e\x80-\xff]*+)?+")
_BODILESS: Final = frozenset((204, 304))
_DIGEST: Final = re.compile(rb"sha256:[0-9a-f]{64}")


class Answer(Head):
    """A response head that was accepted. ``block`` is without Transfer-Encoding, Connection, x-request-id and
    the empty line: those depend on the client."""

    __slots__ = (
        "environment",
        "event_stream",
        "keep_alive",
        "length",
        "length_hole",
        "status",
        "websocket",
    )

    status: int
    keep_alive: bool
    """The pool's connection may be used again after this answer."""
    length: int
    """Of the body: bytes, ``CHUNKED`` or ``UNTIL_CLOSE``; 0 where there is none."""
    length_hole: int | None
    """Which hole of the template has the length."""
    event_stream: bool
    websocket: bool
    environment: str
    """Digest of the environment that answers, as the engine tells it; ``ODD_ENVIRONMENT`` where what it tells
    is none; empty where it tells nothing."""


class AnswerReader:
    """Reads response heads; one a worker."""

    def __init__(self, headers: int) -> None:
        self._headers = headers
        self._meaning = FieldLines(_ROLES, _FRAMING)
        self._starts: dict[bytes, tuple[bytes, int]] = {}

    def read(self, head: bytes, method: bytes, last: Answer | None = None) -> Answer:
        """Accept ``head``, the answer to a ``method`` request, or raise ``BadAnswerError``. ``last`` is the
        connection's answer before this one; one that fits is used again."""
        if last is not None and method != b"HEAD" and _again(last, head):
            return last
        start, *lines = head[:-4].split(b"\r\n")
        minor, status = self._starts.get(start) or self._start(start)
        if len(lines) > self._headers:
            raise BadAnswerError(f"more than {self._headers} header fields")
        answer = Answer(head, last)
        answer.status = status
        answer.keep_alive = minor == b"1"
        answer.event_stream = answer.websocket = False
        answer.length_hole = None
        answer.environment = ""
        meaning = self._meaning
        length = encoding = connection = None
        length_at: int | None = None
        upgrade = b""
        out = [start if minor == b"1" else b"HTTP/1.1" + start[8:]]
        try:
            for number, line in enumerate(lines):
                role = meaning[line]
                if not role:
                    out.append(line)
                elif role == _LENGTH:
                    if length is not None:
                        raise BadAnswerError("Content-Length occurs twice")
                    length = content_length(value_of(line))
                    length_at = number
                    if length is None:
                        raise BadAnswerError("Content-Length is no number")
                elif role == _TYPE:
                    answer.event_stream = value_of(line)[:17].lower() == b"text/event-stream"
                    out.append(line)
                elif role == _ENVIRONMENT:
                    answer.environment = ODD_ENVIRONMENT if answer.environment else _digest(value_of(line))
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
        if length_at is not None and (status >= 200 and status != 204):
            # RFC 9110 section 8.6; in a 304 or to a HEAD it tells of the body that a GET would have had.
            out.append(lines[length_at])
        answer.block = b"\r\n".join((*out, b""))
        if status >= 200 and status not in _BODILESS and method != b"HEAD":
            # In those that are left out a length is not that of a body.
            answer.remember(lines, out, last, length_at, self._may_differ)
            if answer.template is not None and length_at is not None:
                answer.length_hole = answer.template.holes.index(length_at)
        return answer

    def _may_differ(self, line: bytes) -> bool:
        return self._meaning[line] in _MAY_DIFFER

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


def _digest(value: bytes) -> str:
    return value.decode("ascii") if _DIGEST.fullmatch(value) else ODD_ENVIRONMENT


def _again(answer: Answer, head: bytes) -> bool:
    """Let ``answer`` be ``head``, if that fits its template."""
    template = answer.template
    found = None if template is None else template.fit(head)
    if found is None:
        return False
    values, block = found
    if answer.length_hole is not None:
        length = content_length(values[answer.length_hole])
        if length is None:
            return False
        answer.length = length
    answer.head = head
    answer.block = block
    answer.novel = 0
    return True


def _body_length(status: int, method: bytes, minor: bytes, length: int | None, encoding: bytes | None) -> int:
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
    return length if length is not None else UNTIL_CLOSE
