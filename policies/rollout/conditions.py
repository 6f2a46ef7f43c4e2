"""What a stage waits for before it is left: said in words, and asked in the same place.

A step out is taken by a person's :class:`~policies.rollout.events.Advance` or, under ``advance: gates``, by a
:class:`~policies.rollout.events.Tick`, and only while nothing stands in its way here:

- every gate passes; inconclusive and error are no pass. A gate that reads live requests of the candidate
  cannot know anything in the shadow stage, so it is not asked there: the first canary step, its smallest, is
  where it begins to;
- the stage's suites were asked to their end;
- as many requests were compared in the stage, and it has lasted as long, as the plan wants;
- it is neither held nor paused;
- the baseline's pool is ready to take everything back, where somebody probes it;
- who answers is proved: no endpoint of a pool says that it is another environment than the others, or than
  was declared;
- home is where this rollout found it, and nobody was sent there for whom the promotion would move it.

A shadow stage that is skipped waits for the last three kinds alone, and is left by a tick: the first step is
taken like every other, once somebody has looked at the pool that it might have to go back to.

What is cheap is asked first, since a tick asks once a second.
"""

from __future__ import annotations

from collections.abc import Iterator

from policies.gates.base import needs_canary
from policies.rollout.plan import CHECK_STAGES, JUDGED_STAGES, AdvanceBy, Place, Stage
from policies.rollout.values import RolloutState
from policies.verdict import Answer

DIGEST = "environment_digest"
"""The fact that tells which environment an endpoint is."""


def next_place(state: RolloutState) -> Place | None:
    """The stage, and for a canary the step's index, that a judged stage leads to; None where nothing
    follows."""
    return state.plan.following(state.stage, state.step) if state.stage in JUDGED_STAGES else None


def blocked_by(state: RolloutState, unix_s: float) -> tuple[str, ...]:
    """All that stands between a rollout and its next stage, a sentence each; empty: it may be left now.

    A person who has yet to promote is not in it: see :func:`waits_for`.
    """
    return tuple(_blocks(state, unix_s))


def is_blocked(state: RolloutState, unix_s: float) -> bool:
    """Whether anything stands in the way, found as cheaply as can be."""
    return next(_blocks(state, unix_s), None) is not None


def waits_for(state: RolloutState, unix_s: float) -> tuple[str, ...]:
    """For people: what blocks it, and whether somebody has to say that it goes on."""
    blocked = blocked_by(state, unix_s)
    leaving = state.leaving
    if leaving is None or next_place(state) is None:
        return blocked
    if leaving.advance is AdvanceBy.MANUAL:
        return (*blocked, f"a person: `forkgate rollout promote {state.plan.name}`")
    return blocked


def time_in_stage(state: RolloutState, unix_s: float) -> float:
    """Seconds since the present stage was entered; 0 while no clock has told, or where it went back."""
    return max(0.0, unix_s - state.entered_unix_s) if state.entered_unix_s else 0.0


def _blocks(state: RolloutState, unix_s: float) -> Iterator[str]:
    leaving = state.leaving
    if leaving is None:
        if state.stage is not Stage.PENDING or state.held is None:  # a lift of that hold begins it
            yield _not_judged(state)
        if state.held is not None:
            yield f"held: {state.held.reason}"
        if state.paused is not None:
            yield _paused(state)
        return
    if next_place(state) is None:
        yield _no_way_on(state)
    if state.held is not None:
        yield f"held: {state.held.reason}"
    if state.paused is not None:
        yield _paused(state)
    if state.pairs < leaving.minimum_pairs:
        yield f"{state.pairs} of {leaving.minimum_pairs} requests were compared in this stage"
    if (lasted_s := time_in_stage(state, unix_s)) < leaving.minimum_s:
        yield f"it has lasted {lasted_s:.0f} of {leaving.minimum_s:.0f} s"
    judged = state.plan.judges(state.stage)
    for name in state.plan.suites if judged else ():
        if name not in state.suites:
            yield f"suite {name} was not asked to its end in this stage"
    yield from _pool(state)
    yield from _environments(state)
    if state.home_of is not None:
        yield f"rollout {state.home_of} has moved home away from {state.plan.baseline}, this one's baseline"
    if state.stage is Stage.OBSERVING and state.sent_home:
        # The candidate would become their home too.
        yield f"sent home: {', '.join(sorted(state.sent_home))}. Lift each of them, or roll all of it back"
    if judged:
        yield from _gates(state)


def _not_judged(state: RolloutState) -> str:
    name = state.plan.name
    match state.stage:
        case Stage.PENDING:
            return f"it was not started: `forkgate rollout start {name}`"
        case Stage.ROLLED_BACK:
            reason = "" if state.latch is None else f": {state.latch.verdict.reason}"
            return f"it is rolled back{reason}. `forkgate rollout lift {name}` starts it again"
        case Stage.ABORTED:
            return f"it was aborted: `forkgate rollout start {name}` begins anew"
        case Stage.PROMOTED:
            return (
                f"it is promoted, nothing follows. Once nobody wants to go back: write `home: "
                f"{state.plan.candidate}` into the configuration and take {name} out of it, in one edit"
            )
        case _:
            assert state.stage in CHECK_STAGES
            return f"{state.stage} has not passed yet"


def _paused(state: RolloutState) -> str:
    said = state.paused
    assert said is not None
    return f"paused by {said.who}: {said.why}. `forkgate rollout resume {state.plan.name}` ends it"


def _no_way_on(state: RolloutState) -> str:
    if state.stage is Stage.SHADOW:
        return "no step follows: the rollout has none, and copies are all that it makes"
    return (
        "no step follows that takes every tenant in, so home cannot move: add `{percent: 100}` as the last "
        "of the rollout's steps"
    )


def _pool(state: RolloutState) -> Iterator[str]:
    if not state.plan.pool_proof:
        return
    pool = state.plan.baseline
    found = state.pools.get(pool)
    if found is None:
        yield f"pool {pool}: whether it could take everything back was not seen yet"
    elif not found.ready:
        yield f"pool {pool} could not take everything back: {found.reason}"


def _environments(state: RolloutState) -> Iterator[str]:
    plan = state.plan
    for pool in (plan.baseline, plan.candidate):
        said = state.environments.get(pool, {})
        declared = plan.declared.get(pool)
        found = {endpoint: facts[DIGEST] for endpoint, facts in said.items() if DIGEST in facts}
        if declared is not None:
            wanted = f"{declared} was declared"
            for endpoint in said:
                digest = found.get(endpoint)
                if digest is None:
                    yield f"pool {pool}: {endpoint} does not say which environment it is, {wanted}"
                elif digest != declared:
                    yield f"pool {pool}: {endpoint} is environment {digest}, {wanted}"
            if not said:
                yield f"pool {pool}: no endpoint has said which environment it is, {wanted}"
        elif len(set(found.values())) > 1:
            each = ", ".join(f"{endpoint} {digest}" for endpoint, digest in sorted(found.items()))
            yield f"pool {pool}: its endpoints are not of one environment: {each}"


def _gates(state: RolloutState) -> Iterator[str]:
    policy = state.plan.policy
    for name, gate in policy.gates.items():
        if state.stage is Stage.SHADOW and needs_canary(gate):
            continue
        tenants = state.counted if name in policy.tenant_gates else (None,)
        for tenant in tenants:
            verdict = state.verdict(name, tenant)
            if verdict.answer is not Answer.PASS or verdict.hold:
                yield f"{name} is {verdict.answer}: {verdict.reason}"
