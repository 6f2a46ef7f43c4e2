"""``evidence replay``: run a stored pair's arms again, from what is stored alone, and say whether the fork
stands. Any pair of a capture: of any replicate, with the candidate or with the control.

Same token IDs, same explicit parameters, same seed, same logprob depth, a fresh cache salt each; both arms
at once, each on its own pool as it is now, as in the original. What is not run again is the rest of that
moment: other requests shared the engines' batches then, and a batch may decide a near tie. What is found is
told, not stored: evidence is what traffic brought.
"""

from __future__ import annotations

import asyncio
import enum
from pathlib import Path
from typing import Any

import msgspec

from comparator.compare import compare
from comparator.evidence import NO_KEYS, EvidenceReader, Keyring, Shown, StoredPair
from comparator.evidence.explain import Explanation, explain
from comparator.evidence.export import json_safe
from comparator.floor import Floors
from comparator.pair import Fork, ForkSide, Pair
from comparator.records import Arm, Exchange, ExchangeId, Outcome
from comparator.taxonomy import ForkClass
from forkgate.admin.port import Refused
from forkgate.config.model import Config
from forkgate.endpoint import Endpoint
from forkgate.fleet import Fleet
from proxy.mirror import ArmLimits, Sources, plan_again, run_arm

LIMITS = ArmLimits(timeout_s=300.0, bytes=67_108_864)
"""Of one arm. A person waits: generous."""
MAX_AT_ONCE = 2
"""Replays that run together; a person asks for one, a script must not swamp the pools."""


class Verdict(enum.StrEnum):
    STANDS = "stands"  # the same as before: the same fork, or equal again
    MOVED = "moved"  # another position, or other tokens there
    VANISHED = "vanished"  # forked then, equal now
    APPEARED = "appeared"  # equal then, forks now


NOTE = (
    "replay runs both arms at once but alone: the batches that other requests shared with them are not "
    "reproduced"
)
NEAR_TIES = (ForkClass.TIE_FLIP, ForkClass.COUPLED_FLIP)
NEAR_TIE = (
    "this fork was a near tie, which another batch alone may flip: the stored evidence stands, and this "
    "answer says only that the difference depends on the batch"
)
MEANING = {
    Verdict.VANISHED: "the fork was no near tie: its batch, or a pool that has changed since, decided it",
    Verdict.MOVED: "the arms still differ, at another place: the difference is real, its place not fixed",
    Verdict.APPEARED: "equal then, not now: a near tie in another batch, or a pool that has changed since",
}
"""What an answer other than "stands" means, in a sentence."""


class Replayer:
    """Runs stored pairs again."""

    def __init__(self, config: Config, fleet: Fleet, evidence: Path, keys: Keyring = NO_KEYS) -> None:
        self._config = config
        self._fleet = fleet
        self._evidence = evidence
        self._keys = keys
        self._room = asyncio.Semaphore(MAX_AT_ONCE)

    async def replay(self, capture_id: str, replicate: int = 0, arm: str = Arm.CANDIDATE) -> dict[str, Any]:
        """The admin API's answer.

        Args:
            capture_id: or the first characters of one.
            replicate: which of its replicates.
            arm: that is compared with the baseline, ``candidate`` or ``control``.

        Raises:
            Refused: 404 when the capture has no such pair, 409 when the pair is no longer whole, 502 when an
                engine failed.
            EvidenceError: the store cannot be read, or knows no such capture.
        """
        shown, floors = await asyncio.to_thread(self._show, capture_id)
        place = _place_of(shown, replicate, arm)
        left, right = _whole(shown, shown.pairs[place])
        left_at, right_at = self._endpoint(left), self._endpoint(right)
        left_plan = plan_again(left, self._model(left_at, left))
        right_plan = plan_again(right, self._model(right_at, right))
        async with self._room:
            new_left, new_right = await asyncio.gather(
                run_arm(left_at, left_plan, LIMITS, Sources()),
                run_arm(right_at, right_plan, LIMITS, Sources()),
            )
        for one in (new_left, new_right):
            if one.outcome is not Outcome.COMPLETED:
                raise Refused(502, f"{one.arm.value} on {one.endpoint}: {one.error}", code="engine_failed")
        before, now = compare(left, right), compare(new_left, new_right)
        verdict = judge(before.fork, now.fork)
        then = explain(shown, floors)[place]
        return {
            "capture_id": shown.capture_id,
            "replicate": replicate,
            "arm": arm,
            "verdict": verdict.value,
            "before": _told(before),
            "now": _told(now),
            "fork_class": then.fork_class,
            "fork_reason": then.fork_reason,
            "note": NOTE,
            "text": _text(verdict, before, now, then),
        }

    def _show(self, capture_id: str) -> tuple[Shown, Floors]:
        with EvidenceReader(self._evidence, self._keys) as reader:
            shown = reader.show(reader.resolve(capture_id))
            rollout = shown.pairs[0].rollout if shown.pairs else ""
            return shown, reader.floors(rollout, without=shown.capture_id)

    def _endpoint(self, exchange: Exchange) -> Endpoint:
        """The endpoint that answered then if its pool still has it, else the pool's first."""
        try:
            endpoints = self._fleet.endpoints(exchange.pool)
        except KeyError:
            raise Refused(
                409, f"the configuration has no pool {exchange.pool!r} any more", code="pool_gone"
            ) from None
        return next((one for one in endpoints if one.url == exchange.endpoint), endpoints[0])

    def _model(self, endpoint: Endpoint, original: Exchange) -> str:
        configured = self._config.pool(original.pool).engine.model
        recorded = original.facts.get("model")
        if configured is not None:
            return configured
        if recorded is not None and recorded.value is not None:
            return str(recorded.value)
        if endpoint.probe is not None and endpoint.probe.model is not None:
            return endpoint.probe.model
        raise Refused(
            502,
            f"pool {original.pool!r}: which model to ask for is unknown, set engine.model",
            code="engine_failed",
        )


