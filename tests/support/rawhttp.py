"""HTTP/1.1 on a blocking socket, byte for byte: what was sent, and what came back as it came."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from tests.support.waiting import LIMIT_S

_OWN = (
    (re.compile(rb'"id":"((?:chat)?cmpl)-[0-9a-f]{32}"'), rb'"id":"\1-(32 hex digits)"'),
    (re.compile(rb'"created":[0-9]{10}([,}])'), rb'"created":(10 digits)\1'),
)


def without_own(body: bytes) -> bytes:
    """``body`` without ``id`` and ``created``, the two fields that a reference engine makes anew for each
    answer. Both have a fixed number of digits, so chunk sizes stay comparable too.
    """
    for pattern, word in _OWN:
        body = pattern.sub(word, body)
    return body


def request(
    method: str, target: str, body: bytes | None = None, headers: Sequence[str] = (), host: str = "test"
) -> bytes:
    """A whole request. A body has a Content-Length and is JSON."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *headers]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def post(target: str, body: dict[str, Any], *headers: str) -> bytes:
    return request("POST", target, json.dumps(body).encode(), headers)


@dataclass(frozen=True, kw_only=True)
class Raw:
    """An answer as it came."""

    head: bytes
    framed: bytes
    """Everything behind the head: chunk sizes, chunks, trailer section."""

    @property
    def start(self) -> bytes:
        return self.head.partition(b"\r\n")[0]

    @property
    def status(self) -> int:
        return int(self.head[9:12])

    @property
    def fields(self) -> list[tuple[bytes, bytes]]:
        """Names in lower case, values, in the order they came."""
        lines = self.head.removesuffix(b"\r\n\r\n").split(b"\r\n")[1:]
        parts = [line.partition(b":") for line in lines]
        return [(name.lower(), value.strip()) for name, _, value in parts]

    def field(self, name: bytes) -> bytes | None:
        return next((value for found, value in self.fields if found == name), None)


class RawConnection:
    """One kept-alive connection to ``host:port``."""

    def __init__(self, address: str, timeout_s: float = LIMIT_S) -> None:
        host, _, port = address.removeprefix("http://").rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self._held = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def ask(self, data: bytes) -> Raw:
        """Send a request, and read its answer to the last byte of its framing (RFC 9112 section 6.3)."""
        self.send(data)
        head = self._until(b"\r\n\r\n")
        raw = Raw(head=head, framed=b"")
        if raw.field(b"transfer-encoding") == b"chunked":
            framed = b""
            while True:
                line = self._until(b"\r\n")
                content = self._exactly(int(line.partition(b";")[0], 16) + 2)
                framed += line + content
                if content == b"\r\n":
                    break
            return Raw(head=head, framed=framed)
        return Raw(head=head, framed=self._exactly(int(raw.field(b"content-length") or b"0")))

    def read_until(self, mark: bytes) -> bytes:
        """Bytes up to and including ``mark``; ConnectionError when the other side closes before."""
        return self._until(mark)

    def _until(self, mark: bytes) -> bytes:
        while (at := self._held.find(mark)) < 0:
            self._more()
        return self._take(at + len(mark))

    def _exactly(self, size: int) -> bytes:
        while len(self._held) < size:
            self._more()
        return self._take(size)

    def _take(self, size: int) -> bytes:
        taken, self._held = self._held[:size], self._held[size:]
        return taken

    def _more(self) -> None:
        data = self._socket.recv(65_536)
        if not data:
            raise ConnectionError(f"the other side closed after {self._held[-200:]!r}")
        self._held += data
