"""A day's traffic in fast time, in one process: the judge's own desk, ledger and budgets, on a simulated
clock.

No socket and no engine: seconds pass as fast as their work is done. Bursts every hour, clients that try
again, an edge that dies, a judge that is away for a minute, a budget that is spent by the evening. The
candidate is as good as the baseline for a whole day, midnight included, and nobody may be sent home; then it
fails.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from pathlib import Path

import psutil

from comparator.records import LiveRecord
from forkgate.config import loads
from forkgate.config.policy import read_policies
from forkgate.judge.desk import Desk
from forkgate.state.latch import Latch
from policies.rollout import Latch as Rollback
from policies.rollout import RollBack
from proxy.ledger import DropReason, EdgeLedger, JudgeLedger, Past, read_ledger
from proxy.mirror.budget import TokenBudget
from proxy.mirror.settings import MirrorSettings
from tests.faults.figures import Figures
from tests.support.exchanges import comparison, live, pair

SEED = 20261130
HOUR_S = 3_600
DAY_S = 86_400
BEGIN_S = 20_000 * DAY_S + 10 * HOUR_S
"""Ten in the morning (UTC) of a day."""
LASTS_S = 25 * HOUR_S
REQUESTS_PER_S = 0.8
"""At noon, without bursts; a quarter of it at night."""
BURST_TIMES = 12
FAILS = 1 / 200
"""Of either pool's requests."""
COPIED = 0.1
TOKENS = 60
"""Of one copy, both arms."""
TOKENS_PER_DAY = 100_000
TOKENS_PER_S = 60
AWAY_AT_S, AWAY_S = 5 * HOUR_S, 60
"""The judge is gone."""
EDGE_DIES_AT_S = 8 * HOUR_S

CONFIG = """
state_dir: state
pools:
  - {{name: old, endpoints: ["http://127.0.0.1:9001"]}}
  - {{name: new, endpoints: ["http://127.0.0.1:9002"]}}
home: old
identity: {{tenant_header: x-tenant, trusted_peers: ["127.0.0.0/8"]}}
tenants: [{{name: acme}}, {{name: globex}}]
rollouts:
  - name: old-to-new
    baseline: old
    candidate: new
    policy: {policy}
    global_seed: s
    checks: {{self_check: false, quick_check: false}}
    start: on_load
    shadow_stage: {{skip: true}}
    steps: [{{tenants: [acme]}}]
"""
POLICY = """
level: token
alpha: 0.05
gates:
  token_equality: {minimum_pairs: 1000000}
  live_errors: {kind: error_rate, source: live, maximum: 0.2, minimum_requests: 50, window_s: 600}
"""


