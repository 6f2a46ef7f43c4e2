"""Why a head is not accepted, in words. Off the hot path: the grammar said no already."""

from __future__ import annotations

import re
from typing import Final

from proxy.edge.errors import RefusalError

_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL: Final = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def early(part: bytes) -> RefusalError | None:
    """Why ``part`` cannot be a piece of a head, wherever it was cut; None while it may.

    Asked before a head's end arrived, for a client that sends no CRLF would else wait for its timeout.
    """
    if re.search(rb"(?<!\r)\n", part):
        return RefusalError(400, "bare_line_feed", "a line ends with CRLF, not with a bare LF")
    if re.search(rb"\r(?!\n)(?!\Z)", part):
        return RefusalError(400, "bare_carriage_return", "a CR stands only before an LF")
    if _CONTROL.search(part):
        return RefusalError(400, "control_character", "a head has no NUL and no control characters")
    return None


def diagnose(head: bytes) -> RefusalError:
    """The first thing that is wrong with ``head``, which ends with its empty line."""
    found = early(head)
    if found is not None:
        return found
    start, *lines = head[:-4].split(b"\r\n")
    if start.startswith(b"PRI * HTTP/2"):
        return RefusalError(505, "http2_refused", "HTTP/2 is not served here: speak HTTP/1.1")
    parts = start.split(b" ")
    if len(parts) != 3 or not parts[1] or _TOKEN.fullmatch(parts[0]) is None:
        return RefusalError(
            400, "bad_request_line", "a request line is: method, one space, target, one space, version"
        )
    if re.fullmatch(rb"HTTP/1\.[01]", parts[2]) is None:
        if re.fullmatch(rb"HTTP/[0-9]\.[0-9]", parts[2]):
            return RefusalError(505, "unknown_version", "HTTP/1.1 and HTTP/1.0 are served here")
        return RefusalError(400, "bad_version", "the request line ends with HTTP/1.1")
    if re.fullmatch(rb"[!-~]+", parts[1]) is None:
        return RefusalError(
            400, "bad_target", "the request target has characters that belong percent-encoded"
        )
    for line in lines:
        if line[:1] in (b" ", b"\t"):
            return RefusalError(
                400, "obsolete_fold", "a header may not continue on the next line (RFC 9112 section 5.2)"
            )
        name, colon, _ = line.partition(b":")
        if not colon:
            return RefusalError(400, "bad_header", "a header line has a name, a colon and a value")
        if name != name.rstrip(b" \t"):
            return RefusalError(
                400, "space_before_colon", "no white space between a header's name and its colon"
            )
        if _TOKEN.fullmatch(name) is None:
            return RefusalError(400, "bad_header_name", "a header name is a token (RFC 9110 section 5.1)")
    return RefusalError(400, "bad_header", "a header line that llhttp does not accept")
