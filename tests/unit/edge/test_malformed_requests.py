"""What a request-smuggling researcher would try. Each is refused with its status and code, closes the
connection, leaves a record, and no pool ever sees a byte of it (or of what was smuggled behind it)."""

from __future__ import annotations

import re

import pytest

from proxy.edge import states
from proxy.edge.settings import Limits
from tests.support.edge import TRUSTED, Transcript, error_of, settings, status_of, table

HOST = b"Host: edge\r\n"
OWN_ID = re.compile(
    rb"\r\nx-request-id: [0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\r\n"
)
SMUGGLED = b"GET /admin HTTP/1.1\r\nHost: edge\r\n\r\n"


def head(*lines: bytes, start: bytes = b"POST /v1/completions HTTP/1.1", host: bytes = HOST) -> bytes:
    return start + b"\r\n" + host + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


TE = b"Transfer-Encoding: chunked"
CL5 = b"Content-Length: 5"

# name: (bytes, status, code)
HEADS: dict[str, tuple[bytes, int, str]] = {
    # -- Content-Length and Transfer-Encoding
    "cl-te": (head(CL5, TE) + b"0\r\n\r\n" + SMUGGLED, 400, "length_and_transfer_encoding"),
    "te-cl": (head(TE, CL5) + b"0\r\n\r\n" + SMUGGLED, 400, "length_and_transfer_encoding"),
    "te-cl-zero": (head(TE, b"Content-Length: 0") + b"0\r\n\r\n", 400, "length_and_transfer_encoding"),
    "cl-twice-differing": (head(CL5, b"Content-Length: 6") + b"hello", 400, "repeated_content_length"),
    "cl-twice-equal": (head(CL5, CL5) + b"hello", 400, "repeated_content_length"),
    "cl-twice-other-case": (head(CL5, b"content-length: 5") + b"hello", 400, "repeated_content_length"),
    "cl-list": (head(b"Content-Length: 5, 5") + b"hello", 400, "bad_content_length"),
    "cl-plus": (head(b"Content-Length: +5") + b"hello", 400, "bad_content_length"),
    "cl-minus": (head(b"Content-Length: -5") + b"hello", 400, "bad_content_length"),
    "cl-hex": (head(b"Content-Length: 0x5") + b"hello", 400, "bad_content_length"),
    "cl-underscore": (head(b"Content-Length: 1_0") + b"hello", 400, "bad_content_length"),
    "cl-inner-space": (head(b"Content-Length: 1 0") + b"hello", 400, "bad_content_length"),
    "cl-empty": (head(b"Content-Length:") + b"hello", 400, "bad_content_length"),
    "cl-float": (head(b"Content-Length: 5.0") + b"hello", 400, "bad_content_length"),
    "cl-exponent": (head(b"Content-Length: 5e0") + b"hello", 400, "bad_content_length"),
    "cl-overflow": (head(b"Content-Length: 18446744073709551621") + b"hello", 400, "bad_content_length"),
    "cl-full-width-digit": (head("Content-Length: ５".encode()) + b"hello", 400, "bad_content_length"),
    "cl-superscript-digit": (head(b"Content-Length: \xb2") + b"hello", 400, "bad_content_length"),
    "cl-semicolon": (head(b"Content-Length: 5;a=b") + b"hello", 400, "bad_content_length"),
    "cl-too-large": (head(b"Content-Length: 1000001"), 413, "body_too_large"),
    "te-gzip": (head(b"Transfer-Encoding: gzip"), 501, "unknown_transfer_encoding"),
    "te-gzip-chunked": (head(b"Transfer-Encoding: gzip, chunked"), 501, "unknown_transfer_encoding"),
    "te-chunked-gzip": (head(b"Transfer-Encoding: chunked, gzip"), 501, "unknown_transfer_encoding"),
    "te-chunked-chunked": (head(b"Transfer-Encoding: chunked, chunked"), 501, "unknown_transfer_encoding"),
    "te-identity": (head(b"Transfer-Encoding: identity"), 501, "unknown_transfer_encoding"),
    "te-xchunked": (head(b"Transfer-Encoding: xchunked"), 501, "unknown_transfer_encoding"),
    "te-chunked-comma": (head(b"Transfer-Encoding: chunked,"), 501, "unknown_transfer_encoding"),
    "te-quoted": (head(b'Transfer-Encoding: "chunked"'), 501, "unknown_transfer_encoding"),
    "te-parameter": (head(b"Transfer-Encoding: chunked;q=1"), 501, "unknown_transfer_encoding"),
    "te-empty": (head(b"Transfer-Encoding:"), 501, "unknown_transfer_encoding"),
    "te-twice": (head(TE, TE) + b"0\r\n\r\n", 400, "repeated_transfer_encoding"),
    "te-twice-other-case": (head(TE, b"transfer-encoding: identity"), 400, "repeated_transfer_encoding"),
    "te-vertical-tab": (head(b"Transfer-Encoding: \x0bchunked"), 400, "control_character"),
    "te-fold": (head(b"Transfer-Encoding:\r\n chunked"), 400, "obsolete_fold"),
    "te-space-before-colon": (head(b"Transfer-Encoding : chunked", CL5), 400, "space_before_colon"),
    "te-tab-before-colon": (head(b"Transfer-Encoding\t: chunked", CL5), 400, "space_before_colon"),
    "te-leading-space": (head(b" Transfer-Encoding: chunked", CL5), 400, "obsolete_fold"),
    "te-nul-in-name": (head(b"Transfer-Encoding\x00: chunked", CL5), 400, "control_character"),
    "te-high-byte-name": (head(b"Transfer-Encoding\xa0: chunked", CL5), 400, "bad_header_name"),
    "te-after-bare-lf": (head(b"X: y\nTransfer-Encoding: chunked", CL5), 400, "bare_line_feed"),
    "te-after-bare-cr": (head(b"X: y\rTransfer-Encoding: chunked", CL5), 400, "bare_carriage_return"),
    "te-in-1.0": (
        head(TE, start=b"POST / HTTP/1.0") + b"0\r\n\r\n",
        400,
        "transfer_encoding_in_1_0",
    ),
    # -- header lines
    "fold-with-space": (head(b"X: a", b" b"), 400, "obsolete_fold"),
    "fold-with-tab": (head(b"X: a", b"\tb"), 400, "obsolete_fold"),
    "fold-first-line": (b"GET / HTTP/1.1\r\n X: a\r\nHost: edge\r\n\r\n", 400, "obsolete_fold"),
    "space-before-colon": (head(b"X : a"), 400, "space_before_colon"),
    "no-colon": (head(b"nonsense"), 400, "bad_header"),
    "empty-name": (head(b": value"), 400, "bad_header_name"),
    "name-with-space": (head(b"X Y: a"), 400, "bad_header_name"),
    "name-with-bracket": (head(b"X[0]: a"), 400, "bad_header_name"),
    "name-with-slash": (head(b"X/Y: a"), 400, "bad_header_name"),
    "nul-in-value": (head(b"X: a\x00b"), 400, "control_character"),
    "del-in-value": (head(b"X: a\x7fb"), 400, "control_character"),
    "escape-in-value": (head(b"X: a\x1bb"), 400, "control_character"),
    "form-feed-in-value": (head(b"X: a\x0cb"), 400, "control_character"),
    "bare-lf-everywhere": (b"GET / HTTP/1.1\nHost: edge\n\n", 400, "bare_line_feed"),
    "bare-lf-once": (b"GET / HTTP/1.1\r\nHost: edge\nX: a\r\n\r\n", 400, "bare_line_feed"),
    "bare-lf-before-end": (b"GET / HTTP/1.1\r\nHost: edge\r\nX: a\n\r\n\r\n", 400, "bare_line_feed"),
    "bare-cr-in-value": (head(b"X: a\rb"), 400, "bare_carriage_return"),
    "bare-cr-in-request-line": (b"GET /\r HTTP/1.1\r\nHost: edge\r\n\r\n", 400, "bare_carriage_return"),
    "cr-cr-lf": (b"GET / HTTP/1.1\r\r\nHost: edge\r\n\r\n", 400, "bare_carriage_return"),
    # -- request line
    "http-0.9": (b"GET /\r\n\r\n", 400, "bad_request_line"),
    "two-spaces": (b"GET  / HTTP/1.1\r\nHost: edge\r\n\r\n", 400, "bad_request_line"),
    "tab-separated": (b"GET\t/\tHTTP/1.1\r\nHost: edge\r\n\r\n", 400, "bad_request_line"),
    "trailing-space": (b"GET / HTTP/1.1 \r\nHost: edge\r\n\r\n", 400, "bad_request_line"),
    "leading-space": (b" GET / HTTP/1.1\r\nHost: edge\r\n\r\n", 400, "bad_request_line"),
    "space-in-target": (b"GET /a b HTTP/1.1\r\nHost: edge\r\n\r\n", 400, "bad_request_line"),
    "no-target": (b"GET HTTP/1.1\r\nHost: edge\r\n\r\n", 400, "bad_request_line"),
    "method-with-colon": (b"GE:T / HTTP/1.1\r\nHost: edge\r\n\r\n", 400, "bad_request_line"),
    "lower-case-version": (b"GET / http/1.1\r\nHost: edge\r\n\r\n", 400, "bad_version"),
    "version-1.10": (b"GET / HTTP/1.10\r\nHost: edge\r\n\r\n", 400, "bad_version"),
    "version-01.1": (b"GET / HTTP/01.1\r\nHost: edge\r\n\r\n", 400, "bad_version"),
    "version-1.2": (b"GET / HTTP/1.2\r\nHost: edge\r\n\r\n", 505, "unknown_version"),
    "version-2.0": (b"GET / HTTP/2.0\r\nHost: edge\r\n\r\n", 505, "unknown_version"),
    "http2-preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "http2_refused"),
    "tls-hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "control_character"),
    "high-byte-target": ("GET /é HTTP/1.1\r\nHost: edge\r\n\r\n".encode(), 400, "bad_target"),
    "fragment-in-target": (b"GET /a#b HTTP/1.1\r\nHost: edge\r\n\r\n", 400, "bad_target"),
    "connect": (b"CONNECT edge:443 HTTP/1.1\r\nHost: edge:443\r\n\r\n", 405, "connect_refused"),
    "connect-path": (b"CONNECT / HTTP/1.1\r\nHost: edge\r\n\r\n", 405, "connect_refused"),
    "trace": (b"TRACE / HTTP/1.1\r\nHost: edge\r\n\r\n", 501, "unknown_method"),
    "made-up-method": (b"SMUGGLE / HTTP/1.1\r\nHost: edge\r\n\r\n", 501, "unknown_method"),
    "lower-case-method": (b"get / HTTP/1.1\r\nHost: edge\r\n\r\n", 501, "unknown_method"),
    "asterisk-get": (b"GET * HTTP/1.1\r\nHost: edge\r\n\r\n", 400, "bad_target"),
    "relative-target": (b"GET admin HTTP/1.1\r\nHost: edge\r\n\r\n", 400, "bad_target"),
    "authority-target": (b"GET edge:80 HTTP/1.1\r\nHost: edge\r\n\r\n", 400, "bad_target"),
    "other-scheme": (b"GET ftp://edge/ HTTP/1.1\r\nHost: edge\r\n\r\n", 400, "bad_target"),
    "absolute-other-host": (b"GET http://evil/ HTTP/1.1\r\nHost: edge\r\n\r\n", 400, "host_mismatch"),
    "absolute-userinfo": (b"GET http://evil@edge/ HTTP/1.1\r\nHost: edge\r\n\r\n", 400, "host_mismatch"),
    "absolute-other-port": (b"GET http://edge:81/ HTTP/1.1\r\nHost: edge\r\n\r\n", 400, "host_mismatch"),
    "absolute-no-authority": (b"GET http:///a HTTP/1.1\r\nHost: edge\r\n\r\n", 400, "host_mismatch"),
    # -- Host
    "no-host": (b"GET / HTTP/1.1\r\nX: a\r\n\r\n", 400, "missing_host"),
    "two-hosts": (head(b"Host: evil"), 400, "repeated_host"),
    "two-equal-hosts": (head(b"Host: edge"), 400, "repeated_host"),
    "two-hosts-other-case": (head(b"hOST: edge"), 400, "repeated_host"),
    "empty-host": (head(host=b"Host:\r\n"), 400, "bad_host"),
    "host-with-path": (head(host=b"Host: edge/evil\r\n"), 400, "bad_host"),
    "host-with-at": (head(host=b"Host: a@edge\r\n"), 400, "bad_host"),
    "host-list": (head(host=b"Host: edge, evil\r\n"), 400, "bad_host"),
    "host-space": (head(host=b"Host: edge evil\r\n"), 400, "bad_host"),
    "host-port-words": (head(host=b"Host: edge:http\r\n"), 400, "bad_host"),
    # -- limits and expectations
    "too-many-headers": (head(*(b"X%d: a" % number for number in range(101))), 431, "too_many_headers"),
    "head-too-large": (head(b"X: " + b"a" * 70_000), 431, "head_too_large"),
    "head-never-ends": (b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000, 431, "head_too_large"),
    "target-too-long": (b"GET /" + b"a" * 70_000, 414, "target_too_long"),
    "unknown-expectation": (head(CL5, b"Expect: 200-ok") + b"hello", 417, "unknown_expectation"),
    "tenant-twice": (head(b"X-Tenant: acme", b"X-Tenant: globex"), 400, "repeated_tenant"),
}


