"""Request heads: what a client's says, and what goes upstream in its place."""

from __future__ import annotations

import re
from typing import Final

from proxy.edge.diagnosis import diagnose
from proxy.edge.errors import RefusalError, SettingsError
from proxy.edge.framing import CHUNKED
from proxy.edge.heads import (
    FieldLines,
    MalformedLineError,
    content_length,
    tokens,
    value_of,
    without,
)
from proxy.edge.request_lines import RequestLines, origin_form
from proxy.edge.settings import Identity, Limits
from proxy.edge.templates import Head

# What a field's name means here; 0 is 'forward'. Those up to _LAST_DROPPED go no further as they are.
_HOP: Final = 1  # of this hop only
_CONNECTION: Final = 2
_UPGRADE: Final = 3
_EXPECT: Final = 4
_REQUEST_ID: Final = 5
_FORWARDED_FOR: Final = 6
_FORWARDED_PROTO: Final = 7
_FORWARDED_HOST: Final = 8
_LAST_DROPPED: Final = 8
_FORWARDED: Final = 9  # from a trusted peer only
_TENANT: Final = 10  # from a trusted peer only
_HOST: Final = 11
_LENGTH: Final = 12
_ENCODING: Final = 13
_AUTHORIZATION: Final = 14
_API_KEY: Final = 15

# RFC 9110 section 7.6.1; Proxy-Connection and HTTP2-Settings, which mean the next hop too; and
# Proxy-Authorization (section 11.7.2), a credential for a proxy, which no pool is meant to learn.
_ROLES: Final[dict[bytes, int]] = {
    b"keep-alive": _HOP,
    b"proxy-connection": _HOP,
    b"proxy-authorization": _HOP,
    b"te": _HOP,
    b"http2-settings": _HOP,
    b"connection": _CONNECTION,
    b"upgrade": _UPGRADE,
    b"expect": _EXPECT,
    b"x-request-id": _REQUEST_ID,
    b"x-forwarded-for": _FORWARDED_FOR,
    b"x-forwarded-proto": _FORWARDED_PROTO,
    b"x-forwarded-host": _FORWARDED_HOST,
    b"forwarded": _FORWARDED,
    b"host": _HOST,
    b"content-length": _LENGTH,
    b"transfer-encoding": _ENCODING,
    b"authorization": _AUTHORIZATION,
    b"x-api-key": _API_KEY,
}
_FRAMING: Final = frozenset((_LENGTH, _ENCODING, _HOST, _CONNECTION, _UPGRADE, _EXPECT))
# What these say decides about more than their own line: one with another value makes another head.
_SHAPING: Final = frozenset((_HOST, _ENCODING, _CONNECTION, _UPGRADE, _EXPECT))

# Fields that Connection may not name, because removing them would change what the message means: RFC 9110
# section 7.6.1 forbids a client to, and "hop-by-hop header abuse" is the name of the attack.
_NEVER_HOP: Final = frozenset(
    (name for name, role in _ROLES.items() if role > _LAST_DROPPED)
) | {b"cookie", b"content-type", b"content-encoding"}  # fmt: skip

_REQUEST_ID_FORM: Final = re.compile(rb"[!-~]{1,128}")
# RFC 3986 section 3.2.2: a name, an IPv4 address or a bracketed IPv6 one, and maybe a port.
_HOST_FORM: Final = re.compile(rb"(?:[0-9A-Za-z._~!$&'()*+;=%-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")


def _bad(code: str, message: str, param: str | None = None) -> RefusalError:
    return RefusalError(400, code, message, param)


class Via:
    """What a client's connection adds to its requests: address, scheme, and whether it is believed."""

    __slots__ = ("_block", "_host", "peer", "scheme", "trusted")

    def __init__(self, peer: bytes, scheme: bytes, trusted: bool) -> None:
        self.peer = peer
        self.scheme = scheme
        self.trusted = trusted
        self._host: bytes | None = None
        self._block = b""

    def block(self, host: bytes) -> bytes:
        """The X-Forwarded lines of a request without such lines. A connection hardly ever changes its
        host."""
        if host != self._host:
            self._host = host
            self._block = self.extended(b"", b"", b"", host)
        return self._block

    def extended(self, whom: bytes, proto: bytes, host: bytes, own_host: bytes) -> bytes:
        """The X-Forwarded lines that carry on what a trusted peer said."""
        return b"X-Forwarded-For: %b%b\r\nX-Forwarded-Proto: %b\r\nX-Forwarded-Host: %b\r\n" % (
            whom,
            self.peer,
            proto or self.scheme,
            host or own_host,
        )


