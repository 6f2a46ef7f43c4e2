"""Request heads: what a client's says, and what goes upstream in its place."""

from __future__ import annotations

import re
from typing import Final

import httptools

from proxy.edge.errors import Refusal
from proxy.edge.framing import CHUNKED
from proxy.edge.heads import CONTENT_LENGTH, REQUEST_GRAMMAR, FieldReader, Fields, Roles, tokens
from proxy.edge.settings import Identity, Limits

# What a field name means here. 0: forward. Odd ones out are handled in AskReader.read.
_HOST: Final = 1
_LENGTH: Final = 2
_ENCODING: Final = 3
_CONNECTION: Final = 4
_EXPECT: Final = 5
_UPGRADE: Final = 6
_REQUEST_ID: Final = 7
_TENANT: Final = 8
_AUTHORIZATION: Final = 9
_API_KEY: Final = 10
_FORWARDED_FOR: Final = 11
_FORWARDED_PROTO: Final = 12
_FORWARDED_HOST: Final = 13
_FORWARDED: Final = 14
_HOP: Final = 15

# RFC 9110 section 7.6.1, and Proxy-Connection and HTTP2-Settings, which mean the next hop too.
_ROLES: Final[dict[bytes, int]] = {
    b"host": _HOST,
    b"content-length": _LENGTH,
    b"transfer-encoding": _ENCODING,
    b"connection": _CONNECTION,
    b"expect": _EXPECT,
    b"upgrade": _UPGRADE,
    b"x-request-id": _REQUEST_ID,
    b"authorization": _AUTHORIZATION,
    b"x-api-key": _API_KEY,
    b"x-forwarded-for": _FORWARDED_FOR,
    b"x-forwarded-proto": _FORWARDED_PROTO,
    b"x-forwarded-host": _FORWARDED_HOST,
    b"forwarded": _FORWARDED,
    b"keep-alive": _HOP,
    b"proxy-connection": _HOP,
    b"te": _HOP,
    b"http2-settings": _HOP,
}

# Fields that Connection may not name: removing them would change what the message means (RFC 9110 section
# 7.6.1: "not intended to be a connection option"), which is how "hop-by-hop header abuse" works.
_NEVER_HOP: Final = frozenset(
    (b"host", b"content-length", b"transfer-encoding", b"authorization", b"x-api-key", b"x-request-id", b"cookie",
     b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host", b"forwarded", b"content-type",
     b"content-encoding", b"expect")
)  # fmt: skip
_REQUEST_ID_FORM = re.compile(rb"[!-~]{1,128}")
# RFC 3986 section 3.2.2 and RFC 9110 section 4.2.1: a name, an IPv4 or a bracketed IPv6, and maybe a port.
_HOST_FORM = re.compile(rb"(?:[0-9A-Za-z._~!$&'()*+;=%-]+|\[[0-9A-Fa-f:.]+\])?(?::[0-9]{0,5})?")
_ABSOLUTE = re.compile(rb"(?i:https?)://([^/?#]*)([^#]*)")


class Ask:
    """A request head that was accepted.

    ``length`` is Content-Length, 0 without a body, or ``CHUNKED``. ``block`` is the header section for the
    pool: forwarded fields without hop-by-hop ones, each CRLF-ended, not yet those that the edge adds.
    """

    __slots__ = (
        "api_key",
        "block",
        "expects_continue",
        "fields",
        "host",
        "keep_alive",
        "length",
        "method",
        "minor",
        "request_id",
        "target",
        "tenant",
        "websocket",
    )

    method: bytes
    target: bytes
    minor: int
    keep_alive: bool
    length: int
    expects_continue: bool
    websocket: bool
    host: bytes
    request_id: bytes | None
    """The client's own, when it is trusted and well-formed."""
    tenant: bytes | None
    """As a trusted peer's header says."""
    api_key: bytes | None
    fields: Fields
    block: bytes


