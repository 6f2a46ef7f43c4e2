"""What keeps a question of the shadow's from starting (design rule 10), and how often it did."""

from __future__ import annotations

import enum
from collections import Counter

from proxy.ledger import DropReason


class Refusal(enum.StrEnum):
    """Closed. Slots that are all taken are none: that is the shadow's own pace."""

    WAITING_REQUESTS = "waiting_requests"  # live work waits at every endpoint of a pool
    KV_CACHE = "kv_cache"  # live work holds more than `kv_cache_percent` of a pool's caches
    LIVE_CAME_BACK = "live_came_back"  # a rollback's traffic comes home there
    TOKEN_RATE = "token_rate"  # noqa: S105 - no secret
    TOKEN_DAY = "token_day"  # noqa: S105 - no secret
    TENANT_BUDGET = "tenant_budget"
    NOT_PROBED = "not_probed"  # no endpoint of a pool has answered a probe yet


_SPENT = {
    DropReason.TOKEN_DAY: Refusal.TOKEN_DAY,
    DropReason.TENANT_BUDGET: Refusal.TENANT_BUDGET,
}


class Refusals:
    """Counts of one lane, since the judge started."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter({one.value: 0 for one in Refusal})

    def waits(self, refusal: Refusal, met: set[Refusal]) -> None:
        """A question waits for this.

        Args:
            met: what it has met before: each counts once a question, however often it is looked at again.
        """
        if refusal not in met:
            met.add(refusal)
            self.counts[refusal.value] += 1

    def spent_out(self, reason: DropReason) -> None:
        """A question was refused, for its tokens are spent."""
        self.counts[_SPENT[reason].value] += 1