def refused(data: bytes, step: int) -> tuple[Transcript, bytes]:
    core = Transcript(settings(table("http://a:1"), limits=Limits(body_bytes=1_000_000), identity=TRUSTED))
    client, wire = core.client()
    for start in range(0, len(data), step):
        client.data_received(data[start : start + step])
    assert client.ask == states.LINGER
    assert wire.events[-1] == "eof"
    return core, wire.sent


@pytest.mark.parametrize("step", [1_000_000, 1], ids=["whole", "byte-by-byte"])
@pytest.mark.parametrize("name", HEADS)
def test_malformed_head_is_refused_and_no_pool_sees_it(name: str, step: int) -> None:
    data, status, code = HEADS[name]
    core, sent = refused(data, step)
    assert not core.dials, "a pool was connected to"
    answered, _, body = sent.partition(b"\r\n\r\n")
    assert status_of(answered) == status
    assert error_of(body)["code"] == code
    assert b"Connection: close" in answered
    assert OWN_ID.search(answered + b"\r\n")
    (record,) = core.port.records
    assert (record.status, record.pool, record.tenant) == (status, "", "-")
    assert core.edge.stats()["bugs"] == 0


CHUNKS: dict[str, tuple[bytes, str]] = {
    "size-0x": (b"0x5\r\nhello\r\n0\r\n\r\n", "bad_chunk_size"),
    "size-plus": (b"+5\r\nhello\r\n0\r\n\r\n", "bad_chunk_size"),
    "size-minus": (b"-5\r\nhello\r\n0\r\n\r\n", "bad_chunk_size"),
    "size-underscore": (b"1_0\r\n" + b"a" * 16 + b"\r\n0\r\n\r\n", "bad_chunk_size"),
    "size-leading-space": (b" 5\r\nhello\r\n0\r\n\r\n", "bad_chunk_size"),
    "size-trailing-space": (b"5 \r\nhello\r\n0\r\n\r\n", "bad_chunk_size"),
    "size-empty": (b"\r\nhello\r\n0\r\n\r\n", "bad_chunk_size"),
    "size-words": (b"five\r\nhello\r\n0\r\n\r\n", "bad_chunk_size"),
    "size-huge": (b"FFFFFFFFFFFFFFFFF\r\nhello", "bad_chunk_size"),
    "size-16-digits": (b"0000000000000005\r\nhello\r\n0\r\n\r\n", "bad_chunk_size"),
    "size-bare-lf": (b"5\nhello\r\n0\r\n\r\n", "bad_chunk_size"),
    "size-bare-cr": (b"5\rhello\r\n0\r\n\r\n", "bad_chunk_size"),
    "size-nul": (b"5\x00\r\nhello\r\n0\r\n\r\n", "bad_chunk_size"),
    "size-never-ends": (b"5;" + b"a" * 300, "chunk_line_too_long"),
    "extension-bare-lf": (b"5;a\nb\r\nhello\r\n0\r\n\r\n", "bad_chunk_size"),
    "extension-bare-cr": (b"5;a\rb\r\nhello\r\n0\r\n\r\n", "bad_chunk_size"),
    "extension-control": (b"5;a=\x01\r\nhello\r\n0\r\n\r\n", "bad_chunk_size"),
    "extension-without-semicolon": (b"5 a\r\nhello\r\n0\r\n\r\n", "bad_chunk_size"),
    "extensions-endless": (b"1;" + b"e" * 200 + b"\r\na\r\n", "chunk_extensions_too_large"),
    "longer-than-size": (b"5\r\nhello!\r\n0\r\n\r\n", "bad_chunk_end"),
    "shorter-than-size": (b"5\r\nhell\r\n0\r\n\r\n", "bad_chunk_end"),
    "end-bare-lf": (b"5\r\nhello\n0\r\n\r\n", "bad_chunk_end"),
    "end-bare-cr": (b"5\r\nhello\r0\r\n\r\n", "bad_chunk_end"),
    "trailer-fold": (b"0\r\nX: a\r\n b\r\n\r\n", "bad_trailer"),
    "trailer-space-before-colon": (b"0\r\nX : a\r\n\r\n", "bad_trailer"),
    "trailer-bare-lf": (b"0\r\nX: a\nY: b\r\n\r\n", "bad_trailer"),
    "trailer-no-colon": (b"0\r\nnonsense\r\n\r\n", "bad_trailer"),
    "trailer-nul": (b"0\r\nX: a\x00\r\n\r\n", "bad_trailer"),
    "trailer-content-length": (b"0\r\nContent-Length: 5\r\n\r\n", "bad_trailer"),
    "trailer-transfer-encoding": (b"0\r\nA: b\r\nTransfer-Encoding: chunked\r\n\r\n", "bad_trailer"),
    "trailer-host": (b"0\r\nHost: evil\r\n\r\n", "bad_trailer"),
    "trailer-authorization": (b"0\r\nAuthorization: Bearer x\r\n\r\n", "bad_trailer"),
    "trailer-proxy-authorization": (b"0\r\nProxy-Authorization: Basic x\r\n\r\n", "bad_trailer"),
    "trailers-endless": (b"0\r\nX: " + b"a" * 20_000, "trailers_too_large"),
}