class AskReader:
    """Reads request heads; one a worker."""

    def __init__(self, limits: Limits, identity: Identity) -> None:
        self._limits = limits
        roles = dict(_ROLES)
        if identity.tenant_header is not None:
            roles[identity.tenant_header.lower().encode("ascii")] = _TENANT
        self._never_hop = _NEVER_HOP | {name for name, role in roles.items() if role == _TENANT}
        self._roles = Roles(roles)
        self._fields = FieldReader(answers=False)

    def read(self, head: bytes, peer: bytes, scheme: bytes, trusted: bool) -> Ask:
        """Accept ``head``, which ends with its empty line, or raise ``Refusal``.

        ``peer`` is the client's address and ``scheme`` http or https, for X-Forwarded-*.
        """
        grammar = REQUEST_GRAMMAR.fullmatch(head)
        if grammar is None:
            raise diagnose(head)
        try:
            fields = self._fields.read(head)
        except httptools.HttpParserError as error:
            raise _refused_by_llhttp(head, fields_of(head), error) from error
        if len(fields) > self._limits.headers:
            raise Refusal(431, "too_many_headers", f"a request may have {self._limits.headers} header fields")

        ask = Ask()
        ask.fields = fields
        ask.method, ask.target, minor = grammar.groups()
        ask.minor = 1 if minor == b"1" else 0
        ask.keep_alive = ask.minor == 1
        ask.length = 0
        ask.expects_continue = ask.websocket = False
        ask.request_id = ask.tenant = ask.api_key = None

        roles = self._roles
        host: bytes | None = None
        length: bytes | None = None
        encoding: bytes | None = None
        connection: bytes | None = None
        upgrade: bytes | None = None
        forwarded_for = forwarded_proto = forwarded_host = b""
        out: list[bytes] = []
        for name, value in fields:
            role = roles[name]
            if not role:
                out.append(b"%b: %b\r\n" % (name, value))
            elif role == _HOST:
                if host is not None:
                    raise Refusal(400, "repeated_host", "a request has one Host header", "host")
                host = value
                out.append(b"Host: %b\r\n" % value)
            elif role == _LENGTH:
                if length is not None:
                    raise Refusal(
                        400, "repeated_content_length", "Content-Length occurs twice", "content-length"
                    )
                length = value
                out.append(b"Content-Length: %b\r\n" % value)
            elif role == _CONNECTION:
                connection = value if connection is None else connection + b"," + value
            elif role == _AUTHORIZATION:
                out.append(b"%b: %b\r\n" % (name, value))
                if ask.api_key is None and value[:7].lower() == b"bearer ":
                    ask.api_key = value[7:].strip()
            elif role == _API_KEY:
                out.append(b"%b: %b\r\n" % (name, value))
                ask.api_key = value
            elif role == _ENCODING:
                if encoding is not None:
                    raise Refusal(
                        400,
                        "repeated_transfer_encoding",
                        "Transfer-Encoding occurs twice",
                        "transfer-encoding",
                    )
                encoding = value
                out.append(b"Transfer-Encoding: chunked\r\n")
            elif role == _EXPECT:
                if value.lower() != b"100-continue":
                    raise Refusal(
                        417, "unknown_expectation", "the only expectation is 100-continue", "expect"
                    )
                ask.expects_continue = True
            elif role == _UPGRADE:
                upgrade = value if upgrade is None else upgrade + b"," + value
            elif role == _HOP:
                pass
            elif not trusted:
                # What only a trusted peer may say: tenant, request ID, X-Forwarded-*, Forwarded.
                pass
            elif role == _REQUEST_ID:
                if ask.request_id is None and _REQUEST_ID_FORM.fullmatch(value):
                    ask.request_id = value
            elif role == _TENANT:
                if ask.tenant is not None:
                    raise Refusal(
                        400, "repeated_tenant", "the tenant header occurs twice", name.decode("latin-1")
                    )
                ask.tenant = value
                out.append(b"%b: %b\r\n" % (name, value))
            elif role == _FORWARDED_FOR:
                forwarded_for += value + b", "
            elif role == _FORWARDED_PROTO:
                forwarded_proto = value
            elif role == _FORWARDED_HOST:
                forwarded_host = value
            else:
                out.append(b"%b: %b\r\n" % (name, value))

        if encoding is not None or length is not None:
            ask.length = self._body_length(ask.minor, length, encoding)
        if host is None:
            if ask.minor:
                raise Refusal(400, "missing_host", "HTTP/1.1 requires a Host header", "host")
            host = b""
        elif _HOST_FORM.fullmatch(host) is None:
            raise Refusal(400, "bad_host", "the Host header names no host", "host")
        if ask.target[:1] != b"/":
            host = _take_target(ask, host, out)
        ask.host = host
        if connection is not None:
            self._hop_by_hop(ask, connection, upgrade, out)
        if not ask.length:
            ask.expects_continue = False  # RFC 9110 section 10.1.1: there is nothing to wait for
        elif ask.expects_continue:
            if ask.minor:
                out.append(b"Expect: 100-continue\r\n")
            else:
                ask.expects_continue = False
        out.append(
            b"X-Forwarded-For: %b%b\r\nX-Forwarded-Proto: %b\r\nX-Forwarded-Host: %b\r\n"
            % (forwarded_for, peer, forwarded_proto or scheme, forwarded_host or host)
        )
        ask.block = b"".join(out)
        return ask

    def _body_length(self, minor: int, length: bytes | None, encoding: bytes | None) -> int:
        """RFC 9112 section 6.3, with every 'ought to be handled as an error' handled as an error."""
        if encoding is not None:
            if length is not None:
                raise Refusal(
                    400,
                    "length_and_transfer_encoding",
                    "Content-Length and Transfer-Encoding exclude each other",
                    "transfer-encoding",
                )
            if not minor:  # RFC 9112 section 6.1
                raise Refusal(
                    400, "transfer_encoding_in_1_0", "HTTP/1.0 has no Transfer-Encoding", "transfer-encoding"
                )
            if encoding.lower() != b"chunked":
                raise Refusal(
                    501,
                    "unknown_transfer_encoding",
                    "the only transfer coding is chunked",
                    "transfer-encoding",
                )
            return CHUNKED
        assert length is not None
        if CONTENT_LENGTH.fullmatch(length) is None:
            raise Refusal(
                400, "bad_content_length", "Content-Length is a number in decimal digits", "content-length"
            )
        size = int(length)
        if size > self._limits.body_bytes:
            raise Refusal(
                413, "body_too_large", f"a body may have {self._limits.body_bytes} bytes", "content-length"
            )
        return size

    def _hop_by_hop(self, ask: Ask, connection: bytes, upgrade: bytes | None, out: list[bytes]) -> None:
        """Obey Connection: options for this hop, names to remove (RFC 9110 section 7.6.1), Upgrade."""
        options = tokens(connection)
        for option in options:
            if option == b"close":
                ask.keep_alive = False
            elif option == b"upgrade":
                # RFC 9110 section 7.8. Any other protocol is answered as if Upgrade had not been there; h2c
                # above all, which would tunnel requests past routing.
                if upgrade is not None and ask.minor and ask.method == b"GET" and not ask.length:
                    ask.websocket = tokens(upgrade) == [b"websocket"]
            elif option not in (b"keep-alive", b"te") and option not in self._never_hop:
                wanted = option + b":"
                out[:] = [line for line in out if line[: len(wanted)].lower() != wanted]
        if ask.websocket:
            out.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n")


