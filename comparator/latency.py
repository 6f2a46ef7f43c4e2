"""How long an exchange took, as the engine's client saw it (R7). All from offsets; no clock here.

- ``ttft_s``: last request byte sent → first non-empty chunk.
- ``itl_s``: gaps between *chunks* that held tokens. A chunk may hold several tokens (speculative decoding,
  parsers), so there are at most ``tokens - 1`` gaps, and a percentile of them is not one of single tokens.
- ``tpot_s``: (last − first) / (tokens − 1), undefined under two tokens. An average over tokens, whatever the
  chunking.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import msgspec

from comparator.records import Exchange, Step, Timing


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    ttft_s: float | None
    tpot_s: float | None
    itl_s: tuple[float, ...]


def chunk_gaps_s(steps: Sequence[Step]) -> tuple[float, ...]:
    """Seconds between successive chunks; steps with one arrival time came in one chunk."""
    arrivals = [step.received_s for step in steps]
    return tuple(
        later - earlier
        for earlier, later in itertools.pairwise(arrivals)
        if later != earlier  # same chunk
    )


def latency_of(exchange: Exchange) -> Latency:
    """Latency of one exchange; fields are None where undefined (no token, one token)."""
    return Latency(
        ttft_s=exchange.timing.ttft_s,
        tpot_s=exchange.timing.tpot_s,
        itl_s=chunk_gaps_s(exchange.steps),
    )


def timing_of(steps: Sequence[Step], *, started_unix_s: float, total_s: float) -> Timing:
    """The timing of a stream from its steps' arrival offsets."""
    return Timing(
        started_unix_s=started_unix_s,
        ttft_s=steps[0].received_s if steps else None,
        last_token_s=steps[-1].received_s if steps else None,
        total_s=total_s,
        tokens=len(steps),
    )