class Ask(Head):
    """A request head that was accepted. ``block`` is without the X-Forwarded lines, x-request-id and the
    empty line."""

    __slots__ = (
        "api_key",
        "forwarded",
        "heard",
        "host",
        "keep_alive",
        "length",
        "length_hole",
        "method",
        "minor",
        "request_id",
        "said",
        "target",
        "tenant",
        "websocket",
    )

    method: bytes
    target: bytes
    """In origin-form, or ``*``."""
    minor: int
    """0 for HTTP/1.0, 1 for HTTP/1.1."""
    host: bytes
    keep_alive: bool
    length: int
    """Content-Length, 0 without a body, or ``CHUNKED``."""
    length_hole: int | None
    """Which hole of the template has the length."""
    websocket: bool
    """It asks for an upgrade to the one protocol that gets a tunnel."""
    said: list[tuple[int, int, bytes]]
    """What it says to the edge about whose it is, as (role, number of the line, value)."""
    heard: list[tuple[int, int]]
    """Which of ``said`` stand in holes of the template: (index, hole)."""
    request_id: bytes | None
    """The client's own, when it is trusted and well-formed."""
    tenant: bytes | None
    """As a trusted peer's header says."""
    api_key: bytes | None
    forwarded: bytes
    """The X-Forwarded lines for the pool."""


class AskReader:
    """Reads request heads; one a worker."""

    def __init__(self, limits: Limits, identity: Identity) -> None:
        self._headers = limits.headers
        self._body_bytes = limits.body_bytes
        roles = dict(_ROLES)
        self._never_hop = _NEVER_HOP
        if identity.tenant_header is not None:
            name = identity.tenant_header.lower().encode("ascii")
            if name in roles:
                raise SettingsError(
                    f"identity.tenant_header: {identity.tenant_header} has a meaning of its own"
                )
            roles[name] = _TENANT
            self._never_hop |= {name}
        self._meaning = FieldLines(roles, _FRAMING)
        self._request_lines = RequestLines()

    def read(self, head: bytes, via: Via, last: Ask | None = None) -> Ask:
        """Accept ``head``, which ends with its empty line, or raise ``RefusalError``. ``last`` is the
        connection's head before this one; one that fits is used again."""
        if last is not None and self._again(last, head, via):
            return last
        start, *lines = head[:-4].split(b"\r\n")
        ask = Ask(head, last)
        try:
            ask.method, ask.target, ask.minor = self._request_lines[start]
        except MalformedLineError:
            raise diagnose(head) from None
        ask.keep_alive = ask.minor == 1
        ask.length = 0
        ask.length_hole = None
        ask.websocket = False
        said = ask.said = []
        ask.heard = []
        if len(lines) > self._headers:
            raise RefusalError(431, "too_many_headers", f"a request may have {self._headers} header fields")

        meaning = self._meaning
        host = length = encoding = connection = expect = None
        length_at: int | None = None
        upgrades: list[bytes] = []
        out = [start]
        try:
            for number, line in enumerate(lines):
                role = meaning[line]
                if not role:
                    out.append(line)
                elif role == _HOST:
                    if host is not None:
                        raise _bad("repeated_host", "a request has one Host header", "host")
                    host = value_of(line)
                    out.append(line)
                elif role == _LENGTH:
                    if length is not None:
                        raise _bad("repeated_content_length", "Content-Length occurs twice", "content-length")
                    length = value_of(line)
                    length_at = number
                    out.append(line)
                elif role >= _AUTHORIZATION:
                    said.append((role, number, value_of(line)))
                    out.append(line)
                elif role == _CONNECTION:
                    value = value_of(line)
                    connection = value if connection is None else connection + b"," + value
                elif role == _ENCODING:
                    if encoding is not None:
                        raise _bad(
                            "repeated_transfer_encoding",
                            "Transfer-Encoding occurs twice",
                            "transfer-encoding",
                        )
                    encoding = value_of(line)
                    out.append(line)
                elif role == _EXPECT:
                    expect = value_of(line)
                elif role == _UPGRADE:
                    upgrades.append(value_of(line).lower())
                elif role != _HOP and via.trusted:
                    # What only a trusted peer may say; from anybody else it is as if it had not been said.
                    said.append((role, number, value_of(line)))
                    if role > _LAST_DROPPED:
                        out.append(line)
        except MalformedLineError:
            raise diagnose(head) from None

        if ask.target[:1] != b"/" or not ask.minor:
            ask.target = origin_form(ask.method, ask.target, host)
            out[0] = b"%b %b HTTP/1.1" % (ask.method, ask.target)
        if host is None:
            if ask.minor:
                raise _bad("missing_host", "HTTP/1.1 requires a Host header", "host")
            host = b""
            out.append(b"Host:")  # RFC 9112 section 3.2: what an HTTP/1.1 request without an authority says
        elif _HOST_FORM.fullmatch(host) is None:
            raise _bad("bad_host", "the Host header names no host", "host")
        if length is not None or encoding is not None:
            ask.length = self._body_length(ask.minor, length, encoding)
        if expect is not None:
            _expect(ask, expect, out)
        if connection is not None:
            out = self._hop_by_hop(ask, connection, upgrades, out)
        ask.host = host
        ask.block = b"\r\n".join((*out, b""))
        _heed(ask, via)
        if expect is None and not upgrades:  # what becomes of those depends on the length
            ask.remember(lines, out, last, length_at, self._may_differ)
            if ask.template is not None:
                holes = ask.template.holes
                ask.length_hole = None if length_at is None else holes.index(length_at)
                ask.heard = [
                    (index, holes.index(number))
                    for index, (_, number, _) in enumerate(said)
                    if number in holes
                ]
        return ask

    def _again(self, ask: Ask, head: bytes, via: Via) -> bool:
        """Let ``ask`` be ``head``, if that fits its template."""
        template = ask.template
        found = None if template is None else template.fit(head)
        if found is None:
            return False
        values, block = found
        if ask.length_hole is not None:
            length = content_length(values[ask.length_hole])
            if length is None or length > self._body_bytes:
                return False
            ask.length = length
        ask.head = head
        ask.block = block
        ask.novel = 0
        if ask.heard:
            for index, hole in ask.heard:
                role, number, _ = ask.said[index]
                ask.said[index] = role, number, values[hole].strip(b" \t")
            _heed(ask, via)
        return True

    def _may_differ(self, line: bytes) -> bool:
        return self._meaning[line] not in _SHAPING

    def _body_length(self, minor: int, length: bytes | None, encoding: bytes | None) -> int:
        """RFC 9112 section 6.3, with every 'ought to be handled as an error' handled as an error."""
        if encoding is not None:
            if length is not None:
                raise _bad(
                    "length_and_transfer_encoding",
                    "Content-Length and Transfer-Encoding exclude each other",
                    "transfer-encoding",
                )
            if not minor:  # section 6.1
                raise _bad(
                    "transfer_encoding_in_1_0", "HTTP/1.0 has no Transfer-Encoding", "transfer-encoding"
                )
            if encoding.lower() != b"chunked":
                raise RefusalError(
                    501,
                    "unknown_transfer_encoding",
                    "the only transfer coding is chunked",
                    "transfer-encoding",
                )
            return CHUNKED
        assert length is not None
        size = content_length(length)
        if size is None:
            raise _bad("bad_content_length", "Content-Length is a number in decimal digits", "content-length")
        if size > self._body_bytes:
            raise RefusalError(
                413, "body_too_large", f"a body may have {self._body_bytes} bytes", "content-length"
            )
        return size

    def _hop_by_hop(
        self, ask: Ask, connection: bytes, upgrades: list[bytes], out: list[bytes]
    ) -> list[bytes]:
        """Obey Connection: close, fields of this hop only, Upgrade (RFC 9110 sections 7.6.1 and 7.8)."""
        for option in tokens(connection):
            if option == b"close":
                ask.keep_alive = False
            elif option == b"upgrade":
                # Any other protocol is answered as if Upgrade had not been there; h2c above all, which would
                # tunnel requests past routing.
                if upgrades == [b"websocket"] and ask.minor and ask.method == b"GET" and not ask.length:
                    ask.websocket = True
                    out.append(b"Connection: Upgrade\r\nUpgrade: websocket")
            elif option != b"keep-alive" and option not in self._never_hop:
                out[1:] = without(out[1:], option)
        return out