def _take_target(ask: Ask, host: bytes, out: list[bytes]) -> bytes:
    """Bring a target that is not in origin-form into it (RFC 9112 section 3.2). Returns the host."""
    if ask.target == b"*" and ask.method == b"OPTIONS":
        return host
    if ask.method == b"CONNECT":
        raise Refusal(405, "connect_refused", "this is no forward proxy: CONNECT is not served")
    absolute = _ABSOLUTE.fullmatch(ask.target)
    if absolute is None:
        raise Refusal(400, "bad_target", "the request target is neither a path nor an absolute http URI")
    authority, path = absolute.groups()
    # RFC 9112 section 3.2.2 has a server obey the URI and ignore Host. A request that names two hosts is a trick
    # on whoever reads the other one; equal ones lose nothing.
    if authority.lower() != host.lower() or not authority:
        raise Refusal(400, "host_mismatch", "the target's authority and the Host header differ", "host")
    ask.target = path if path[:1] == b"/" else b"/" + path
    return host


_KNOWN_VERSION = re.compile(rb"HTTP/1\.[01]\Z")
_METHOD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def early(part: bytes) -> Refusal | None:
    """Why the beginning of a head can never become one, before its end arrived; None while it may."""
    if part.count(b"\n") != part.count(b"\r\n"):
        return Refusal(400, "bare_line_feed", "a line ends with CRLF, not with a bare LF")
    if b"\r" in part[:-1].replace(b"\r\n", b""):
        return Refusal(400, "bare_carriage_return", "a CR stands only before an LF")
    if _CONTROL.search(part):
        return Refusal(400, "control_character", "a head has no NUL and no control characters")
    return None


