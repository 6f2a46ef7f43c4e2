"""``forkgate status`` in words: what is wrong must be seen at a glance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from forkgate.checks import CheckProgress
from forkgate.cli.exits import Exit
from forkgate.cli.options import DEFAULT_FILE, named
from forkgate.cli.plan_text import plan_lines
from forkgate.cli.rollout import standing
from forkgate.cli.status import (
    describe,
    drop_lines,
    evidence_lines,
    load_line,
    pairs_line,
    pool_lines,
    rollout_lines,
    verdict_line,
)
from forkgate.judge.plan_view import plan_view
from forkgate.judge.rollout_view import rollout_view
from forkgate.judge.tally import Tally
from forkgate.suites.run import SuiteProgress
from policies.policy import load_policy
from policies.rollout import (
    CheckAnswer,
    CheckDone,
    CheckKind,
    Observed,
    PoolFound,
    RollBackNow,
    RolloutState,
    Stage,
    resume,
    start,
    step,
)
from policies.routes import PoolName
from policies.verdict import Answer
from tests.support.plans import in_first_step
from tests.unit.policies import test_rollout_holds as holds
from tests.unit.policies.test_gates import fork_seen
from tests.unit.policies.test_rollout import plan


def edge(incarnation: str, *, connected: bool = True, epoch: int = 7, heard_s: float = 0.1) -> dict[str, Any]:
    return {
        "sidecar": "s",
        "worker": 0,
        "incarnation": incarnation,
        "connected": connected,
        "epoch": epoch,
        "heard_s": heard_s,
    }


def told(*edges: dict[str, Any]) -> list[str]:
    return describe(
        {
            "version": "1",
            "sidecar": "s",
            "judge": {"uptime_s": 61.0},
            "listen": [],
            "epoch": 7,
            "home": "old",
            "routes": {},
            "edges": list(edges),
            "pools": [],
            "ledger": {
                "captured": 0,
                "compared": 0,
                "dropped": {},
                "in_flight": 0,
                "balanced": True,
                "live_records_lost": 0,
            },
            "rollouts": [],
            "troubles": [],
        }
    )


def test_connected_edges_are_counted_and_named() -> None:
    lines = told(edge("a"), edge("b"))
    assert "edges   2 connected" in lines
    assert "  s/0  a" in lines


def test_edge_that_is_gone_is_not_counted_as_connected() -> None:
    lines = told(edge("a"), edge("b", connected=False, epoch=6, heard_s=125.0))
    assert "edges   1 connected" in lines
    assert "  s/0  b  NOT CONNECTED, last heard 2 min ago, epoch 6" in lines


def test_edge_that_routes_by_an_old_table_is_behind() -> None:
    assert "  s/0  a  BEHIND, epoch 6" in told(edge("a", epoch=6))


def test_suggested_commands_find_the_same_sidecar() -> None:
    state, _ = step(start(plan()), Observed(items=(fork_seen("c"),), unix_s=1.0))
    rollout = {**rollout_view(state, Tally(), 2.0, latch_epoch=3), "shadow": None, "load": None}
    lines = rollout_lines(rollout, named(Path("my folder/f.yaml"), None))
    assert "  why: forkgate evidence show c --config 'my folder/f.yaml'" in lines
    assert "  next: forkgate rollout lift old-to-new --reason '...' --config 'my folder/f.yaml'" in lines
    assert any(
        line.startswith(
            "  ROLLED BACK at epoch 3, 1970-01-01 00:00:01 UTC (not durable yet), "
            "by token_equality: 1 of 1 pairs"
        )
        for line in lines
    )
    assert any(
        line.startswith("  gate token_equality: fail, value 1, limit 0, n 1: 1 of 1") for line in lines
    )
    assert named(DEFAULT_FILE, None) == ""
    assert named(DEFAULT_FILE, Path("/s")) == " --state-dir /s"


def test_pairs_that_were_not_compared_are_told_apart() -> None:
    line = pairs_line(
        {
            "pairs": 7,
            "compared": 4,
            "set_aside": 2,
            "set_aside_reasons": {"encoding_mismatch": 2},
            "candidate_failed": 1,
        }
    )
    assert line == (
        "pairs 7: 4 compared to the end or a fork, 2 set aside (encoding mismatch 2), "
        "1 where the candidate failed"
    )


def test_shadow_load_is_told_beside_the_live_load() -> None:
    load = {"shadow_requests": 24, "live_requests": 600, "shadow_tokens": 1_234}
    assert load_line(load) == (
        "load since the judge started: 24 shadow requests over 600 live in these pools (4.0%), "
        "1234 shadow tokens"
    )
    assert "over 0 live in these pools, " in load_line({**load, "live_requests": 0})


def test_engine_says_when_it_answered_last() -> None:
    endpoint: dict[str, Any] = {
        "url": "http://new",
        "engine": "vllm",
        "version": None,
        "model": None,
        "max_logprobs": 20,
        "has": ["token_in"],
        "missing": {},
        "trouble": None,
        "answered_s": 3.2,
        "environment": {"unknown": "nobody tells it"},
        "environment_by": None,
    }
    lines = pool_lines({"name": "new", "home": False, "endpoints": [endpoint]})
    assert "  http://new  vllm, top-20 logprobs, last answered 3 s ago" in lines
    assert not any("environment" in line for line in lines)
    known = endpoint | {"environment": {"value": "sha256:ab"}, "environment_by": "answer"}
    lines = pool_lines({"name": "new", "home": False, "endpoints": [known]})
    assert "    environment sha256:ab, told by its last answer" in lines
    endpoint["trouble"] = "not answering since 2026-01-02 03:04:05 UTC: connection refused"
    endpoint["answered_s"] = 61.0
    assert pool_lines({"name": "new", "home": False, "endpoints": [endpoint]})[-1] == (
        "  http://new  vllm: not answering since 2026-01-02 03:04:05 UTC: connection refused, "
        "last answered 1 min ago"
    )


def viewed(state: RolloutState, **rest: Any) -> dict[str, Any]:
    return {**rollout_view(state, Tally(), 2.0, **rest), "shadow": None, "load": None}


@pytest.mark.parametrize(
    ("stage", "told"), [(Stage.CANARY, True), (Stage.PROMOTED, True), (Stage.ROLLED_BACK, False)]
)
def test_old_pool_is_told_of_while_somebody_looks_at_it(stage: Stage, told: bool) -> None:
    gone = PoolFound(ready=False, reason="http://a: connection refused", unix_s=1.0)
    made = msgspec.structs.replace(start(plan()), stage=stage, pools={PoolName("old"): gone})
    said = "  OLD POOL old could not take everything back: http://a: connection refused"
    assert (said in rollout_lines(viewed(made))) is told


def test_promoted_rollout_says_what_to_write_into_the_file() -> None:
    lines = rollout_lines(viewed(msgspec.structs.replace(start(plan()), stage=Stage.PROMOTED)))
    assert any("write `home: new` into the configuration and take old-to-new out" in line for line in lines)


def test_check_that_an_edit_took_out_while_it_is_made_is_still_told() -> None:
    both = start(plan(checks=(CheckKind.SELF_CHECK, CheckKind.QUICK_CHECK)))
    made, _ = resume(both, plan(checks=(CheckKind.QUICK_CHECK,)), 2.0)
    assert "  self check running" in rollout_lines(viewed(made, checking=True))
    steps = plan_view(made, 2.0)["steps"]
    assert [(one["name"], one["standing"]) for one in steps][:2] == [
        ("self check", "here"),
        ("quick check", "to come"),
    ]


def test_check_that_failed_is_told_with_the_way_on() -> None:
    made = start(plan(checks=(CheckKind.SELF_CHECK, CheckKind.QUICK_CHECK)))
    assert "  self check running" in rollout_lines(viewed(made, checking=True))
    far = CheckProgress(answers=12, wanted=50, elapsed_s=34.2, waiting=None)
    told = "  self check running: 12 of 50 answers, 34 s"
    assert told in rollout_lines(viewed(made, checking=True, check=far))
    waits = CheckProgress(answers=0, wanted=None, elapsed_s=75.0, waiting="1 of 2 endpoints of old")
    told = "  self check running: 0 answers, 1 min, waits: 1 of 2 endpoints of old"
    assert told in rollout_lines(viewed(made, checking=True, check=waits))
    found = CheckDone(
        kind=CheckKind.SELF_CHECK, answer=CheckAnswer.FAILED, summary="2 of 10 forked", unix_s=1.0
    )
    rollout = viewed(step(made, found)[0])
    lines = rollout_lines(rollout)
    assert "rollout old-to-new  old → new  self_check" in lines
    assert "  self check failed: 2 of 10 forked" in lines
    assert "  quick check to do" in lines
    assert "  HELD until somebody has looked (check): self_check failed: 2 of 10 forked" in lines
    assert "  next: forkgate rollout lift old-to-new --reason '...'" in lines
    assert standing(rollout) is Exit.INCONCLUSIVE


def test_a_rollouts_own_drops_stand_beside_what_else_the_ledger_dropped() -> None:
    lane = {
        "dropped": {"too_old": 10, "pool_busy": 2, "unsupported": 1},
        "drop_details": {"too_old": "waited 30.1 s; in_flight_limit: 8 captures run"},
        "refused": {"waiting_requests": 14, "kv_cache": 0},
    }
    assert drop_lines({"shadow": lane, "other_drops": {"queue_full": 3}}) == [
        "  dropped 13 since the judge started: pool_busy 2, too_old 10, unsupported 1",
        "    too_old, the last one: waited 30.1 s; in_flight_limit: 8 captures run",
        "  starts put off or refused: waiting_requests 14",
        "  the ledger's other drops, of no rollout (at edges, or before this judge): queue_full 3",
    ]
    nothing = {"dropped": {}, "drop_details": {}, "refused": {"kv_cache": 0}}
    assert drop_lines({"shadow": nothing, "other_drops": {}}) == []


def test_a_lift_that_would_be_early_is_told_before_and_in_the_plan() -> None:
    home, _ = step(start(plan()), RollBackNow(who="ana", why="no", unix_s=2.0))
    early = ("pool new: http://new: not probed since the rollout is rolled back",)
    line = f"    a lift now would be early: {early[0]}"
    assert line in rollout_lines(viewed(home, too_early=early))
    assert plan_lines(plan_view(home, 3.0, too_early=early))[-1] == line


def test_the_plan_says_how_far_a_check_is() -> None:
    made = start(plan(checks=(CheckKind.SELF_CHECK,)))
    far = CheckProgress(answers=12, wanted=50, elapsed_s=34.2, waiting=None)
    lines = plan_lines(plan_view(made, 3.0, check=far))
    assert lines[lines.index("  → self check") + 1] == "      12 of 50 answers, 34 s"


def test_where_canary_tenants_go_now_is_told() -> None:
    made = in_first_step(plan())
    assert "  live traffic on new: acme" in rollout_lines(viewed(made))
    home = "  live traffic goes home now, none of it to new"
    assert home in rollout_lines(viewed(start(plan(checks=(CheckKind.SELF_CHECK,)))))
    forked, _ = step(made, Observed(items=(fork_seen("c"),), unix_s=1.0))
    refuge = "  live traffic goes home now; new answers only what nobody at home does"
    assert refuge in rollout_lines(viewed(forked))
    slow = holds.plan(holds.Slow(says=((Answer.FAIL, False),))).policy
    held, _ = step(in_first_step(plan(policy=slow)), holds.ITEM)
    assert held.held is not None
    assert "  live traffic on new: acme" in rollout_lines(viewed(held))
    assert not [line for line in rollout_lines(viewed(start(plan(steps=())))) if "live traffic" in line]


def test_choice_is_told_way_by_way() -> None:
    slow = holds.plan(holds.Slow(says=((Answer.FAIL, False),)))
    lines = rollout_lines(viewed(step(start(slow), holds.ITEM)[0]))
    (held,) = [line for line in lines if "HELD" in line]
    assert "(choice): scripted failed: 1. At level token" in held
    assert [
        line for line in lines if line.startswith(("    1. relax", "    2. choose", "    3. give"))
    ] == lines[lines.index(held) + 1 : lines.index(held) + 4]


def test_suite_under_way_and_forks_by_class_are_told() -> None:
    policy = load_policy(
        "level: statistical\nalpha: 0.05\ngates: {rule_cases: {}}\nsuites: {starter: {passes: 5}}", "p"
    ).with_suites({"starter": "sha256:" + "0" * 64})
    at = SuiteProgress(
        suite="starter", stage="canary-1", asked=5000, run=1200, failed=0, passage=1, passes=5, waiting="busy"
    )
    rollout = viewed(in_first_step(plan(policy=policy)), progress=[at])
    rollout |= {"fork_classes": {"candidate": {"tie_flip": 3, "truncation": 1}}, "pairs": 40}
    lines = rollout_lines(rollout)
    assert "  suite starter 1200 of 5000 answers, pass 2 of 5, waits: busy" in lines
    assert "  forks of the candidate in 40 pairs: tie flip 3, truncation 1" in lines
    waiting = rollout_lines(viewed(in_first_step(plan(policy=policy))))
    assert "  suite starter waits for its turn, 5 passes" in waiting


def test_verdict_tells_what_it_rests_on() -> None:
    assert verdict_line(
        {
            "gate": "fork_hazard",
            "answer": "inconclusive",
            "value": 1.2,
            "limit": 1.5,
            "n": 80,
            "reason": "not yet",
            "interval": [0.9, 1.6],
            "rollback_nats": 2.5,
            "rollback_threshold_nats": 6.9,
            "promotion_nats": -1.0,
            "promotion_threshold_nats": 3.0,
            "alpha": 0.001,
        }
    ) == (
        "  gate fork_hazard: inconclusive, value 1.2, limit 1.5, interval 0.9 to 1.6, "
        "rollback 2.5 of 6.9 nats, promotion -1 of 3 nats, alpha 0.001, n 80: not yet"
    )


def test_evidence_says_who_could_read_its_file() -> None:
    store = {"pairs": 3, "forks": 1, "used_bytes": 2_500_000, "max_bytes": 10_000_000_000}
    plain = {**store, "sealed_with": None, "key_ids": (), "kept": "full"}
    assert evidence_lines(plain) == [
        "evidence  3 pairs, 1 forks, 2.5 of 10000 MB; NOT ENCRYPTED (evidence.encryption)"
    ]
    sealed = {**store, "sealed_with": "a", "key_ids": ("a", "bb"), "kept": "hashes"}
    assert evidence_lines(sealed) == [
        "evidence  3 pairs, 1 forks, 2.5 of 10000 MB; sealed with key a, keyed hashes in the place of tokens",
        "  some of it needs key bb still: forkgate evidence rekey",
    ]
    assert evidence_lines({"path": "x", "trouble": "the disk is full"}) == []