def _expect(ask: Ask, expect: bytes, out: list[bytes]) -> None:
    """RFC 9110 section 10.1.1. The pool answers 100; the edge only carries it."""
    if expect.lower() != b"100-continue":
        raise RefusalError(417, "unknown_expectation", "the only expectation is 100-continue", "expect")
    if ask.length and ask.minor:
        out.append(b"Expect: 100-continue")


def _heed(ask: Ask, via: Via) -> None:
    """Whose request it is, by what it says: request ID, tenant, API key and the X-Forwarded lines."""
    ask.request_id = ask.tenant = ask.api_key = None
    whom = proto = host = b""
    for role, _, value in ask.said:
        if role == _AUTHORIZATION:
            if ask.api_key is None and value[:7].lower() == b"bearer ":
                ask.api_key = value[7:].strip()
        elif role == _API_KEY:
            ask.api_key = value
        elif role == _REQUEST_ID:
            if _REQUEST_ID_FORM.fullmatch(value):
                ask.request_id = value if ask.request_id is None else None
        elif role == _TENANT:
            if ask.tenant is not None:
                raise _bad("repeated_tenant", "the tenant header occurs twice")
            ask.tenant = value
        elif role == _FORWARDED_FOR and value:
            whom += value + b", "
        elif role == _FORWARDED_PROTO:
            proto = value
        elif role == _FORWARDED_HOST:
            host = value
    if whom or proto or host:
        ask.forwarded = via.extended(whom, proto, host, ask.host)
    else:
        ask.forwarded = via.block(ask.host)