class Day:
    """The clock, two edges' counters, and what the judge knows of them."""

    def __init__(self, directory: Path) -> None:
        (directory / "policy.yaml").write_text(POLICY)
        config = loads(CONFIG.format(policy=directory / "policy.yaml"))
        self.desk = Desk(config, read_policies(config).policies, Latch())
        self.ledger = JudgeLedger()
        self.draw = random.Random(SEED)
        self.unix_s = float(BEGIN_S)
        self.desk.pool_seen("old", True, "it answers", self.unix_s)
        self.desk.tick(self.unix_s)
        self.budget = TokenBudget(
            MirrorSettings(tokens_per_day=TOKENS_PER_DAY, tokens_per_second=TOKENS_PER_S),
            lambda: self.unix_s - BEGIN_S,
            lambda: self.unix_s,
        )
        self.directory = directory
        self.edges = {name: self._edge(name) for name in ("edge-a", "edge-b")}
        self.batches: Counter[str] = Counter()
        self.captures: Counter[str] = Counter()
        self.records = 0
        self.failed = 0
        self.again: list[tuple[float, LiveRecord]] = []
        """Clients that will try again, and when."""
        self.spent: dict[int, int] = {}
        """Tokens by UTC day."""
        self.compared_hours: Counter[int] = Counter()
        self.rolled_back: Rollback | None = None
        self.broken = False

    def _edge(self, name: str) -> EdgeLedger:
        return EdgeLedger("test", 0, name, str(self.directory / f"{name}.ledger"))

    def second(self) -> None:
        """What arrives in one second, and what is made of it."""
        past = self.unix_s - BEGIN_S
        hour = self.unix_s % DAY_S / HOUR_S
        rate = REQUESTS_PER_S * (0.625 + 0.375 * math.sin((hour - 6) * math.pi / 12))
        if past % HOUR_S < 30:
            rate *= BURST_TIMES
        away = AWAY_AT_S <= past < AWAY_AT_S + AWAY_S
        records = [self._asked(self.draw.choice(("acme", "globex"))) for _ in range(self._arrivals(rate))]
        due = [record for at_s, record in self.again if at_s <= self.unix_s]
        self.again = [waiting for waiting in self.again if waiting[0] > self.unix_s]
        records += [self._asked(record.tenant) for record in due]
        held: dict[str, list[int]] = {name: [] for name in self.edges}
        for _ in records:
            if self.draw.random() < COPIED:
                self._capture(held, away)
        if records and not away:
            self._take(self.desk.observe_live(records, self.unix_s).effects)
        if not away:
            for name, sequences in held.items():
                self._deliver(name, sequences)
            self._take(self.desk.tick(self.unix_s).effects)
        self.unix_s += 1.0

    def _arrivals(self, rate: float) -> int:
        """Poisson (Knuth)."""
        limit, count, product = math.exp(-rate), 0, self.draw.random()
        while product > limit:
            count += 1
            product *= self.draw.random()
        return count

    def _asked(self, tenant: str) -> LiveRecord:
        self.records += 1
        at_candidate = tenant == "acme" and self.rolled_back is None
        fails = self.draw.random() < (0.9 if self.broken and at_candidate else FAILS)
        record = live(
            sequence=self.records,
            tenant=tenant,
            canary=at_candidate,
            status=500 if fails else 200,
            started_unix_s=self.unix_s - 2,
            first_byte_s=0.2,
        )
        if fails:
            self.failed += 1
            if self.draw.random() < 0.8:
                self.again.append((self.unix_s + 3, record))
        return record

    def _capture(self, held: dict[str, list[int]], away: bool) -> None:
        name = self.draw.choice(tuple(self.edges))
        edge = self.edges[name]
        edge.count_captured()
        self.captures[name] += 1
        if away:
            edge.count_dropped(DropReason.NO_JUDGE)
        else:
            held[name].append(self.captures[name])

    def _deliver(self, name: str, sequences: list[int]) -> None:
        edge = self.edges[name]
        self.batches[name] += 1
        first = None if self.ledger.knows(name) else _NOTHING
        fresh = self.ledger.receive(edge.counts(held=len(sequences)), self.batches[name], sequences, first)
        assert fresh is not None
        edge.count_delivered(len(sequences))
        for sequence in sorted(fresh):
            self._copy(name, sequence)

    def _copy(self, name: str, sequence: int) -> None:
        tenant = self.draw.choice(("acme", "globex"))
        spent_out = self.budget.spent_out(tenant)
        if spent_out is not None:
            self.ledger.dropped(name, sequence, spent_out[0])
            return
        if self.budget.wait_s() > 0:
            self.ledger.dropped(name, sequence, DropReason.TOKEN_RATE)
            return
        self.budget.spend(TOKENS, tenant, "old")
        day = int(self.unix_s // DAY_S)
        self.spent[day] = self.spent.get(day, 0) + TOKENS
        self.compared_hours[int((self.unix_s - BEGIN_S) // HOUR_S)] += 1
        made = comparison(pair(capture_id=f"{name}/{sequence}"), unix_s=self.unix_s)
        self._take(self.desk.observe(self.desk.arrived(made), self.unix_s).effects)
        self.ledger.compared(name, sequence)

    def edge_dies(self) -> None:
        """With captures in its hands; its file is read, and another takes its place."""
        edge = self.edges.pop("edge-b")
        for _ in range(3):
            edge.count_captured()
        edge.close()
        self.ledger.gone(read_ledger(self.directory / "edge-b.ledger"), None)
        self.edges["edge-c"] = self._edge("edge-c")

    def _take(self, effects: tuple[object, ...]) -> None:
        for effect in effects:
            if isinstance(effect, RollBack):
                assert self.broken, f"equal environments were told apart: {effect.latch.verdict.reason}"
                self.rolled_back = effect.latch


_NOTHING = Past()


async def a_day(figures: Figures, directory: Path) -> None:
    await asyncio.to_thread(_simulated, figures, directory)


def _simulated(figures: Figures, directory: Path) -> None:
    day, process = Day(directory), psutil.Process()
    unbalanced = 0
    before = 0
    figures.rollback = "lost"
    for second in range(LASTS_S):
        if second == EDGE_DIES_AT_S:
            day.edge_dies()
        if second == HOUR_S:
            before = process.memory_info().rss
        day.second()
        if second % 60 == 0:
            unbalanced += not day.ledger.balance().balanced
    state = day.desk.state("old-to-new")
    assert state.stage.value == "canary", state.stage
    calm = day.records
    dropped = Counter(day.ledger.balance().dropped)
    for reason in (DropReason.TOKEN_DAY, DropReason.TOKEN_RATE, DropReason.NO_JUDGE, DropReason.EDGE_LOST):
        assert dropped[reason] > 0, f"nothing was dropped for {reason}: {dropped}"
    assert all(spent <= TOKENS_PER_DAY + TOKENS for spent in day.spent.values()), day.spent
    assert len(day.spent) == 2, day.spent
    assert not day.compared_hours[13], "the budget was not spent before midnight"
    assert day.compared_hours[14], "the next day brought no new budget"

    day.broken = True
    while day.rolled_back is None and day.records < calm + 2_000:
        day.second()
    assert day.rolled_back is not None, "a candidate that answers 500 to nine in ten was not rolled back"
    needed = day.records - calm
    flipped_s = day.unix_s
    while day.unix_s < flipped_s + HOUR_S:  # everything is well again, and nobody comes back by itself
        day.second()
    found = day.desk.state("old-to-new")
    if found.stage.value == "rolled_back" and found.latch is not None and not found.routed:
        figures.rollback = "kept"
    balance = day.ledger.balance()
    figures.live = figures.under_fault = day.records
    figures.balanced = unbalanced == 0 and balance.balanced and balance.in_flight_judge == 0
    figures.growth_mib = (process.memory_info().rss - before) / 2**20
    figures.note = (
        f"{balance.captured} captures, {balance.compared} compared on two days' budgets, equal failures told "
        f"nothing; a broken candidate went home after {needed} requests"
    )


ROWS = (("a-day", "25 hours of traffic in fast time, then a candidate that fails", a_day),)
