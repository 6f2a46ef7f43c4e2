from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.ledger import DropReason
from proxy.mirror.budget import TokenBudget
from proxy.mirror.settings import MirrorSettings

DAY_S = 86_400.0


class Purse:
    def __init__(self, **settings: float) -> None:
        self.now_s = 50.0
        self.unix_s = 100 * DAY_S + 1_000.0
        self.budget = TokenBudget(
            MirrorSettings(**settings),  # type: ignore[arg-type]
            lambda: self.now_s,
            lambda: self.unix_s,
        )

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.unix_s += seconds


def test_a_debt_is_paid_back_before_the_next_start() -> None:
    purse = Purse(tokens_per_second=100.0)
    assert purse.budget.wait_s() == 0.0
    purse.budget.spend(350, "a", "old")
    assert 2.5 <= purse.budget.wait_s() <= 2.6
    purse.wait(2.4)
    assert purse.budget.wait_s() > 0
    purse.wait(0.2)
    assert purse.budget.wait_s() == 0.0


@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.integers(1, 500)), min_size=1, max_size=50))
def test_over_time_no_more_than_the_rate_one_burst_and_one_start_is_spent(
    arrivals: list[tuple[float, int]],
) -> None:
    purse = Purse(tokens_per_second=100.0)
    started, spent = purse.now_s, 0
    for pause_s, tokens in arrivals:
        purse.wait(pause_s)
        if purse.budget.wait_s() == 0.0:
            assert spent <= 100.0 * (purse.now_s - started) + 100.0 + 1e-6
            purse.budget.spend(tokens, "a", "old")
            spent += tokens


def test_a_day_has_an_end_and_another_begins_at_midnight() -> None:
    purse = Purse(tokens_per_day=1_000)
    purse.budget.spend(999, "a", "old")
    assert purse.budget.spent_out("a") is None
    purse.budget.spend(1, "a", "old")
    assert purse.budget.spent_out("b") == (DropReason.TOKEN_DAY, "1000 of 1000 tokens are spent today")
    purse.unix_s -= 2 * DAY_S  # a clock set back is no new day
    assert purse.budget.spent_out("b") is not None
    purse.unix_s += 3 * DAY_S
    assert purse.budget.spent_out("b") is None
    assert (purse.budget.spent().today_tokens, purse.budget.spent().total_tokens) == (0, 1_000)


def test_what_each_pool_was_asked_is_counted_over_days() -> None:
    purse = Purse()
    purse.budget.remember(50, "a")  # an earlier life's, of no pool of this one
    for pool, tokens in (("old", 5), ("new", 5), ("old", 7)):
        purse.budget.asked(pool)
        purse.budget.spend(tokens, "a", pool)
    purse.wait(2 * DAY_S)
    spent = purse.budget.spent()
    assert spent.total_by_pool == {"old": 12, "new": 5}
    assert spent.requests_by_pool == {"old": 2, "new": 1}
    assert (spent.today_tokens, spent.total_tokens) == (0, 17)


def test_a_tenant_cannot_take_more_than_its_share_of_the_day() -> None:
    purse = Purse(tokens_per_day=1_000, tenant_share_percent=25.0)
    purse.budget.spend(250, "greedy", "old")
    spent_out = purse.budget.spent_out("greedy")
    assert spent_out is not None
    assert spent_out[0] is DropReason.TENANT_BUDGET
    assert purse.budget.spent_out("modest") is None
