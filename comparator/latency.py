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

from comparator.records import Exchange, Step


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Of one exchange, in seconds; None where undefined."""

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
