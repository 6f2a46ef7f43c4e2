"""What ``forkgate rollout plan`` says, and what it says of an edited file."""

from __future__ import annotations

from typing import Any

from forkgate.cli.plan_text import edit_lines, plan_lines, span
from forkgate.cli.status import next_line, tenant_lines
from forkgate.judge.plan_view import edit_view, plan_view
from policies.rollout import (
    AdvanceBy,
    Observing,
    RollBackNow,
    RolloutPlan,
    ShadowStage,
    StartBy,
    Widening,
    start,
    step,
)
from policies.routes import TenantName
from tests.support.plans import in_first_step
from tests.unit.policies.test_rollout import plan

ACME, GLOBEX = TenantName("acme"), TenantName("globex")
STEPS = (
    Widening(tenants=(ACME,), minimum_pairs=200, minimum_s=3_600.0),
    Widening(tenants=(ACME, GLOBEX), percent=100.0, advance=AdvanceBy.GATES),
)


def made(**changes: Any) -> RolloutPlan:
    fields: dict[str, Any] = {"steps": STEPS, "start": StartBy.COMMAND, "observe": Observing()}
    return plan(**(fields | changes))


def test_each_step_says_what_it_waits_for_and_the_present_one_how_far_it_is() -> None:
    state = in_first_step(made(start=StartBy.LOAD))
    state = type(state)(**{**{f: getattr(state, f) for f in state.__struct_fields__}, "entered_unix_s": 1.0})
    lines = plan_lines(plan_view(state, 841.0), " --config x.yaml")
    assert lines[0] == "rollout old-to-new  old → new  canary step 1 of 2"
    assert lines[2] == (
        "  → canary step 1: acme: pairs 0 of 200, 14 min of 1 h, every gate passes, then a person promotes"
    )
    assert "      waits for: 0 of 200 requests were compared in this stage" in lines
    assert any(line.startswith("      waits for: token_equality is inconclusive: ") for line in lines)
    assert "    canary step 2: 100 % of tenants, 2 in all: every gate passes, by itself" in lines
    assert "    observing: 1 d, every gate passes, then a person promotes" in lines
    assert "    promoted" in lines
    assert not any("next:" in line for line in lines)


def test_a_step_without_a_minimum_says_how_far_it_is_and_of_nothing() -> None:
    state = in_first_step(made(start=StartBy.LOAD, steps=(Widening(tenants=(ACME,)),)))
    assert "  → canary step 1: acme: pairs 0, 0 s, every gate passes, then a person promotes" in plan_lines(
        plan_view(state, 1.0)
    )


def test_a_shadow_stage_that_is_skipped_says_what_it_waits_for() -> None:
    state = start(made(start=StartBy.LOAD, pool_proof=True))
    lines = plan_lines(plan_view(state, 1.0))
    assert "  → shadow: pairs 0, 0 s, the old pool could take everything back, by itself" in lines
    unseen = "pool old: whether it could take everything back was not seen yet"
    assert f"      waits for: {unseen}" in lines


def test_a_rollout_that_waits_for_a_person_names_the_command() -> None:
    lines = plan_lines(plan_view(start(made()), 1.0), " --config x.yaml")
    assert "  → pending" in lines
    assert lines[-1] == "  next: forkgate rollout start old-to-new --reason '...' --config x.yaml"
    home, _ = step(start(made()), RollBackNow(who="ana", why="no", unix_s=2.0))
    lines = plan_lines(plan_view(home, 3.0))
    assert not any("→ " in line for line in lines[1:])
    assert (
        "  it is rolled back: rolled back by ana: no. `forkgate rollout lift old-to-new` starts it again"
        in lines
    )


def test_an_edited_file_says_every_change_and_whose_traffic_moves() -> None:
    state = in_first_step(made(start=StartBy.LOAD, shadow_stage=ShadowStage(skip=True)))
    other = made(
        start=StartBy.LOAD,
        percent=50.0,
        steps=(Widening(tenants=(GLOBEX,)), *STEPS[1:]),
        observe=Observing(minimum_s=60.0),
    )
    lines = edit_lines(edit_view(state, other, 2.0))
    assert lines[0] == "rollout old-to-new  canary step 1 of 2"
    assert "  percent: 10.0 → 50.0" in lines
    assert any(line.startswith("  steps[0]: acme (200 pairs, 3600 s") for line in lines)
    assert any(line.startswith('  observe: {"minimum_pairs":0,"minimum_s":86400.0') for line in lines)
    assert "  it would stay in canary step 1 of 2" in lines
    assert edit_lines(edit_view(state, state.plan, 2.0)) == [
        "rollout old-to-new  canary step 1 of 2: nothing would change"
    ]
    gone = made(start=StartBy.LOAD, steps=())
    lines = edit_lines(edit_view(state, gone, 2.0))
    assert "  acme: new → home" in lines
    assert "  it would be shadow" in lines


def test_new_gone_and_refused_are_told() -> None:
    new = {"name": "r", "new": True, "gone": False, "place_after": "pending", "held": None}
    assert edit_lines(new) == ["rollout r  new: it would be pending"]
    assert edit_lines(new | {"held": "its pools"})[1:] == ["  HELD: its pools"]
    gone = {"name": "r", "new": False, "gone": True, "place": "observing", "moves": {"acme": ["new", "home"]}}
    assert edit_lines(gone) == [
        "rollout r  observing: the file does not name it, so it would be over",
        "  acme: new → home",
    ]
    refused = {"name": "home", "new": False, "gone": False, "refused": "home: is 'old', and ..."}
    assert edit_lines(refused) == ["a restart would be refused: home: is 'old', and ..."]


def test_spans_are_short() -> None:
    assert [span(s) for s in (0, 59.9, 60, 3_599, 3_600, 3_660, 86_400, 90_000)] == [
        "0 s",
        "59 s",
        "1 min",
        "59 min",
        "1 h",
        "1 h 1 min",
        "1 d",
        "1 d 1 h",
    ]


def test_the_next_line_names_a_command_or_what_is_waited_for() -> None:
    rollout: dict[str, Any] = {
        "name": "r",
        "next": "forkgate rollout start r --reason '...'",
        "blocked_by": [],
    }
    assert next_line(rollout, " -c x") == "next: forkgate rollout start r --reason '...' -c x"
    waits = {**rollout, "next": None, "blocked_by": ["3 of 200 requests were compared in this stage"]}
    assert next_line(waits) == "next: nothing, it waits: 3 of 200 requests were compared in this stage"
    more = {**waits, "blocked_by": ["a", "b", "c"]}
    assert next_line(more) == "next: nothing, it waits: a (and 2 more: forkgate rollout plan r)"
    assert next_line({**rollout, "next": None}) == "next: nothing, it goes on by itself"


def test_a_promoted_rollout_says_where_everybody_is() -> None:
    rollout = {"home": "new", "candidate": "new", "on_candidate": [], "canary_tenants": ["acme"]}
    assert tenant_lines(rollout) == ["  home is new: everybody's live traffic goes there"]
