"""Values to rows and back. The only place that knows the order of columns, and which of them are sealed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from comparator.comparison import Comparison, SampleRef, Score
from comparator.evidence.codec import Content, decode_content, encode_content
from comparator.evidence.hashed import Hider
from comparator.evidence.hashes import ids_sha256
from comparator.evidence.places import (
    cluster_place,
    content_place,
    fork_place,
    journal_place,
    pair_place,
    score_place,
    settings_place,
    verdict_place,
)
from comparator.evidence.rows import (
    ComparisonDone,
    JournalRow,
    StoredComparison,
    StoredExchange,
    StoredFork,
    StoredPair,
    VerdictRow,
)
from comparator.evidence.seal import Sealer, is_sealed
from comparator.pair import Fork, ForkSeen
from comparator.records import Arm, Exchange, Fact, Outcome, Sampling, Timing

EXCHANGE_COLUMNS = (
    "exchange_id, capture_id, arm, replicate, rollout, tenant, request_id, pool, endpoint, engine, "
    "environment_digest, adapter, template_sha256, seed, temperature, top_p, top_k, max_tokens, as_tokens, "
    "token_only, outcome, error, finish_reason, stop_reason, started_unix_s, ttft_s, last_token_s, total_s, "
    "timed_tokens, prompt_tokens, output_tokens, prompt_sha256, output_sha256, settings, pruned, "
    "content_bytes, hashed"
)
EXCHANGE_SELECT = f"""
SELECT {EXCHANGE_COLUMNS}, content.blob FROM exchange LEFT JOIN content USING (id)
"""
FORK_COLUMNS = (
    "capture_id, left_arm, right_arm, replicate, rollout, tenant, fork_index, proper_prefix, left_token_id, "
    "right_token_id, left_margin_nats, right_margin_nats, max_error_nats, detail"
)
VERDICT_COLUMNS = (
    'rollout, unix_s, policy_digest, gate, answer, value, "limit", n, reason, alpha, deciding_id, acted, '
    "state, evidence_sequence, estimand, rollback_nats, promotion_nats, interval_low, "
    "interval_high, hold, verdict"
)
COMPARISON_COLUMNS = (
    "capture_id, rollout, tenant, cluster, repeat, timing, suite, suite_digest, suite_stage, sample_id, "
    "passage, sample, unix_s, incarnation, sequence, pairs, scores"
)
SCORE_COLUMNS = "capture_id, arm, replicate, question, value, error"
JOURNAL_COLUMNS = "rollout, sequence, number_before, number_after, unix_s, kind, body, plan_digest"
PAIR_SELECT = """
SELECT pair.id, pair.capture_id, pair.rollout, pair.tenant, l.request_id, l.started_unix_s,
  pair.left_exchange_id, pair.right_exchange_id, l.arm, r.arm, l.outcome, r.outcome,
  pair.fork_index, pair.proper_prefix, pair.max_error_nats, pair.set_aside, pair.set_aside_reason,
  EXISTS (SELECT 1 FROM pin WHERE pin.capture_id = pair.capture_id), l.pruned OR r.pruned,
  pair.replicate, coalesce(c.repeat, 0), coalesce(c.timing, 0), c.suite, c.sample_id, c.passage