@pytest.mark.parametrize("step", [1_000_000, 1], ids=["whole", "byte-by-byte"])
@pytest.mark.parametrize("name", CHUNKS)
def test_malformed_chunk_is_refused_and_its_bad_bytes_stay_here(name: str, step: int) -> None:
    bad, code = CHUNKS[name]
    core = Transcript(settings(table("http://a:1")))
    client, wire = core.client()
    client.data_received(head(TE))
    upstream, pool_wire = core.accept()
    client.data_received(b"3\r\nabc\r\n")
    assert pool_wire.take().endswith(b"\r\n\r\n3\r\nabc\r\n")
    repeats = 30 if name == "extensions-endless" else 1
    for _ in range(repeats):
        for start in range(0, len(bad), step):
            client.data_received(bad[start : start + step])
    assert client.ask == states.LINGER
    answered, _, body = wire.sent.partition(b"\r\n\r\n")
    assert status_of(answered) == 400
    assert error_of(body)["code"] == code
    # The pool holds a request that will never be whole, on a connection that is gone.
    assert pool_wire.events[-1] == "abort"
    assert upstream not in core.router.home.endpoints[0].idle
    assert not pool_wire.sent.endswith(b"0\r\n\r\n")
    if name.startswith("trailer"):
        assert b"X" not in pool_wire.sent
    assert core.edge.stats()["bugs"] == 0


