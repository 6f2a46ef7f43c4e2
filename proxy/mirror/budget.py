"""What a rollout's shadow may spend, in tokens.

A token bucket with debt: tokens are debited as they are made, a pair may start while the level is above
zero. So nothing is reserved and nothing refunded; the rate is exceeded by at most what was in flight, and
that is paid back before the next start.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec

from proxy.ledger import DropReason
from proxy.mirror.settings import MirrorSettings

_DAY_S = 86_400.0


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """A rollout's shadow tokens, prompts and outputs of all arms."""

    today_tokens: int
    """Since 00:00 UTC."""
    today_by_tenant: dict[str, int] = {}
    total_tokens: int
    """Since the judge started."""
    total_by_pool: dict[str, int] = {}
    """The same, by the pool that was asked."""
    requests_by_pool: dict[str, int] = {}
    """Generations asked for since the judge started."""


class TokenBudget:
    """One for a rollout. Clocks are given: ``monotonic`` for the rate, ``unix`` for the day."""

    def __init__(
        self, settings: MirrorSettings, monotonic: Callable[[], float], unix: Callable[[], float]
    ) -> None:
        self._rate = settings.tokens_per_second
        self._per_day = settings.tokens_per_day
        self._tenant_per_day = settings.tokens_per_day * settings.tenant_share_percent / 100
        self._monotonic = monotonic
        self._unix = unix
        self._level = self._rate
        self._filled_s = monotonic()
        self._day = int(unix() // _DAY_S)
        self._today = 0
        self._today_by_tenant: Counter[str] = Counter()
        self._by_pool: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()

    def asked(self, pool: str) -> None:
        """A generation is asked for. Counted only; its tokens are what it costs."""
        self._requests[pool] += 1

    def spend(self, tokens: int, tenant: str, pool: str) -> None:
        """Tokens were made, or a prompt was sent. Never refused: it has happened."""
        self._level -= tokens
        self._today += tokens
        self._today_by_tenant[tenant] += tokens
        self._by_pool[pool] += tokens

    def remember(self, tokens: int, tenant: str) -> None:
        """Tokens that an earlier life of the judge spent today: the day's, no longer the rate's."""
        self._today += tokens
        self._today_by_tenant[tenant] += tokens

    def wait_s(self) -> float:
        """Seconds until a pair may start as far as the rate goes; 0 for now."""
        now_s = self._monotonic()
        self._level = min(self._rate, self._level + (now_s - self._filled_s) * self._rate)
        self._filled_s = now_s
        return 0.0 if self._level > 0 else -self._level / self._rate + 1 / self._rate

    def spent_out(self, tenant: str) -> tuple[DropReason, str] | None:
        """Why no more may be spent today, for this tenant or at all."""
        self._roll_over()
        if self._today >= self._per_day:
            return DropReason.TOKEN_DAY, f"{self._today} of {self._per_day} tokens are spent today"
        mine = self._today_by_tenant[tenant]
        if mine >= self._tenant_per_day:
            return DropReason.TENANT_BUDGET, f"{mine} of the tenant's {self._tenant_per_day:.0f} tokens today"
        return None

    def spent(self) -> Spent:
        self._roll_over()
        return Spent(
            today_tokens=self._today,
            today_by_tenant=dict(self._today_by_tenant),
            total_tokens=self._by_pool.total(),
            total_by_pool=dict(self._by_pool),
            requests_by_pool=dict(self._requests),
        )

    def _roll_over(self) -> None:
        day = int(self._unix() // _DAY_S)
        if day > self._day:  # a clock set back gives no second budget
            self._day = day
            self._today = 0
            self._today_by_tenant.clear()
