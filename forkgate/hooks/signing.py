"""HMAC-SHA256 over time and body: a hook can be neither forged nor, after some minutes, sent again.

The header is ``forkgate-signature: t=UNIX_SECONDS,v1=HEX``. HEX is the HMAC of ``UNIX_SECONDS.BODY`` (the
seconds as they stand in the header, a full stop, the body's bytes) under the shared secret. A receiver
refuses a time that is too far from its own, and remembers the ``forkgate-delivery`` of what it took
meanwhile: each attempt is signed anew, with the same delivery.
"""

from __future__ import annotations

import hashlib
import hmac
import re

SIGNATURE_HEADER = "forkgate-signature"
DELIVERY_HEADER = "forkgate-delivery"
EVENT_HEADER = "forkgate-event"
TOLERANCE_S = 300
_HEADER = re.compile(r"t=([0-9]{1,15}),v1=([0-9a-f]{64})")


class BadSignature(Exception):  # noqa: N818 - reads as the fact that it is
    """A request that is not what it says: forged, changed, or sent again too late."""


def sign(secret: bytes, body: bytes, unix_s: int) -> str:
    """The header's value."""
    return f"t={unix_s},v1={_digest(secret, body, str(unix_s))}"


def verify(secret: bytes, header: str, body: bytes, unix_s: float, tolerance_s: float = TOLERANCE_S) -> int:
    """The time at which the request was signed. For receivers written in Python.

    Args:
        secret: without a newline at its end.
        body: as it came, not decoded and encoded again.
        unix_s: now.

    Raises:
        BadSignature: what is wrong with it.
    """
    match = _HEADER.fullmatch(header)
    if match is None:
        raise BadSignature(f"{SIGNATURE_HEADER}: not t=SECONDS,v1=HEX")
    if not hmac.compare_digest(match.group(2), _digest(secret, body, match.group(1))):
        raise BadSignature("the signature is not of this body, or of another secret")
    signed_s = int(match.group(1))
    if abs(unix_s - signed_s) > tolerance_s:
        raise BadSignature(f"signed {unix_s - signed_s:.0f} s ago, at most {tolerance_s:g} s are taken")
    return signed_s


def _digest(secret: bytes, body: bytes, seconds: str) -> str:
    return hmac.new(secret, seconds.encode() + b"." + body, hashlib.sha256).hexdigest()
