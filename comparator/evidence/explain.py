"""One comparison in words and numbers, for ``forkgate evidence show``. Pure.

:func:`explain` makes the machine's form from what the store shows; :mod:`comparator.evidence.words` the
person's.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from comparator.compare import DIGEST_BY, compare
from comparator.comparison import SampleRef, Score
from comparator.evidence.rows import Shown, StoredExchange, StoredFork, StoredPair
from comparator.evidence.trace import Sameness, Trace, trace_pair
from comparator.floor import Floor, Floors, Found
from comparator.outcomes import OutcomeDifference, compare_outcomes
from comparator.pair import Fork, Pair, SetAside
from comparator.precision import declared_precision, spacing_nats
from comparator.records import Arm, Exchange, Step
from comparator.taxonomy import Allowance, classify_fork

CONTEXT_TOKENS = 24
"""Tokens shown before the fork, and after it on each side."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One arm of an explained pair."""

    arm: str
    pool: str
    endpoint: str
    engine: str
    environment_digest: str
    environment_by: str | None
    """How it is known, where the answer itself did not tell it."""
    outcome: str
    error: str | None
    finish_reason: str | None
    stop_reason: str | None
    output_tokens: int
    ttft_s: float | None
    tpot_s: float | None
    at_fork: str | None
    """Text of the token at the fork; None when the arm had ended or its steps were pruned."""
    after: str | None
    """Text of the tokens after it."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """One pair of one capture."""

    capture_id: str
    rollout: str
    tenant: str
    """Empty for a sample of a suite."""
    replicate: int
    repeat: bool
    """Its prompt was met before in this rollout."""
    timing: bool
    sample: SampleRef | None
    """Which frozen sample was asked; None for live traffic."""
    scores: tuple[Score, ...]
    """Of these two arms."""
    request_id: str
    started_unix_s: float
    pinned: str | None
    pruned: bool
    hashed: bool
    """Keyed hashes stand in the place of token IDs, and no text was kept."""
    set_aside: str | None
    set_aside_reason: str | None
    left: Side
    right: Side
    ends: OutcomeDifference
    """How the two arms ended, side by side; lengths also where steps were pruned."""
    fork: Fork | None
    fork_class: str | None
    """Of the fork, by precision as the logprobs show it and the noise floor below. None without a fork or a
    comparable pair."""
    fork_reason: str | None
    floor: Floor | None
    """What the baseline differs from itself by, on this road and in this band, from other stored controls of
    the rollout. None where :attr:`fork_class` is, or where there is none."""
    floor_missing: str | None
    """Why there is none."""
    before: str | None
    """What both arms said before the fork, its last tokens; all of it without a fork."""
    max_error_nats: float | None
    token_texts: dict[int, str]
    """Texts of the IDs in either top-k, as far as the streams themselves tell them."""
    traces: tuple[Trace, ...]
    stored_matches_recomputed: bool | None
    """The pair computed again from the stored exchanges is the stored one; None where pruned."""
    replay: str | None
    """The command that runs this fork's arms again. None without a fork, and where a replay would be refused:
    pruned, kept as hashes, or sent as the client's own request."""


def explain(shown: Shown, floors: Floors | None = None) -> tuple[Explanation, ...]:
    """One explanation a stored pair, in order; none when the judge was killed before a pair was finished.

    Args:
        shown: what the store knows of the capture.
        floors: of the rollout's other captures (:meth:`EvidenceReader.floors`); without them no fork is
            excused by noise.
    """
    floors = Floors() if floors is None else floors
    exchanges = {stored.exchange.exchange_id: stored for stored in shown.exchanges}
    return tuple(
        _explain(shown, row, exchanges[row.left_exchange_id], exchanges[row.right_exchange_id], floors)  # type: ignore[index]
        for row in shown.pairs
    )


def _explain(
    shown: Shown, row: StoredPair, left: StoredExchange, right: StoredExchange, floors: Floors
) -> Explanation:
    hashed = left.hashed or right.hashed
    whole = (
        left.exchange.as_tokens and right.exchange.as_tokens and not (left.pruned or right.pruned or hashed)
    )
    fork = _fork_of(shown.forks, row)
    pruned = left.pruned or right.pruned
    pair = _pair_of(row, fork, left.exchange, right.exchange)
    index = None if fork is None else fork.fork_index
    attribution = found = None
    if fork is not None and pair.valid:
        found = floors.of(pair)
        allowance = _allowance(left.exchange, right.exchange, found)
        attribution = classify_fork(fork, left.exchange.sampling, allowance)
    return Explanation(
        capture_id=row.capture_id,
        rollout=row.rollout,
        tenant=row.tenant,
        replicate=row.replicate,
        repeat=row.repeat,
        timing=row.timing,
        sample=None if shown.comparison is None else shown.comparison.sample,
        scores=tuple(
            score
            for score in shown.scores
            if score.replicate == row.replicate and score.arm in (row.left_arm, row.right_arm)
        ),
        request_id=row.request_id,
        started_unix_s=row.started_unix_s,
        pinned=shown.pinned,
        pruned=pruned,
        hashed=hashed,
        set_aside=row.set_aside,
        set_aside_reason=row.set_aside_reason,
        left=_side(left, None if hashed else index),
        right=_side(right, None if hashed else index),
        ends=_ends(left, right),
        fork=fork,
        fork_class=None if attribution is None else attribution.fork_class.value,
        fork_reason=None if attribution is None else attribution.reason,
        floor=None if found is None or found.missing is not None else found.floor,
        floor_missing=None if found is None else found.missing,
        before=None if hashed else _before(left.exchange.steps or right.exchange.steps, index),
        max_error_nats=row.max_error_nats,
        token_texts=_texts(fork, left.exchange.steps, right.exchange.steps),
        traces=trace_pair(pair, pruned=pruned),
        stored_matches_recomputed=None if pruned else _holds(pair),
        replay=_replay(row) if row.fork_index is not None and whole else None,
    )


