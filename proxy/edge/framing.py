"""Where a body ends: three readers with one face, fed in pieces of any size.

``feed(data)`` returns the bytes that may be forwarded now. A reader never alters them: a body passes through
with the chunk framing it came with, so that a chunk in is a chunk out. Once ``done``, ``rest`` holds what
came after the body. ``payload_bytes`` counts content without framing, and ``keep``, when it is a list,
collects that content (for captures, and for HTTP/1.0 clients that cannot read chunks).

What is forwarded was verified first: a piece of a chunk-size line or of a trailer section is held back until
the line or section is whole. An upstream that reads chunks differently never sees bytes that we would have
refused.
"""

from __future__ import annotations

import re
from typing import Final, Protocol

from proxy.edge.errors import EdgeError

CHUNKED: Final = -1
"""Stands for a length that only the body's chunks tell (RFC 9112 section 6.3, rule 4)."""
UNTIL_CLOSE: Final = -2
"""An answer that ends with its connection (RFC 9112 section 6.3, rule 8)."""

_LINE_BYTES: Final = 256  # a chunk-size line with its extensions
_EXTENSION_BYTES: Final = 4096  # of all chunk extensions of a body together
_TRAILER_BYTES: Final = 16_384

# RFC 9112 section 7.1: chunk-size is 1*HEXDIG, nothing else: no sign, no 0x, no underscore, no space in
# front. 15 digits hold any size that means something and cannot overflow anybody's 64 bits. Extensions
# (section 7.1.1) are ";" and printable text; a bare CR or LF inside, on which parsers differ, is no match.
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15}+)((?:[ \t]*+;[\t\x20-\x7e\x80-\xff]*+)?+)\Z")
_PLAIN_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15}+)\r\n")
# RFC 9110 section 5.1 and 5.5.
TOKEN: Final = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++"
FIELD_LINE: Final = TOKEN + rb":[\t\x20-\x7e\x80-\xff]*+\r\n"
_TRAILERS = re.compile(rb"(?:" + FIELD_LINE + rb")*+\r\n")
# RFC 9110 section 6.5.1: fields that frame, route, modify or authenticate a message mean nothing in a
# trailer, except to a parser that merges trailers into the head. Those would be fooled.
_TRAILERS_REFUSED = re.compile(
    rb"(?i)(?:^|\r\n)(?:transfer-encoding|content-length|host|connection|authorization|cookie|set-cookie|"
    rb"trailer|te|expect|upgrade|content-encoding|content-type|content-range|cache-control|max-forwards|"
    rb"x-forwarded-for|x-forwarded-host|x-forwarded-proto|x-request-id|x-api-key|"
    rb"proxy-authorization|proxy-authenticate|proxy-authentication-info):"
)


