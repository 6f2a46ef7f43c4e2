"""What crosses the link, as values that know nothing of gRPC."""

from __future__ import annotations

import msgspec


class EdgeIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """One process of an edge, from start to death."""

    sidecar: str
    worker: int
    incarnation: str


class Capture(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A live request's copy, whole, as the judge receives it."""

    sequence: int
    capture_id: str
    request_id: str
    tenant: str
    rollout: str
    target: str
    headers: tuple[tuple[bytes, bytes], ...]
    """Lower-case names from the edge's allow-list."""
    body: bytes
    """As it came: content-encoding not yet undone."""
    live_pool: str
    received_unix_s: float

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header, by lower-case name."""
        return next((value for key, value in self.headers if key == name), None)
