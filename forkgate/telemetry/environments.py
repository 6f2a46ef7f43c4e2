"""The label that keeps old and new replicas of a pool apart, and what bounds it."""

from __future__ import annotations

from proxy.live import ODD_ENVIRONMENT

MOST = 32
"""Environments of a pool that get a label of their own in a judge's life. Engines that tell ever new digests
make no new series."""
UNKNOWN = "unknown"
ODD = "odd"
OTHER = "other"
_SHOWN = len("sha256:") + 12


class EnvironmentLabels:
    """``forkgate.environment``: the digest's first 12 hex digits; ``unknown`` where nobody told one, ``odd``
    where what was told is none, ``other`` beyond :data:`MOST`."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = {}

    def of(self, pool: str, digest: str | None) -> str:
        """The label of a digest that was told in a pool."""
        if not digest:
            return UNKNOWN
        if digest == ODD_ENVIRONMENT:
            return ODD
        known = self._known.setdefault(pool, {})
        found = known.get(digest)
        if found is None:
            if len(known) >= MOST:
                return OTHER
            found = known[digest] = digest[:_SHOWN]
        return found