class FramingError(EdgeError):
    """A body that breaks RFC 9112 section 7. ``code`` names how, in the manner of ``errors.Refusal``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class BodyReader(Protocol):
    """One body, from the byte after the head to its end."""

    done: bool
    rest: bytes
    payload_bytes: int
    keep: list[bytes] | None

    def feed(self, data: bytes) -> bytes:
        """Take what arrived; return what may be forwarded. Raises ``FramingError``."""
        ...


class LengthBody:
    """Content-Length bytes (RFC 9112 section 6.2). ``length`` > 0."""

    __slots__ = ("done", "keep", "payload_bytes", "remaining", "rest")

    def __init__(self, length: int) -> None:
        self.remaining = length
        self.done = False
        self.rest = b""
        self.payload_bytes = 0
        self.keep: list[bytes] | None = None

    def feed(self, data: bytes) -> bytes:
        size = len(data)
        if size >= self.remaining:
            if size > self.remaining:
                self.rest = data[self.remaining :]
                data = data[: self.remaining]
                size = self.remaining
            self.done = True
        self.remaining -= size
        self.payload_bytes += size
        if self.keep is not None:
            self.keep.append(data)
        return data


class CloseBody:
    """Everything until the connection ends; whoever owns the connection says when, with ``end``."""

    __slots__ = ("done", "keep", "payload_bytes", "rest")

    def __init__(self) -> None:
        self.done = False
        self.rest = b""
        self.payload_bytes = 0
        self.keep: list[bytes] | None = None

    def feed(self, data: bytes) -> bytes:
        self.payload_bytes += len(data)
        if self.keep is not None:
            self.keep.append(data)
        return data

    def end(self) -> bytes:
        """The connection ended in order. Returns what is to be forwarded behind the rest."""
        self.done = True
        return b""


class WrappedBody(CloseBody):
    """An answer until close, for a client that can read chunks: it keeps its connection, and sees an end that
    came too soon."""

    __slots__ = ()

    def feed(self, data: bytes) -> bytes:
        super().feed(data)
        return b"%x\r\n%b\r\n" % (len(data), data)

    def end(self) -> bytes:
        self.done = True
        return b"0\r\n\r\n"


class ChunkedBody:
    """Transfer-Encoding: chunked (RFC 9112 section 7.1), trailers included."""

    __slots__ = ("_extensions", "_held", "_left", "_trailers", "done", "keep", "payload_bytes", "rest")

    def __init__(self) -> None:
        self._left = 0  # of the current chunk, its closing CRLF included; 0: a size line is next
        self._held = b""  # the beginning of a line, or of the trailer section
        self._trailers = False
        self._extensions = 0
        self.done = False
        self.rest = b""
        self.payload_bytes = 0
        self.keep: list[bytes] | None = None

    def feed(self, data: bytes) -> bytes:
        if not self._left and not self._held and not self._trailers:
            # Nearly every piece of an event stream: one whole chunk, nothing else.
            found = _PLAIN_SIZE.match(data)
            if found is not None:
                size = int(found[1], 16)
                start = found.end()
                if size and len(data) == start + size + 2 and data.endswith(b"\r\n"):
                    self.payload_bytes += size
                    if self.keep is not None:
                        self.keep.append(data[start:-2])
                    return data
        return self._feed(data)

    def _feed(self, data: bytes) -> bytes:
        if self._held:
            data = self._held + data
            self._held = b""
        at = 0
        size = len(data)
        left = self._left
        while True:
            if left:
                # The chunk's data, then the CRLF that closes it: both bytes are checked wherever they fall.
                here = min(left, size - at)
                content = min(here, left - 2) if left > 2 else 0
                if content:
                    self.payload_bytes += content
                    if self.keep is not None:
                        self.keep.append(data[at : at + content])
                if here > content:
                    closing = data[at + content : at + here]
                    if closing != b"\r\n"[2 - (left - content) :][: len(closing)]:
                        raise FramingError(
                            "bad_chunk_end", "a chunk does not end with CRLF where its size says"
                        )
                left -= here
                at += here
                if left:
                    self._left = left
                    return data
            elif self._trailers:
                return self._end(data, at)
            if at == size:
                self._left = 0
                return data
            end = data.find(b"\r\n", at, at + _LINE_BYTES)
            if end < 0:
                self._left = 0
                self._hold(data, at)
                return data[:at]
            left = self._size(data[at:end])
            at = end + 2
            if left == 2:
                self._trailers = True
                left = 0
                at = end  # the trailer section is read with the CRLF in front of it
                self._left = 0
                return self._end(data, at)

    def _size(self, line: bytes) -> int:
        """Bytes of the chunk that ``line`` announces, its closing CRLF included; 2 for the last chunk."""
        found = _SIZE_LINE.match(line)
        if found is None:
            raise FramingError("bad_chunk_size", "a chunk size is hexadecimal digits and nothing else")
        if found.end(1) != len(line):
            self._extensions += len(line) - found.end(1)
            if self._extensions > _EXTENSION_BYTES:
                raise FramingError(
                    "chunk_extensions_too_large", f"more than {_EXTENSION_BYTES} bytes of chunk extensions"
                )
        return int(found[1], 16) + 2

    def _hold(self, data: bytes, at: int) -> None:
        """Keep the beginning of a size line, unless it cannot become one."""
        held = data[at:]
        if len(held) >= _LINE_BYTES:
            raise FramingError("chunk_line_too_long", f"a chunk-size line has more than {_LINE_BYTES} bytes")
        if b"\n" in held or b"\r" in held[:-1]:
            raise FramingError("bad_chunk_size", "a chunk-size line ends with CRLF, not with a bare CR or LF")
        if _SIZE_LINE.match(held.rstrip(b"\r \t")) is None:
            raise FramingError("bad_chunk_size", "a chunk size is hexadecimal digits and nothing else")
        self._held = held

    def _end(self, data: bytes, at: int) -> bytes:
        """The trailer section; ``data[at:at + 2]`` is the CRLF of the last chunk's size line."""
        end = at if data.startswith(b"\r\n\r\n", at) else data.find(b"\r\n\r\n", at)
        if end < 0:
            held = data[at:]
            if len(held) > _TRAILER_BYTES:
                raise FramingError("trailers_too_large", f"more than {_TRAILER_BYTES} bytes of trailers")
            if held.count(b"\n") != held.count(b"\r\n"):
                raise FramingError("bad_trailer", "a trailer line ends with CRLF, not with a bare LF")
            self._held = held
            return data[:at]
        if end != at:
            section = data[at + 2 : end + 4]
            if len(section) > _TRAILER_BYTES:
                raise FramingError("trailers_too_large", f"more than {_TRAILER_BYTES} bytes of trailers")
            if _TRAILERS.fullmatch(section) is None:
                raise FramingError("bad_trailer", "a trailer line is no header field")
            if _TRAILERS_REFUSED.search(section):
                raise FramingError("bad_trailer", "a trailer names a field that only a head may have")
        self.done = True
        self.rest = data[end + 4 :]
        return data[: end + 4] if self.rest else data


class UnwrappedBody(ChunkedBody):
    """A chunked answer, for an HTTP/1.0 client that cannot read chunks: the content alone."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.keep = []

    def feed(self, data: bytes) -> bytes:
        super().feed(data)
        assert self.keep is not None
        content = b"".join(self.keep)
        self.keep.clear()
        return content


def ask_body(length: int) -> BodyReader:
    """The reader for a request's body; ``length`` as its head told it, not 0."""
    return ChunkedBody() if length == CHUNKED else LengthBody(length)


def answer_body(length: int, minor: int) -> BodyReader:
    """The reader for an answer's body, not empty, to a client that speaks HTTP/1.``minor``."""
    if length == CHUNKED:
        return ChunkedBody() if minor else UnwrappedBody()
    if length == UNTIL_CLOSE:
        return WrappedBody() if minor else CloseBody()
    return LengthBody(length)
