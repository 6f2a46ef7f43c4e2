"""Whatever comes in whatever order: a rollback latches, a state can always move, nothing is counted twice."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from comparator.pair import ForkSeen
from comparator.records import Arm, CaptureId, Outcome
from policies.policy import load_policy
from policies.rollout import (
    CHECK_STAGES,
    ENDED_STAGES,
    MOVED_STAGES,
    TABLE,
    Abort,
    Advance,
    AdvanceBy,
    CheckAnswer,
    CheckDone,
    CheckKind,
    ClockStepped,
    Configured,
    Declined,
    Effect,
    EnvironmentSeen,
    Event,
    HomeMoved,
    Lift,
    MoveHome,
    Observed,
    Observing,
    Pause,
    PoolSeen,
    Publish,
    Restarted,
    Resume,
    RollBack,
    RollBackNow,
    RolloutPlan,
    RolloutState,
    SendHome,
    ShadowStage,
    Stage,
    Start,
    StartBy,
    Step,
    SuiteDone,
    Tick,
    Unlatch,
    blocked_by,
    next_place,
    start,
    step,
    to_do,
    waits_for,
)
from policies.routes import PoolName, RolloutName
from policies.tables import route_table
from tests.support.exchanges import comparison, live, pair
from tests.support.plans import POOLS, TENANTS, plan_of

POLICIES = [
    load_policy(
        f"""
level: token
alpha: 0.05
on_fail: {on_fail}
gates:
  token_equality: {{minimum_pairs: 2, scope: {scope}}}
  live_errors: {{kind: error_rate, source: live, maximum: 0.3, minimum_requests: 4}}
  shadow_errors: {{kind: error_rate, source: shadow, maximum: 0.3, minimum_requests: 2}}
  slow: {{kind: ttft, source: live, maximum_ratio: 1.5, minimum_requests: 3}}
