"""The first line of a request: its method, its target, its version (RFC 9112 section 3)."""

from __future__ import annotations

import re
from typing import Final

from proxy.edge.errors import RefusalError
from proxy.edge.framing import TOKEN
from proxy.edge.heads import MalformedLineError

_LINE: Final = re.compile(rb"(" + TOKEN + rb") ([!-~]++) HTTP/1\.([01])")
_REMEMBERED: Final = 1024  # lines
_REMEMBERED_BYTES: Final = 256  # a line
_METHODS: Final = frozenset((b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"))
_ABSOLUTE: Final = re.compile(rb"(?i:https?)://([^/?#]*)([^#]*)")


class RequestLines(dict[bytes, tuple[bytes, bytes, int]]):
    """``lines[line]`` is its method, target and minor version. Raises ``MalformedLineError`` where the
    grammar says no, and ``RefusalError`` where this proxy does."""

    def __missing__(self, line: bytes) -> tuple[bytes, bytes, int]:
        found = _LINE.fullmatch(line)
        if found is None:
            raise MalformedLineError
        method, target, minor = found.groups()
        if method == b"CONNECT":
            raise RefusalError(405, "connect_refused", "this is no forward proxy: CONNECT is not served")
        if method not in _METHODS:
            raise RefusalError(501, "unknown_method", "this method is not served")
        if b"#" in target:
            raise RefusalError(400, "bad_target", "a request target has no fragment (RFC 9112 section 3.2)")
        read = method, target, int(minor)
        if len(line) <= _REMEMBERED_BYTES:
            if len(self) >= _REMEMBERED:
                self.clear()
            self[line] = read
        return read


def origin_form(method: bytes, target: bytes, host: bytes | None) -> bytes:
    """What a pool is asked for: the target in origin-form, or ``*`` (RFC 9112 section 3.2)."""
    if target[:1] == b"/" or (target == b"*" and method == b"OPTIONS"):
        return target
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None:
        raise RefusalError(400, "bad_target", "the request target is neither a path nor an absolute http URI")
    authority, path = absolute.groups()
    # Section 3.2.2 has a server obey the URI and ignore Host. A request that names two hosts is a trick on
    # whoever reads the other one; equal ones lose nothing.
    if not authority or host is None or authority.lower() != host.lower():
        raise RefusalError(400, "host_mismatch", "the target's authority and the Host header differ", "host")
    return path if path[:1] == b"/" else b"/" + path
