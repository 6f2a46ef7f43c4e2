"""Which requests are copied, and the copy in the making.

The draw is a hash of the request ID keyed by the rollout's name, so every edge and replica makes the same
one, and a client that repeats a request with its ID is drawn again or passed over again.
"""

from __future__ import annotations

import hashlib
import math
from typing import Final

from policies.routes import MirrorRule, RolloutName, TenantName
from proxy.edge.heads import Fields
from proxy.edge.ports import CaptureHead, ShadowPort
from proxy.ledger import DropReason

SAMPLED_PATHS: Final = frozenset(
    (b"/v1/chat/completions", b"/v1/completions", b"/v1/responses", b"/v1/messages")
)
"""POST to these is what the judge can read; nothing else is worth a copy."""

_HEADERS: Final = frozenset(
    (
        *(b"content-type", b"content-encoding", b"accept", b"user-agent"),
        *(b"anthropic-version", b"anthropic-beta"),
        *(b"traceparent", b"tracestate"),  # so that its shadows join the client's trace
    )
)
_SPACE: Final = 1 << 64


class CompiledRule:
    """A ``MirrorRule`` ready for the hot path."""

    __slots__ = ("_key", "_tenants", "_threshold", "rollout")

    def __init__(self, rule: MirrorRule) -> None:
        self.rollout: RolloutName = rule.rollout
        self._key = rule.rollout.encode()
        if len(self._key) > hashlib.blake2b.MAX_KEY_SIZE:  # no such key; its digest is as good
            self._key = hashlib.blake2b(self._key).digest()
        self._threshold = math.ceil(rule.percent / 100 * _SPACE)
        self._tenants = frozenset(rule.tenants)

    def asks(self, tenant: TenantName) -> bool:
        """Whether the rule is about this tenant's requests at all."""
        return not self._tenants or tenant in self._tenants

    def draws(self, request_id: bytes, tenant: TenantName) -> bool:
        """``blake2b(request_id, key=rollout) / 2**64 < percent / 100``, the digest read big-endian."""
        if not self.asks(tenant):
            return False
        digest = hashlib.blake2b(request_id, key=self._key, digest_size=8).digest()
        return int.from_bytes(digest, "big") < self._threshold


def captured_headers(fields: Fields) -> tuple[tuple[bytes, bytes], ...]:
    """The allow-listed fields, names in lower case. Never a credential: an allow-list cannot forget one."""
    kept = []
    for name, value in fields:
        lower = name.lower()
        if lower in _HEADERS or lower.startswith(b"openai-"):
            kept.append((lower, value))
    return tuple(kept)


class Capture:
    """One drawn request: a sequence number for each rollout that drew it, and in the end one of offer and
    drop.

    The port is foreign ground: whatever it raises stays here and is counted by ``on_error``.
    """

    __slots__ = ("_port", "_sequences", "received_unix_s", "rollouts")

    def __init__(self, port: ShadowPort, rollouts: list[RolloutName], received_unix_s: float) -> None:
        self._port = port
        self.rollouts = rollouts
        self.received_unix_s = received_unix_s
        self._sequences: list[int] = []

    def begin(self) -> None:
        """Count it. Called once the primary request is on its way."""
        self._sequences = [self._port.begin() for _ in self.rollouts]

    def offer(self, heads: list[CaptureHead], body: bytes) -> None:
        for sequence, head in zip(self._sequences, heads, strict=True):
            self._port.offer(sequence, head, body)

    def drop(self, reason: DropReason) -> None:
        for sequence in self._sequences:
            self._port.drop(sequence, reason)
