"""Could a pool take everything back? The rule, pure: what was seen of its endpoints, against what the
candidate carries now.

Shadows leave the pool when live work comes back (:meth:`proxy.mirror.Mirror.yield_pool`), so their share of
what runs and waits is left out on both sides. An engine does not tell whether a shadow runs or waits: where
fewer requests wait than there are shadows, all that wait would run once those had left. Nor does it tell the
use of its KV cache by request, so a shadow is taken to hold as much of it as any other request there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from forkgate.config.pool_watch import PoolWatchSettings


class EndpointSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One look at one endpoint."""

    url: str
    trouble: str | None = None
    """Why it could take nothing, in words."""
    took_s: float | None = None
    """Its whole answer; None where it was not asked, or gave none."""
    running: int | None = None
    """Requests; None where it does not tell."""
    waiting: int | None = None
    kv_cache_usage: float | None = None
    """0-1."""
    ours: int = 0
    """Shadow arms among those that run or wait."""

    @property
    def live(self) -> int | None:
        """Requests that are no shadows, waiting ones among them."""
        return None if self.running is None else max(0, self.running + (self.waiting or 0) - self.ours)

    @property
    def queued(self) -> int:
        """Requests that would wait even if every shadow left."""
        return max(0, (self.waiting or 0) - self.ours)

    @property
    def live_kv(self) -> float | None:
        """What those hold of its KV cache, 0-1."""
        if self.kv_cache_usage is None or self.live is None:
            return self.kv_cache_usage
        return self.kv_cache_usage * min(1.0, self.live / self.running) if self.running else 0.0


def in_the_way(
    settings: PoolWatchSettings, pool: Sequence[EndpointSeen], candidate: Sequence[EndpointSeen]
) -> tuple[str, ...]:
    """Why ``pool`` could not take back what ``candidate`` carries, a sentence each; empty: it could."""
    return tuple(_reasons(settings, pool, candidate))


def room(settings: PoolWatchSettings, pool: Sequence[EndpointSeen], candidate: Sequence[EndpointSeen]) -> str:
    """What is free and what is needed, in words, as far as anybody tells."""
    said = []
    free, needed = _requests(settings, pool, candidate)
    if free is not None:
        said.append(f"room for {free} requests, the candidate runs {needed}")
    free_kv, needed_kv = _caches(settings, pool, candidate)
    if free_kv is not None and needed_kv is not None:
        said.append(f"{free_kv:.0%} of one KV cache is free, the candidate's live work holds {needed_kv:.0%}")
    return "; ".join(said) or "its engines do not tell what they could carry"


def _reasons(
    settings: PoolWatchSettings, pool: Sequence[EndpointSeen], candidate: Sequence[EndpointSeen]
) -> Iterator[str]:
    limit = settings.kv_cache_percent / 100
    for one in pool:
        if one.trouble is not None:
            yield one.trouble
        elif one.queued:
            yield f"{one.url} has {one.queued} requests waiting"
        elif one.live_kv is not None and one.live_kv > limit:
            yield f"{one.url} uses {one.live_kv:.0%} of its KV cache for live work, more than {limit:.0%}"
    free, needed = _requests(settings, pool, candidate)
    if free is not None and needed is not None and free < needed:
        yield f"it has room for {free} more requests, and the candidate runs {needed}"
    free_kv, needed_kv = _caches(settings, pool, candidate)
    if free_kv is not None and needed_kv is not None and free_kv < needed_kv:
        yield (
            f"{free_kv:.0%} of one endpoint's KV cache is free in all, and the candidate's live work holds "
            f"{needed_kv:.0%} of its own"
        )


def _requests(
    settings: PoolWatchSettings, pool: Sequence[EndpointSeen], candidate: Sequence[EndpointSeen]
) -> tuple[int | None, int | None]:
    """(free, needed), in requests; None where it is not known."""
    runs = [one.live for one in candidate]
    if settings.capacity_requests is None or any(one is None for one in runs):
        return None, None
    free = 0
    for one in pool:
        if one.trouble is None:
            free += max(0, settings.capacity_requests - (one.live or 0))
    return free, sum(one or 0 for one in runs)


def _caches(
    settings: PoolWatchSettings, pool: Sequence[EndpointSeen], candidate: Sequence[EndpointSeen]
) -> tuple[float | None, float | None]:
    """(free, needed), in caches of one endpoint; None where anybody does not tell."""
    usable = [one.live_kv for one in pool if one.trouble is None]
    held = [one.live_kv for one in candidate]
    if not usable or any(one is None for one in (*usable, *held)):
        return None, None
    limit = settings.kv_cache_percent / 100
    return sum(max(0.0, limit - (one or 0.0)) for one in usable), sum(one or 0.0 for one in held)