def test_body_past_the_limit_is_refused_while_it_streams() -> None:
    core = Transcript(settings(table("http://a:1"), limits=Limits(body_bytes=100)))
    client, wire = core.client()
    client.data_received(head(TE))
    _, pool_wire = core.accept()
    for _ in range(11):
        client.data_received(b"a\r\n0123456789\r\n")
    assert status_of(wire.sent) == 413
    assert pool_wire.events[-1] == "abort"


ALLOWED: dict[str, tuple[bytes, bytes]] = {
    "lower-case-names": (b"GET / HTTP/1.1\r\nhost: edge\r\nx: a\r\n\r\n", b"x: a"),
    "no-space-after-colon": (b"GET / HTTP/1.1\r\nHost:edge\r\nX:a\r\n\r\n", b"X:a"),
    "spaces-around-value": (b"GET / HTTP/1.1\r\nHost: edge\r\nX: \t a \t\r\n\r\n", b"X: \t a \t"),
    "empty-value": (b"GET / HTTP/1.1\r\nHost: edge\r\nX:\r\n\r\n", b"X:"),
    "latin-1-value": (b"GET / HTTP/1.1\r\nHost: edge\r\nX: caf\xe9\r\n\r\n", b"X: caf\xe9"),
    "colon-in-value": (b"GET / HTTP/1.1\r\nHost: edge\r\nX: a : b\r\n\r\n", b"X: a : b"),
    "repeated-cookies": (
        b"GET / HTTP/1.1\r\nHost: edge\r\nCookie: a\r\nCookie: b\r\n\r\n",
        b"Cookie: a\r\nCookie: b",
    ),
    "one-empty-line-in-front": (b"\r\nGET / HTTP/1.1\r\nHost: edge\r\n\r\n", b"GET / HTTP/1.1"),
    "absolute-form": (b"GET http://Edge/a?b HTTP/1.1\r\nHost: edge\r\n\r\n", b"GET /a?b HTTP/1.1"),
    "absolute-form-no-path": (b"GET http://edge HTTP/1.1\r\nHost: edge\r\n\r\n", b"GET / HTTP/1.1"),
    "absolute-form-query": (b"GET http://edge?q HTTP/1.1\r\nHost: edge\r\n\r\n", b"GET /?q HTTP/1.1"),
    "options-asterisk": (b"OPTIONS * HTTP/1.1\r\nHost: edge\r\n\r\n", b"OPTIONS * HTTP/1.1"),
    "http-1.0": (b"GET / HTTP/1.0\r\n\r\n", b"GET / HTTP/1.1"),
    "ipv6-host": (b"GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", b"Host: [::1]:80"),
    "te-upper-case": (
        b"POST / HTTP/1.1\r\nHost: edge\r\nTransfer-Encoding: Chunked\r\n\r\n",
        b"Transfer-Encoding: Chunked",
    ),
    "cl-leading-zeros": (
        b"POST / HTTP/1.1\r\nHost: edge\r\nContent-Length: 000\r\n\r\n",
        b"Content-Length: 000",
    ),
}


@pytest.mark.parametrize("step", [1_000_000, 1], ids=["whole", "byte-by-byte"])
@pytest.mark.parametrize("name", ALLOWED)
def test_unusual_but_correct_head_goes_through(name: str, step: int) -> None:
    data, expected = ALLOWED[name]
    core = Transcript(settings(table("http://a:1")))
    client, wire = core.client()
    for start in range(0, len(data), step):
        client.data_received(data[start : start + step])
    assert wire.sent == b""
    _, pool_wire = core.accept()
    assert b"\r\n" + expected + b"\r\n" in b"\r\n" + pool_wire.sent