def diagnose(head: bytes) -> Refusal:
    """Why the grammar does not accept ``head``."""
    found = early(head)
    if found is not None:
        return found
    start, *lines = head[:-4].split(b"\r\n")
    parts = start.split(b" ")
    if head.startswith(b"PRI * HTTP/2.0\r\n"):
        return Refusal(505, "http2_refused", "HTTP/2 is not served here: speak HTTP/1.1")
    if len(parts) != 3 or not parts[1] or _METHOD.match(parts[0]) is None:
        return Refusal(
            400, "bad_request_line", "a request line is: method, one space, target, one space, version"
        )
    if _KNOWN_VERSION.match(parts[2]) is None:
        if re.match(rb"HTTP/[0-9]\.[0-9]\Z", parts[2]):
            return Refusal(505, "unknown_version", "HTTP/1.1 and HTTP/1.0 are served here")
        return Refusal(400, "bad_version", "the request line ends with HTTP/1.1")
    for line in lines:
        if line[:1] in (b" ", b"\t"):
            return Refusal(
                400, "obsolete_fold", "a header may not continue on the next line (RFC 9112 section 5.2)"
            )
        name, colon, _ = line.partition(b":")
        if not colon:
            return Refusal(400, "bad_header", "a header line has a name, a colon and a value")
        if name != name.rstrip(b" \t"):
            return Refusal(400, "space_before_colon", "no white space between a header's name and its colon")
        if _METHOD.match(name) is None:
            return Refusal(400, "bad_header_name", "a header name is a token (RFC 9110 section 5.1)")
    return Refusal(400, "bad_target", "the request target has characters that belong percent-encoded")


def fields_of(head: bytes) -> Fields:
    """The fields of a head that passed the grammar; slow, for messages."""
    lines = head[:-4].split(b"\r\n")[1:]
    return [(name, value.strip(b" \t")) for name, _, value in (line.partition(b":") for line in lines)]


def _refused_by_llhttp(head: bytes, fields: Fields, error: Exception) -> Refusal:
    """Name the usual reasons the way our own checks would; llhttp stops at the first it sees."""
    names = [name.lower() for name, _ in fields]
    if b"content-length" in names and b"transfer-encoding" in names:
        return Refusal(
            400,
            "length_and_transfer_encoding",
            "Content-Length and Transfer-Encoding exclude each other",
            "transfer-encoding",
        )
    if names.count(b"content-length") > 1:
        return Refusal(400, "repeated_content_length", "Content-Length occurs twice", "content-length")
    if b"content-length" in names:
        value = dict(zip(names, (value for _, value in fields), strict=True))[b"content-length"]
        if CONTENT_LENGTH.fullmatch(value) is None:
            return Refusal(
                400, "bad_content_length", "Content-Length is a number in decimal digits", "content-length"
            )
    if b"transfer-encoding" in names:
        return Refusal(
            501, "unknown_transfer_encoding", "the only transfer coding is chunked", "transfer-encoding"
        )
    if isinstance(error, httptools.HttpParserInvalidMethodError):
        return Refusal(501, "unknown_method", "this method is not served")
    return Refusal(400, "bad_head", f"llhttp: {error}")