FROM pair
LEFT JOIN comparison c ON c.capture_id = pair.capture_id
JOIN exchange l ON l.exchange_id = pair.left_exchange_id
JOIN exchange r ON r.exchange_id = pair.right_exchange_id
"""


class _Settings(msgspec.Struct, frozen=True, array_like=True):
    sampling: Sampling
    facts: dict[str, Fact]
    environment_digest: Fact
    # Of sealed ones; else they have columns of their own.
    error: str | None = None
    stop_reason: str | None = None
    prompt_sha256: str = ""
    output_sha256: str = ""


_encoder = msgspec.msgpack.Encoder()
_settings = msgspec.msgpack.Decoder(_Settings)
_fork = msgspec.msgpack.Decoder(Fork)
_sample = msgspec.msgpack.Decoder(SampleRef)


def exchange_row(
    seal: Sealer, exchange: Exchange, hider: Hider | None = None
) -> tuple[tuple[Any, ...], bytes]:
    """Values for :data:`EXCHANGE_COLUMNS`, and the content blob.

    Args:
        hider: puts keyed hashes in the place of token IDs and leaves text out.
    """
    if hider is not None:
        prompt_sha256, output_sha256 = hider.hashes(exchange)
        exchange = hider.exchange(exchange)
    plain = encode_content(exchange.prompt_token_ids, exchange.steps)
    if hider is None:
        prompt_sha256, output_sha256 = ids_sha256(exchange.prompt_token_ids), ids_sha256(exchange.token_ids)
    content = seal.seal(content_place(exchange.exchange_id), plain)
    settings, error, stop_reason, prompt_sha256, output_sha256 = settings_values(
        seal,
        exchange.exchange_id,
        _Settings(
            exchange.sampling,
            exchange.facts,
            exchange.environment_digest,
            exchange.error,
            exchange.stop_reason,
            prompt_sha256,
            output_sha256,
        ),
    )
    sampling, timing = exchange.sampling, exchange.timing
    row = (
        exchange.exchange_id,
        exchange.capture_id,
        exchange.arm.value,
        exchange.replicate,
        exchange.rollout,
        exchange.tenant,
        exchange.request_id,
        exchange.pool,
        exchange.endpoint,
        exchange.engine,
        _text(exchange.environment_digest),
        _text(exchange.facts.get("adapter")),
        _text(exchange.facts.get("template_sha256")),
        sampling.seed,
        sampling.temperature,
        sampling.top_p,
        sampling.top_k,
        sampling.max_tokens,
        exchange.as_tokens,
        exchange.token_only,
        exchange.outcome.value,
        error,
        exchange.finish_reason,
        stop_reason,
        timing.started_unix_s,
        timing.ttft_s,
        timing.last_token_s,
        timing.total_s,
        timing.tokens,
        len(exchange.prompt_token_ids),
        len(exchange.steps),
        prompt_sha256,
        output_sha256,
        settings,
        0,
        len(content),
        hider is not None,
    )
    return row, content


def settings_values(
    seal: Sealer, exchange_id: str, settings: _Settings
) -> tuple[bytes, str | None, str | None, str, str]:
    """Values of ``settings, error, stop_reason, prompt_sha256, output_sha256``: all of it in the first where
    it is sealed, each in its own column where not."""
    if seal.active:
        sealed = seal.seal(settings_place(exchange_id), _encoder.encode(settings))
        return sealed, None, None, "", ""
    open_ = [settings.sampling, settings.facts, settings.environment_digest]
    return (
        _encoder.encode(open_),
        settings.error,
        settings.stop_reason,
        settings.prompt_sha256,
        settings.output_sha256,
    )


def settings_of(
    seal: Sealer, exchange_id: str, values: tuple[bytes, str | None, str | None, str, str]
) -> _Settings:
    """From what :func:`settings_values` made."""
    stored, error, stop_reason, prompt_sha256, output_sha256 = values
    settings = _settings.decode(seal.open(settings_place(exchange_id), stored))
    if is_sealed(stored):
        return settings
    return _Settings(
        settings.sampling,
        settings.facts,
        settings.environment_digest,
        error,
        stop_reason,
        prompt_sha256,
        output_sha256,
    )


def exchange_of(seal: Sealer, row: Sequence[Any]) -> StoredExchange:
    """From a row of :data:`EXCHANGE_SELECT`."""
    settings = settings_of(seal, row[0], (row[33], row[21], row[23], row[31], row[32]))
    pruned = bool(row[34])
    content = Content(prompt_token_ids=(), steps=())
    if not pruned:
        content = decode_content(seal.open(content_place(row[0]), row[37]))
    return StoredExchange(
        exchange=Exchange(
            exchange_id=row[0],
            capture_id=row[1],
            arm=Arm(row[2]),
            replicate=row[3],
            rollout=row[4],
            tenant=row[5],
            request_id=row[6],
            pool=row[7],
            endpoint=row[8],
            engine=row[9],
            environment_digest=settings.environment_digest,
            prompt_token_ids=content.prompt_token_ids,
            sampling=settings.sampling,
            as_tokens=bool(row[18]),
            token_only=bool(row[19]),
            facts=settings.facts,
            steps=content.steps,
            finish_reason=row[22],
            stop_reason=settings.stop_reason,
            outcome=Outcome(row[20]),
            error=settings.error,
            timing=Timing(
                started_unix_s=row[24], ttft_s=row[25], last_token_s=row[26], total_s=row[27], tokens=row[28]
            ),
        ),
        pruned=pruned,
        prompt_tokens=row[29],
        output_tokens=row[30],
        prompt_sha256=settings.prompt_sha256,
        output_sha256=settings.output_sha256,
        hashed=bool(row[36]),
    )


def fork_row(
    seal: Sealer,
    capture_id: str,
    rollout: str,
    tenant: str,
    left_arm: str,
    right_arm: str,
    replicate: int,
    fork: Fork,
    hider: Hider | None = None,
) -> tuple[Any, ...]:
    """Values for :data:`FORK_COLUMNS`. The two token IDs stand there for people, where nothing is hidden."""
    shown = hider is None and not seal.active
    if hider is not None:
        fork = hider.fork(capture_id, fork)
    detail = seal.seal(fork_place(capture_id, left_arm, right_arm, replicate), _encoder.encode(fork))
    return (
        capture_id,
        left_arm,
        right_arm,
        replicate,
        rollout,
        tenant,
        fork.fork_index,
        fork.proper_prefix,
        fork.left.token_id if shown else None,
        fork.right.token_id if shown else None,
        fork.left.margin_nats,
        fork.right.margin_nats,
        fork.max_error_nats,
        detail,
    )


def fork_seen_row(seal: Sealer, seen: ForkSeen, hider: Hider | None = None) -> tuple[Any, ...]:
    """A row of ``fork`` for a fork that was seen before its pair ended."""
    return fork_row(
        seal,
        seen.capture_id,
        seen.rollout,
        seen.tenant,
        seen.left_arm.value,
        seen.right_arm.value,
        seen.replicate,
        seen.fork,
        hider,
    )


def fork_of(seal: Sealer, row: Sequence[Any]) -> StoredFork:
    """From a row in the order of :data:`FORK_COLUMNS`."""
    return StoredFork(
        capture_id=row[0],
        left_arm=row[1],
        right_arm=row[2],
        replicate=row[3],
        rollout=row[4],
        tenant=row[5],
        fork=_fork.decode(seal.open(fork_place(row[0], row[1], row[2], row[3]), row[13])),
    )


def verdict_row(seal: Sealer, verdict: VerdictRow) -> tuple[Any, ...]:
    """Values for :data:`VERDICT_COLUMNS`, which follow the struct's own order but for ``limit``'s quotes.

    A reason may quote what an engine said of a request, and a state or the whole verdict holds the reason.
    """

    def sealed(column: str, text: str) -> str | bytes | None:
        place = verdict_place(
            column, verdict.rollout, float(verdict.unix_s), verdict.gate, verdict.evidence_sequence
        )
        return seal.seal_text(place, text)

    return (
        verdict.rollout,
        verdict.unix_s,
        verdict.policy_digest,
        verdict.gate,
        verdict.answer,
        verdict.value,
        verdict.limit,
        verdict.n,
        sealed("reason", verdict.reason),
        verdict.alpha,
        verdict.deciding_id,
        verdict.acted,
        sealed("state", verdict.state),
        verdict.evidence_sequence,
        verdict.estimand,
        verdict.rollback_nats,
        verdict.promotion_nats,
        None if verdict.interval is None else verdict.interval[0],
        None if verdict.interval is None else verdict.interval[1],
        verdict.hold,
        sealed("verdict", verdict.verdict),
    )


def verdict_of(seal: Sealer, row: Sequence[Any]) -> VerdictRow:
    """From a row in the order of :data:`VERDICT_COLUMNS`."""
    *first, low, high, hold, whole = row
    interval = None if low is None or high is None else (low, high)
    where = (first[0], first[1], first[3], first[13])  # rollout, time, gate, evidence
    first[8] = seal.open_text(verdict_place("reason", *where), first[8])
    first[12] = seal.open_text(verdict_place("state", *where), first[12])
    whole = seal.open_text(verdict_place("verdict", *where), whole)
    return VerdictRow(
        **dict(zip(VerdictRow.__struct_fields__, (*first, interval, bool(hold), whole), strict=True))
    )


def comparison_row(seal: Sealer, done: ComparisonDone) -> tuple[Any, ...]:
    """Values for :data:`COMPARISON_COLUMNS`."""
    comparison, sample = done.comparison, done.comparison.sample
    return (
        comparison.capture_id,
        comparison.rollout,
        comparison.tenant,
        seal.seal_text(cluster_place(comparison.capture_id), comparison.cluster),
        comparison.repeat,
        comparison.timing,
        *(
            (None,) * 6
            if sample is None
            else (
                sample.suite,
                sample.digest,
                sample.stage,
                sample.sample_id,
                sample.passage,
                _encoder.encode(sample),
            )
        ),
        comparison.unix_s,
        done.incarnation,
        done.sequence,
        len(comparison.pairs),
        len(comparison.scores),
    )


def comparison_of(seal: Sealer, row: Sequence[Any]) -> StoredComparison:
    """From ``id`` and a row in the order of :data:`COMPARISON_COLUMNS`."""
    return StoredComparison(
        id=row[0],
        capture_id=row[1],
        rollout=row[2],
        tenant=row[3],
        cluster=seal.open_text(cluster_place(row[1]), row[4]) or "",
        repeat=bool(row[5]),
        timing=bool(row[6]),
        sample=None if row[12] is None else _sample.decode(row[12]),
        unix_s=row[13],
        incarnation=row[14],
        sequence=row[15],
        pairs=row[16],
        scores=row[17],
    )


def score_rows(seal: Sealer, comparison: Comparison, hider: Hider | None = None) -> list[tuple[Any, ...]]:
    """Values for :data:`SCORE_COLUMNS`, in the scores' order."""
    capture_id = comparison.capture_id
    rows = []
    for score in comparison.scores:
        arm, replicate, question = score.arm.value, score.replicate, score.question
        error = score.error if hider is None else hider.text(score.error)
        sealed = seal.seal_text(score_place(capture_id, arm, replicate, question), error)
        rows.append((capture_id, arm, replicate, question, score.value, sealed))
    return rows


