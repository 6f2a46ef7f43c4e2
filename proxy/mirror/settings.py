"""A rollout's ``shadow:`` section: how much is mirrored, and what it may cost.

Each limit has a drop reason, so that a capture that was not compared says which setting to raise. Ranges are
checked on construction and stand in the JSON Schema; the front door adds the path of the section, which
makes ``rollouts[0].shadow.percent: 150 is outside 0-100``.
"""

from __future__ import annotations

from typing import Annotated, get_args, get_type_hints

import msgspec

Percent = Annotated[float, msgspec.Meta(ge=0, le=100)]


class MirrorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Budgets of one rollout's shadow traffic."""

    percent: Percent = 10.0
    """Share of live requests that is copied, drawn by hash of the request ID: the same on every edge."""
    token_only_percent: Percent = 20.0
    """Share of the copies, drawn beforehand by hash, whose arms stop soon after a fork: cheap evidence about
    forks, none about lengths and latency. Drawn before the outcome is known, so it biases neither group.
    Copies drawn for control or timing are taken out of it."""
    control_percent: Percent = 10.0
    """Share of the copies, drawn beforehand by hash, that run on the baseline a second time: the A/A floor
    without which a candidate's forks say nothing, since equal environments fork too. On another endpoint of
    the pool, or after the first run where there is one endpoint only. Each adds half the price of a copy. A
    copy drawn here is never token-only."""
    replicates: Annotated[int, msgspec.Meta(ge=1, le=32)] = 1
    """Seeds that a copy at a temperature above 0 is run with, one after another; all arms share the seed of a
    replicate. More of them tell more about one prompt's distribution, at the price of a copy each, and still
    make one observation. All of them are held until the last has ended. Greedy copies run once."""
    timing_percent: Percent = 0.0
    """Share of the copies, drawn beforehand by hash, that run without logprobs on all arms, as live traffic
    does: beside live records the only evidence about latency and throughput, since making a top-k takes time.
    They tell nothing about logprobs: 0 until a policy asks for latency. Never token-only."""
    token_only_tail_tokens: Annotated[int, msgspec.Meta(ge=0, le=4_096)] = 8
    """Tokens that a token-only arm still makes after the fork: enough to read what it was about to say."""
    max_tokens: Annotated[int, msgspec.Meta(ge=1, le=1_048_576)] = 256
    """A shadow arm's output at most, in tokens; a client's smaller limit holds. Forks come early, and each
    token here is paid for twice."""
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=1_024)] = 20
    """Depth of the top-k kept for every step, the same on all arms, since asking may change tokens. 20 is
    what engines allow by default; a smaller one of either engine wins."""
    in_flight: Annotated[int, msgspec.Meta(ge=1, le=4_096)] = 8
    """Captures whose arms run at once. Full: further captures wait in the queue (``in_flight_limit`` when it
    overflows)."""
    samples_in_flight: Annotated[int, msgspec.Meta(ge=1, le=4_096)] = 8
    """Samples of suites that run at once, beside those captures: a suite of thousands must leave room for
    live traffic's copies, and they for it."""
    tokens_per_second: Annotated[float, msgspec.Meta(gt=0, le=1e9)] = 2_000.0
    """Prompt and output tokens of all arms, samples included, as a token bucket of one second's depth
    (``token_rate`` when the queue overflows for want of it). It is debited as tokens are made, so it
    overshoots by at most what is in flight, and pays that back before the next copy or replicate starts."""
    tokens_per_day: Annotated[int, msgspec.Meta(ge=1, le=10**15)] = 50_000_000
    """The same tokens, in any UTC day (``token_day``): the bill has an end."""
    tenant_share_percent: Annotated[float, msgspec.Meta(gt=0, le=100)] = 100.0
    """Most of the queue and of the day's tokens that one tenant may take (``tenant_budget``). 100 lets a
    single tenant use what nobody else wants; lower it where many share a rollout."""
    queue_items: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 256
    """Captures that wait for their turn at the judge."""
    queue_bytes: Annotated[int, msgspec.Meta(ge=1_024, le=2**40)] = 33_554_432
    """The same, in bytes of body."""
    queue_age_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 30.0
    """Longest wait (``too_old``): a copy of traffic of minutes ago no longer shares its load."""
    kv_cache_percent: Annotated[float, msgspec.Meta(gt=0, le=100)] = 90.0
    """Of its KV cache in use, above which no arm starts on an endpoint that serves live work (``pool_busy``):
    what is left belongs to requests that clients wait for. Nothing to ``shadow_endpoints``, which serve none,
    nor where an engine does not tell its use. 100 starts arms however full it is."""
    quiet_s: Annotated[float, msgspec.Meta(ge=0, le=3_600)] = 5.0
    """After live work came back to a pool by a rollback, which stops every arm there: no arm starts until no
    request has waited at it for this long. Endpoints that tell no queue are left alone for 30 s."""
    decoded_bytes: Annotated[int, msgspec.Meta(ge=1_024, le=2**30)] = 8_388_608
    """A body after gzip or deflate; more is ``unsupported``. Stops decompression bombs."""
    arm_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 120.0
    """An arm's whole life. A candidate that stalls, trickles or never ends costs this and no more."""
    arm_bytes: Annotated[int, msgspec.Meta(ge=65_536, le=2**30)] = 16_777_216
    """Text and top-k that one arm may bring; more is an invalid answer. 256 tokens with a top-20 are about
    150 kB."""

    def __post_init__(self) -> None:
        for name, meta in _RANGES.items():
            value = getattr(self, name)
            low = meta.ge if meta.ge is not None else meta.gt
            assert low is not None
            assert meta.le is not None
            if not (low <= value <= meta.le) or value == meta.gt:
                raise ValueError(
                    f"{name}: {_plain(value)} is outside {_plain(low)}-{_plain(meta.le)}"
                    + (f" ({_plain(low)} excluded)" if meta.gt is not None else "")
                )


def _plain(number: float) -> str:
    """Without an exponent where it is a whole number."""
    return str(int(number)) if float(number).is_integer() else f"{number:g}"


def _ranges() -> dict[str, msgspec.Meta]:
    hints = get_type_hints(MirrorSettings, include_extras=True)
    return {
        name: argument
        for name, hint in hints.items()
        for argument in get_args(hint)[1:]
        if isinstance(argument, msgspec.Meta)
    }


_RANGES = _ranges()