"""
    )
    for on_fail, scope in (("rollback", "rollout"), ("hold", "rollout"), ("rollback", "tenant"))
]
GLOBEX = pair(left={"tenant": "globex"}, right={"tenant": "globex"})
FORK = pair((1,), (2,)).fork
assert FORK is not None
SEEN = ForkSeen(
    capture_id=CaptureId("f"),
    rollout="old-to-new",
    tenant="acme",
    left_arm=Arm.BASELINE,
    right_arm=Arm.CANDIDATE,
    fork=FORK,
)
ITEMS = st.sampled_from(
    [
        SEEN,
        msgspec.structs.replace(SEEN, tenant="globex"),
        comparison(pair()),
        comparison(pair()),
        comparison(GLOBEX),
        comparison(GLOBEX),
        comparison(pair((1,), (2,))),
        comparison(pair((1,), (), right={"outcome": Outcome.FAILED})),
        comparison(pair((1,), (), left={"outcome": Outcome.FAILED})),
        comparison(pair(right={"prompt": (1,)})),
        live(),
        live(canary=True),
        live(canary=True, status=500),
        live(canary=True, first_byte_s=5.0),
        live(canary=True, first_byte_s=float("nan"), status=0, aborted_by="client"),
        live(canary=True, started_unix_s=-1e12),
        live(started_unix_s=1e15),
    ]
)


TENANTS = TENANTS[:3]
ROADS = (
    (),
    (Step(tenants=("acme",), advance=AdvanceBy.GATES),),
    (
        Step(tenants=("acme",), minimum_pairs=1, advance=AdvanceBy.GATES),
        Step(percent=40.0, minimum_s=5.0),
        Step(percent=100.0, advance=AdvanceBy.GATES),
    ),
    (Step(tenants=("acme", "globex")), Step(percent=100.0)),
)


def plan(
    policy: int, road: int, checks: tuple[CheckKind, ...] = (), skip: bool = True, asked: bool = False
) -> RolloutPlan:
    return plan_of(
        POLICIES[policy],
        ROADS[road],
        configured=TENANTS,
        checks=checks,
        start=StartBy.COMMAND if asked else StartBy.LOAD,
        shadow_stage=ShadowStage(skip=skip, advance=AdvanceBy.GATES),
        observe=Observing(minimum_s=5.0, advance=AdvanceBy.GATES),
        pool_proof=road == 3,
    )


CHECKS = st.sampled_from(
    [(), (CheckKind.SELF_CHECK,), (CheckKind.QUICK_CHECK,), (CheckKind.SELF_CHECK, CheckKind.QUICK_CHECK)]
)
ROAD = st.integers(0, len(ROADS) - 1)
PLANS = st.builds(plan, st.integers(0, 2), ROAD, CHECKS, st.booleans(), st.booleans())
CLOCK = st.sampled_from([-5.0, 1.0, 2.0, 6.0, 9.0, 30.0])
SAID = {"who": st.just("ana"), "why": st.just("tried"), "unix_s": CLOCK}
WHOSE = st.sampled_from([None, None, *TENANTS])
OBSERVED = st.builds(Observed, items=st.lists(ITEMS, max_size=6).map(tuple), unix_s=CLOCK)
PEOPLE = st.one_of(
    st.builds(Start, **SAID),
    st.builds(Pause, **SAID),
    st.builds(Resume, **SAID),
    st.builds(Advance, **SAID),
    st.builds(Abort, **SAID),
    st.builds(Lift, tenant=WHOSE, **SAID),
    st.builds(RollBackNow, tenant=WHOSE, **SAID),
)
EVENTS = st.one_of(
    OBSERVED,
    OBSERVED,
    PEOPLE,
    st.builds(Tick, unix_s=CLOCK),
    st.builds(Tick, unix_s=CLOCK),
    st.builds(ClockStepped, by_s=st.sampled_from([-3.0, 3.0]), unix_s=CLOCK),
    st.builds(
        PoolSeen, pool=st.just(PoolName("old")), ready=st.booleans(), reason=st.just("said"), unix_s=CLOCK
    ),
    st.builds(HomeMoved, by=st.sampled_from([None, RolloutName("other")]), unix_s=CLOCK),
    st.builds(
        CheckDone,
        kind=st.sampled_from(CheckKind),
        answer=st.sampled_from([*CheckAnswer, CheckAnswer.PASSED, CheckAnswer.PASSED]),
        summary=st.just("said"),
        unix_s=CLOCK,
    ),
    st.builds(
        SuiteDone,
        suite=st.just("starter"),
        look=st.sampled_from(["shadow-1", "canary-1", "canary-2"]),
        summary=st.just("asked"),
        unix_s=CLOCK,
    ),
    st.builds(
        EnvironmentSeen,
        pool=st.sampled_from([PoolName("old"), PoolName("new")]),
        endpoint=st.just("http://127.0.0.1:2"),
        facts=st.sampled_from([{"version": "1"}, {"version": "2"}, {}]),
        unix_s=CLOCK,
    ),
    st.builds(Configured, plan=PLANS, unix_s=CLOCK),
)
ALL_IS_WELL = Observed(
    items=tuple(
        item
        for name in TENANTS
        for item in (
            *(comparison(pair(left={"tenant": name}, right={"tenant": name})),) * 2,
            *(live(canary=True, tenant=name),) * 4,
            *(live(),) * 4,
        )
    ),
    unix_s=1.0,
)
MOVES = st.builds(
    lambda led, then: [*[None] * led, *then],
    st.integers(0, 30),
    st.lists(st.one_of(st.none(), st.none(), EVENTS), max_size=20),
)
"""None: what leads on from wherever it stands, so that every stage is reached."""
ORDER = list(Stage)


def onward(state: RolloutState) -> Event:
    """What leads on from here, as far as anything does."""
    plan, late = state.plan, state.entered_unix_s + 30.0
    said = {"who": "ana", "why": "fine", "unix_s": late}
    if state.stage in (Stage.PENDING, Stage.ABORTED) and state.held is None:
        return Start(**said)
    if state.stage is Stage.ROLLED_BACK or state.held is not None:
        return Lift(**said)
    if state.paused is not None:
        return Resume(**said)
    if state.stage in CHECK_STAGES:
        return CheckDone(kind=CheckKind(state.stage), answer=CheckAnswer.PASSED, summary="said", unix_s=late)
    if state.home_of is not None:
        return HomeMoved(by=None, unix_s=late)
    found = state.pools.get(plan.baseline)
    if plan.pool_proof and (found is None or not found.ready):
        return PoolSeen(pool=plan.baseline, ready=True, reason="free", unix_s=late)
    if not state.pairs:
        return ALL_IS_WELL
    by_itself = state.leaving is not None and state.leaving.advance is AdvanceBy.GATES
    return Tick(unix_s=late) if by_itself else Advance(**said)


def road(
    state: RolloutState, moves: list[Event | None]
) -> Iterator[tuple[RolloutState, Event, RolloutState, tuple[Effect, ...]]]:
    """Each step of a walk: the state, what happened, the state after it, what is to be done."""
    for move in moves:
        event = onward(state) if move is None else move
        after, effects = step(state, event)
        yield state, event, after, effects
        state = after


def run(state: RolloutState, moves: list[Event | None]) -> RolloutState:
    for _, _, after, _ in road(state, moves):
        state = after
    return state


@settings(max_examples=300, deadline=None)
@given(PLANS, MOVES)
def test_every_road_keeps_the_rules(first, events):
    for state, event, after, effects in road(start(first), events):
        quiet = after is state
        assert after.sequence == state.sequence + (not quiet)
        assert not (quiet and effects)
        assert (after.stage is Stage.ROLLED_BACK) == (after.latch is not None)
        assert set(after.gates) == set(after.plan.policy.gates)
        rolled_back = [effect for effect in effects if isinstance(effect, RollBack)]
        if state.stage is Stage.ROLLED_BACK:
            left = after.stage is not Stage.ROLLED_BACK
            assert left == (isinstance(event, Lift) and event.tenant is None)
            assert left == any(isinstance(one, Unlatch) and one.tenant is None for one in effects)
            assert not rolled_back
        else:
            assert (after.stage is Stage.ROLLED_BACK) == (len(rolled_back) == 1)
        if after.stage is not state.stage and not isinstance(event, Configured):
            assert any(isinstance(effect, RollBack | Publish) for effect in effects)
        if after.routed != state.routed:
            assert any(isinstance(effect, RollBack | SendHome | Publish) for effect in effects)
        if after.held is not None and state.held is not None:
            assert after.held == state.held  # the first reason stands
        if state.held is not None and after.held is None:
            assert isinstance(event, Lift | Abort)
        if state.paused is not None and after.paused is None:
            assert isinstance(event, Resume | Abort)
        if any(isinstance(effect, Restarted) for effect in effects):
            assert after.gates == start(after.plan).gates
        if any(isinstance(effect, Declined) for effect in effects):
            assert msgspec.structs.replace(after, sequence=state.sequence) == state
        assert after.evidence >= state.evidence
        moved = msgspec.json.decode(msgspec.json.encode(after), type=RolloutState)
        assert moved == after


@settings(max_examples=300, deadline=None)
@given(PLANS, MOVES)
def test_a_tenant_that_is_latched_home_stays_until_it_is_lifted_itself(first, events):
    for state, event, after, effects in road(start(first), events):
        for tenant in state.sent_home:
            lifted = isinstance(event, Lift) and event.tenant == tenant
            assert (tenant in after.sent_home) is not lifted
            assert lifted == any(isinstance(one, Unlatch) and one.tenant == tenant for one in effects)
        new = set(after.sent_home) - set(state.sent_home)
        assert {one.latch.tenant for one in effects if isinstance(one, SendHome)} == new
        assert not set(after.routed) & set(after.sent_home)
        assert sum(one.share for one in after.tenants.values()) <= 1.0


@settings(max_examples=300, deadline=None)
@given(PLANS, MOVES)
def test_nothing_advances_while_held_paused_or_blocked_or_by_an_edit_alone(first, events):
    for state, event, after, effects in road(start(first), events):
        place, now = (ORDER.index(state.stage), state.step), (ORDER.index(after.stage), after.step)
        on = state.stage not in ENDED_STAGES and after.stage not in ENDED_STAGES and now > place
        if on and not isinstance(event, Start | Lift):
            assert state.held is None or isinstance(event, Resume)
            assert state.paused is None or isinstance(event, Resume)
            assert isinstance(event, CheckDone | Tick | Advance | Resume)
            if isinstance(event, Tick | Advance):
                assert blocked_by(state, event.unix_s) == ()
                assert waits_for(state, event.unix_s) == () or isinstance(event, Advance)
                assert next_place(state) == (after.stage, after.step)
        if set(after.moved) - set(state.moved):
            # Only going on, or a person who begins it, puts anybody on the candidate.
            assert on or isinstance(event, Start | Lift)
        if isinstance(event, Advance) and not on:
            assert blocked_by(state, event.unix_s) != ()
            assert any(isinstance(effect, Declined) for effect in effects)


@settings(max_examples=300, deadline=None)
@given(PLANS, MOVES)
def test_steps_only_widen_and_home_moves_once_and_back(first, events):
    moved_by = None
    for state, event, after, effects in road(start(first), events):
        stays = state.stage in MOVED_STAGES and after.stage in MOVED_STAGES
        if stays and not isinstance(event, Configured):
            assert set(state.moved) <= set(after.moved)
        told = [effect for effect in effects if isinstance(effect, MoveHome)]
        assert len(told) == (state.home != after.home)
        if told:
            assert told[0].by != moved_by
            moved_by = told[0].by
            assert told[0].pool == after.home
        assert (moved_by is not None) == (after.stage is Stage.PROMOTED)


@settings(max_examples=200, deadline=None)
@given(PLANS, MOVES)
def test_a_person_can_always_roll_back_and_end_it(first, events):
    state = run(start(first), [event for event in events if not isinstance(event, Configured)])
    said = {"who": "ana", "why": "enough", "unix_s": 40.0}
    home, effects = step(state, RollBackNow(**said))
    assert home.stage is Stage.ROLLED_BACK
    assert routes_nothing(home)
    if state.stage is Stage.ROLLED_BACK:
        assert any(isinstance(effect, Declined) for effect in effects)
        assert step(state, Abort(**said))[0].latch == state.latch  # an abort lifts no latch
        return
    assert home.latch is not None
    assert (home.latch.who, home.latch.durable) == ("ana", False)
    ended, _ = step(state, Abort(**said))
    assert ended.stage is Stage.ABORTED
    assert routes_nothing(ended)
    again, _ = step(ended, Start(**said))
    assert again.stage is again.plan.first_stage
    assert again.gates == start(again.plan).gates


@settings(max_examples=200, deadline=None)
@given(PLANS, MOVES, PEOPLE)
def test_what_is_said_twice_acts_once(first, events, said):
    state = run(start(first), events)
    if isinstance(said, Advance):
        said = msgspec.structs.replace(said, look=state.look)
    once, effects = step(state, said)
    twice, again = step(once, said)
    if any(isinstance(effect, Declined) for effect in effects):
        assert again == effects
    elif not isinstance(said, Lift) or said.tenant is not None or state.stage is not Stage.ROLLED_BACK:
        assert [type(effect) for effect in again] == [Declined]
    assert (twice.stage, twice.step, twice.moved) == (once.stage, once.step, once.moved)


@settings(max_examples=200, deadline=None)
@given(PLANS, MOVES, CLOCK)
def test_a_second_that_changes_nothing_leaves_nothing_and_one_that_comes_again_neither(first, events, now):
    state = run(start(first), events)
    state, _ = step(state, Tick(unix_s=now))
    while True:
        after, effects = step(state, Tick(unix_s=now))
        if after.stage is state.stage and after.step == state.step:
            break
        state = after  # each stage is left by a tick of its own
    assert after is state
    assert effects == ()


@settings(max_examples=200, deadline=None)
@given(PLANS, MOVES, st.floats(0, 1e9))
def test_a_clock_that_went_back_leaves_no_stage_that_has_to_last(first, events, back_s):
    state = run(start(first), events)
    leaving = state.leaving
    if leaving is None or not leaving.minimum_s or not state.entered_unix_s:
        return
    then = state.entered_unix_s - back_s
    assert step(state, Tick(unix_s=then))[0].place == state.place
    assert step(state, Advance(who="ana", why="fine", unix_s=then))[0].place == state.place
    told, _ = step(state, ClockStepped(by_s=-back_s, unix_s=then))
    assert abs((then + 5.0 - told.entered_unix_s) - 5.0) < 1e-3  # as long as before


@settings(max_examples=50, deadline=None)
@given(PLANS, st.lists(EVENTS, max_size=3), EVENTS)
def test_every_stage_has_an_answer_to_every_event(first, events, event):
    before = run(start(first), events)
    for stage in TABLE:
        if stage is Stage.CANARY and not before.plan.steps:
            continue
        latch = step(start(plan(0, 1)), RollBackNow(who="ana", why="x", unix_s=1.0))[0].latch
        state = msgspec.structs.replace(
            before, stage=stage, step=0, latch=latch if stage is Stage.ROLLED_BACK else None
        )
        after, _ = step(state, event)
        assert blocked_by(after, 1.0) or after.leaving is not None


@settings(max_examples=100, deadline=None)
@given(PLANS, st.lists(st.lists(ITEMS, max_size=4), max_size=8))
def test_pairs_and_forks_decide_the_same_however_they_are_batched(first, batches):
    batches = [[item for item in batch if not hasattr(item, "canary")] for batch in batches]
    whole = start(first)
    whole, _ = step(whole, Observed(items=tuple(i for batch in batches for i in batch), unix_s=1.0))
    pieces = start(first)
    for batch in batches:
        pieces, _ = step(pieces, Observed(items=tuple(batch), unix_s=1.0))
    assert pieces.gates == whole.gates
    assert (pieces.stage, pieces.latch, pieces.held) == (whole.stage, whole.latch, whole.held)
    assert (pieces.tenants, pieces.sent_home) == (whole.tenants, whole.sent_home)


def routes_nothing(state: RolloutState) -> bool:
    table = route_table(epoch=2, home=PoolName("old"), pools=POOLS, rollouts=[state], cause="test")
    return not table.routes and not table.mirrors


@settings(max_examples=200, deadline=None)
@given(PLANS, st.lists(EVENTS, max_size=14))
def test_checks_move_and_copy_no_traffic_and_a_hold_in_one_stays_there(first, events):
    state = start(first)
    for event in events:
        after, _ = step(state, event)
        if after.stage in CHECK_STAGES:
            assert routes_nothing(after)
        if state.stage in CHECK_STAGES and state.held is not None and not isinstance(event, Lift):
            # Nothing but a person leads on from here; a breach leads home.
            assert after.stage in (state.stage, *ENDED_STAGES)
            assert routes_nothing(after)
        if state.stage in CHECK_STAGES and after.stage in (Stage.SHADOW, Stage.CANARY):
            passed = isinstance(event, CheckDone) and event.answer is CheckAnswer.PASSED
            assert passed or isinstance(event, Lift | Resume)


@settings(max_examples=200, deadline=None)
@given(PLANS, st.lists(EVENTS, max_size=8), ITEMS)
def test_a_breach_leads_home_from_wherever_events_led(first, events, item):
    first = msgspec.structs.replace(first, policy=POLICIES[0])
    state = run(start(first), [event for event in events if not isinstance(event, Configured)])
    if not state.listens and state.stage is not Stage.ROLLED_BACK:
        return  # nothing is compared before it starts, or once it was ended
    state, _effects = step(state, Observed(items=(item, SEEN), unix_s=9.0))
    assert state.stage is Stage.ROLLED_BACK
    assert routes_nothing(state)


@settings(max_examples=100, deadline=None)
@given(PLANS, MOVES, st.data())
def test_another_judge_goes_on_the_same_from_any_point(first, moves, data):
    cut = data.draw(st.integers(0, len(moves)))
    here = run(start(first), moves[:cut])
    there = msgspec.json.decode(msgspec.json.encode(here), type=RolloutState)
    assert to_do(there) == to_do(here)
    for state, event, after, said in road(here, moves[cut:]):
        assert there == state
        if not isinstance(event, Observed):  # whose evidence a journal refers to
            event = msgspec.convert(msgspec.msgpack.decode(msgspec.msgpack.encode(event)), type(event))
        there, same = step(there, event)
        assert same == said
        here = after
    assert there == here
    assert there.verdicts() == here.verdicts()