def score_of(seal: Sealer, row: Sequence[Any]) -> Score:
    """From a row in the order of :data:`SCORE_COLUMNS`."""
    error = seal.open_text(score_place(row[0], row[1], row[2], row[3]), row[5])
    return Score(arm=Arm(row[1]), replicate=row[2], question=row[3], value=row[4], error=error)


def journal_of(seal: Sealer, row: Sequence[Any]) -> JournalRow:
    """From ``id`` and a row in the order of :data:`JOURNAL_COLUMNS`."""
    fields = dict(zip(JournalRow.__struct_fields__, row, strict=True))
    fields["body"] = seal.open(journal_place(*row[1:7]), fields["body"])
    return JournalRow(**fields)


def pair_of(seal: Sealer, row: Sequence[Any]) -> StoredPair:
    """From a row of :data:`PAIR_SELECT`."""
    fields = dict(zip(StoredPair.__struct_fields__, row, strict=True))
    place = pair_place(fields["left_exchange_id"], fields["right_exchange_id"])
    fields["set_aside_reason"] = seal.open_text(place, fields["set_aside_reason"])
    for flag in ("proper_prefix", "pinned", "pruned", "repeat", "timing"):
        fields[flag] = bool(fields[flag])
    return StoredPair(**fields)


def _text(fact: Fact | None) -> str | None:
    return None if fact is None or fact.value is None else str(fact.value)