def judge(before: Fork | None, now: Fork | None) -> Verdict:
    """Whether what was found then is found again. Numbers may differ; position and tokens may not."""
    if before is None:
        return Verdict.STANDS if now is None else Verdict.APPEARED
    if now is None:
        return Verdict.VANISHED
    return Verdict.STANDS if _place(before) == _place(now) else Verdict.MOVED


def _place(fork: Fork) -> tuple[int, int | None, int | None]:
    return fork.fork_index, fork.left.token_id, fork.right.token_id


def _place_of(shown: Shown, replicate: int, arm: str) -> int:
    if not shown.pairs:
        raise Refused(409, f"capture {shown.capture_id} has no finished pair to run again", code="not_whole")
    for place, row in enumerate(shown.pairs):
        if (row.replicate, row.right_arm) == (replicate, arm):
            return place
    known = ", ".join(f"{row.right_arm} {row.replicate}" for row in shown.pairs)
    raise Refused(
        404,
        f"capture {shown.capture_id} has no pair of {arm}, replicate {replicate}; it has {known}",
        code="not_found",
    )


def _whole(shown: Shown, row: StoredPair) -> tuple[Exchange, Exchange]:
    exchanges = {stored.exchange.exchange_id: stored for stored in shown.exchanges}
    left = exchanges.get(ExchangeId(row.left_exchange_id))
    right = exchanges.get(ExchangeId(row.right_exchange_id))
    if left is None or right is None or left.pruned or right.pruned:
        raise Refused(409, f"capture {shown.capture_id} was pruned, its token IDs are gone", code="not_whole")
    if left.hashed or right.hashed:
        raise Refused(
            409,
            f"capture {shown.capture_id} was kept as hashes (evidence.store), and nobody can ask for hashes: "
            "what was sent is not known any more",
            code="not_whole",
        )
    for one in (left.exchange, right.exchange):
        if not one.as_tokens:
            raise Refused(
                409,
                f"capture {shown.capture_id} went as the client's own request, whose body is not kept",
                code="not_whole",
            )
    return left.exchange, right.exchange


def _told(pair: Pair) -> dict[str, Any]:
    return {
        "fork": None if pair.fork is None else json_safe(msgspec.to_builtins(pair.fork)),
        "max_error_nats": pair.max_error_nats,
        "tokens": [len(pair.left.steps), len(pair.right.steps)],
        "set_aside": pair.set_aside.value if pair.set_aside else None,
        "set_aside_reason": pair.set_aside_reason,
    }


def _text(verdict: Verdict, before: Pair, now: Pair, then: Explanation) -> str:
    said = {
        Verdict.STANDS: "the fork stands" if before.fork is not None else "equal then, equal now",
        Verdict.MOVED: "the fork moved",
        Verdict.VANISHED: "the fork vanished: the arms are equal now",
        Verdict.APPEARED: "a fork appeared: the arms were equal then",
    }[verdict]
    lines = [said, f"  then  {_line(before)}", f"  now   {_line(now)}"]
    if then.fork_class is not None:
        lines.append(f"  class of that fork: {then.fork_class.replace('_', ' ')}, {then.fork_reason}")
    if verdict is Verdict.STANDS:
        return "\n".join(lines)
    meaning = MEANING[verdict]
    if verdict is not Verdict.APPEARED and then.fork_class in NEAR_TIES:
        meaning = NEAR_TIE
    return "\n".join([*lines, f"  {NOTE}:", f"  {meaning}"])


def _line(pair: Pair) -> str:
    error = "" if pair.max_error_nats is None else f", largest error {pair.max_error_nats:.4g} nats"
    fork = pair.fork
    if fork is None:
        return f"equal over {min(len(pair.left.steps), len(pair.right.steps))} tokens{error}"
    return f"token {fork.fork_index}: {_side(fork.left)} vs {_side(fork.right)}{error}"


def _side(side: ForkSide) -> str:
    if side.token_id is None:
        return f"{side.arm.value} ended"
    return f"{side.arm.value} {side.text!r}" if side.text else f"{side.arm.value} {side.token_id}"