def _fork_of(forks: Sequence[StoredFork], row: StoredPair) -> Fork | None:
    if row.fork_index is None:
        return None
    wanted = (row.left_arm, row.right_arm, row.replicate)
    return next((f.fork for f in forks if (f.left_arm, f.right_arm, f.replicate) == wanted), None)


def _replay(row: StoredPair) -> str:
    words = ["forkgate evidence replay", row.capture_id]
    if row.right_arm != Arm.CANDIDATE:
        words.append(f"--arm {row.right_arm}")
    if row.replicate:
        words.append(f"--replicate {row.replicate}")
    return " ".join(words)


def _pair_of(row: StoredPair, fork: Fork | None, left: Exchange, right: Exchange) -> Pair:
    """The pair as it was stored, whatever has been pruned since."""
    return Pair(
        capture_id=row.capture_id,
        left=left,
        right=right,
        fork=fork,
        max_error_nats=row.max_error_nats,
        set_aside=None if row.set_aside is None else SetAside(row.set_aside),
        set_aside_reason=row.set_aside_reason,
    )


def _allowance(left: Exchange, right: Exchange, found: Found) -> Allowance:
    spacings = [spacing_nats(declared_precision(one), one.steps) for one in (left, right)]
    return Allowance(spacing_nats=max(spacings), floor=found.floor)


def _holds(stored: Pair) -> bool:
    again = compare(stored.left, stored.right)
    return (again.fork, again.max_error_nats, again.set_aside) == (
        stored.fork,
        stored.max_error_nats,
        stored.set_aside,
    )


def _ends(left: StoredExchange, right: StoredExchange) -> OutcomeDifference:
    ends = compare_outcomes(left.exchange, right.exchange)
    return msgspec.structs.replace(
        ends,
        left_tokens=None if ends.left_tokens is None else left.output_tokens,
        right_tokens=None if ends.right_tokens is None else right.output_tokens,
    )


def _by_another(exchange: Exchange) -> str | None:
    how = exchange.facts.get(DIGEST_BY)
    return None if how is None or how.value in (None, "answer") else str(how.value)


def _side(stored: StoredExchange, fork_index: int | None) -> Side:
    exchange = stored.exchange
    digest = exchange.environment_digest
    steps = exchange.steps
    at_fork = after = None
    if fork_index is not None and fork_index < len(steps):
        at_fork = text_of(steps[fork_index])
        after = "".join(map(text_of, steps[fork_index + 1 : fork_index + 1 + CONTEXT_TOKENS]))
    return Side(
        arm=exchange.arm.value,
        pool=exchange.pool,
        endpoint=exchange.endpoint,
        engine=exchange.engine,
        environment_digest=str(digest.value) if digest.value is not None else f"unknown: {digest.unknown}",
        environment_by=_by_another(exchange),
        outcome=exchange.outcome.value,
        error=exchange.error,
        finish_reason=exchange.finish_reason,
        stop_reason=exchange.stop_reason,
        output_tokens=stored.output_tokens,
        ttft_s=exchange.timing.ttft_s,
        tpot_s=exchange.timing.tpot_s,
        at_fork=at_fork,
        after=after,
    )


def _before(steps: Sequence[Step], fork_index: int | None) -> str | None:
    if not steps:
        return None
    shared = steps if fork_index is None else steps[:fork_index]
    cut = "…" if len(shared) > CONTEXT_TOKENS else ""
    return cut + "".join(map(text_of, shared[-CONTEXT_TOKENS:]))


def text_of(step: Step) -> str:
    """The token's text, or its ID in brackets where the engine gave none."""
    return step.text if step.text is not None else f"⟨{step.token_id}⟩"


def _texts(fork: Fork | None, *streams: Sequence[Step]) -> dict[int, str]:
    if fork is None:
        return {}
    wanted = {*fork.left.top_ids, *fork.right.top_ids, fork.left.token_id, fork.right.token_id}
    known: dict[int, str] = {}
    for steps in streams:
        for step in steps:
            if step.token_id in wanted and step.text:
                known.setdefault(step.token_id, step.text)
    for side in (fork.left, fork.right):
        if side.token_id is not None and side.text:
            known[side.token_id] = side.text
    return known


__all__ = ["Explanation", "Sameness", "Side", "Trace", "explain", "text_of"]
