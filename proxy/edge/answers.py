"""Response heads: what a pool's says, and what goes to the client in its place."""

from __future__ import annotations

from typing import Final

import httptools

from proxy.edge.errors import BadAnswer
from proxy.edge.framing import CHUNKED, UNTIL_CLOSE
from proxy.edge.heads import ANSWER_GRAMMAR, CONTENT_LENGTH, FieldReader, Roles, tokens

_LENGTH: Final = 1
_ENCODING: Final = 2
_CONNECTION: Final = 3
_UPGRADE: Final = 4
_TYPE: Final = 5
_HOP: Final = 6

_ROLES: Final[dict[bytes, int]] = {
    b"content-length": _LENGTH,
    b"transfer-encoding": _ENCODING,
    b"connection": _CONNECTION,
    b"upgrade": _UPGRADE,
    b"content-type": _TYPE,
    b"keep-alive": _HOP,
    b"proxy-connection": _HOP,
    b"te": _HOP,
    b"x-request-id": _HOP,  # the edge's own stands in its place
}
_NEVER_HOP: Final = frozenset(
    (b"content-length", b"transfer-encoding", b"content-type", b"set-cookie", b"date")
)


class Answer:
    """A response head that was accepted.

    ``length`` is the body's: bytes, ``CHUNKED`` or ``UNTIL_CLOSE``; 0 where there is none. ``block`` is the
    head for the client from its status line on, each line CRLF-ended, without its empty line and without
    framing and connection fields that depend on the client; those the exchange adds.
    """

    __slots__ = ("block", "event_stream", "keep_alive", "length", "status", "websocket")

    status: int
    keep_alive: bool
    length: int
    event_stream: bool
    websocket: bool
    block: bytes


class AnswerReader:
    """Reads response heads; one a worker."""

    def __init__(self, headers: int) -> None:
        self._headers = headers
        self._roles = Roles(_ROLES)
        self._fields = FieldReader(answers=True)

    def read(self, head: bytes, method: bytes) -> Answer:
        """Accept ``head``, the answer to a ``method`` request, or raise ``BadAnswer``."""
        grammar = ANSWER_GRAMMAR.fullmatch(head)
        if grammar is None:
            raise BadAnswer("the response head breaks the grammar of RFC 9112 section 4")
        try:
            fields = self._fields.read(head)
        except httptools.HttpParserError as error:
            raise BadAnswer(f"llhttp: {error}") from error
        if len(fields) > self._headers:
            raise BadAnswer(f"more than {self._headers} header fields")

        answer = Answer()
        minor, code = grammar.groups()
        answer.status = status = int(code)
        answer.keep_alive = minor == b"1"
        answer.event_stream = answer.websocket = False
        roles = self._roles
        length: bytes | None = None
        encoding: bytes | None = None
        connection: bytes | None = None
        upgrade = b""
        start = head[8 : head.index(b"\r\n") + 2]
        out = [b"HTTP/1.1" + start]
        for name, value in fields:
            role = roles[name]
            if not role:
                out.append(b"%b: %b\r\n" % (name, value))
            elif role == _LENGTH:
                if length is not None:
                    raise BadAnswer("Content-Length occurs twice")
                length = value
            elif role == _TYPE:
                out.append(b"%b: %b\r\n" % (name, value))
                answer.event_stream = value[:17].lower() == b"text/event-stream"
            elif role == _ENCODING:
                if encoding is not None:
                    raise BadAnswer("Transfer-Encoding occurs twice")
                encoding = value
            elif role == _CONNECTION:
                connection = value if connection is None else connection + b"," + value
            elif role == _UPGRADE:
                upgrade = value
        if connection is not None:
            for option in tokens(connection):
                if option == b"close":
                    answer.keep_alive = False
                elif option == b"upgrade":
                    answer.websocket = upgrade.lower() == b"websocket"
                elif option == b"keep-alive":
                    answer.keep_alive = True
                elif option not in _NEVER_HOP:
                    wanted = option + b":"
                    out[1:] = [line for line in out[1:] if line[: len(wanted)].lower() != wanted]

        # RFC 9112 section 6.3, in its order; what it would have us repair, we refuse.
        if encoding is not None:
            if length is not None:
                raise BadAnswer("Content-Length and Transfer-Encoding together")
            if encoding.lower() != b"chunked" or minor != b"1":
                raise BadAnswer("a transfer coding other than chunked")
            if status < 200 or status == 204:
                raise BadAnswer(f"Transfer-Encoding in a {status}")
        elif length is not None and CONTENT_LENGTH.fullmatch(length) is None:
            raise BadAnswer("Content-Length is no number")
        if status < 200 or status == 204:
            answer.length = 0  # section 6.1 and RFC 9110 section 8.6: no Content-Length either
        elif status == 304 or method == b"HEAD":
            answer.length = 0  # the fields tell of the body that a GET would have had
            if length is not None:
                out.append(b"Content-Length: %b\r\n" % length)
        elif encoding is not None:
            answer.length = CHUNKED
        elif length is not None:
            answer.length = int(length)
            out.append(b"Content-Length: %b\r\n" % length)
        else:
            answer.length = UNTIL_CLOSE
            answer.keep_alive = False
        answer.block = b"".join(out)
        return answer
