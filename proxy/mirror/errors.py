"""The mirror's one error: a capture that ends without a pair."""

from __future__ import annotations

from proxy.ledger import DropReason


class Dropped(Exception):  # noqa: N818 - an end, not a fault
    """Raised where a capture cannot go on; ends as one drop with this reason."""

    def __init__(self, reason: DropReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
