"""A pool's ``watch:`` section: how the old pool is kept honest while a rollout may still go back to it."""

from __future__ import annotations

import ipaddress
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta


class PoolWatchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Each live endpoint of a rollout's baseline is asked a short question, again and again, from the first
    copy until the rollout is over; and what it could carry is held against what the candidate carries. While
    the pool could not take everything back, no step is taken."""

    endpoints: tuple[str, ...] = ()
    """Where the judge finds the engines behind the pool's ``endpoints``, if it cannot reach them there.
    Absent: ``endpoints``; and ``shadow_endpoints`` where ``endpoints`` are on an edge's own machine
    (127.0.0.1) and those are not, as in the chart's sidecar mode."""
    every_s: Annotated[float, Meta(ge=0.05, le=3_600)] = 15.0
    """Between two looks. A pool that was lost is looked at every 2 s at least, and has to pass twice in a row
    before steps go on."""
    slowest_s: Annotated[float, Meta(gt=0, le=600)] = 30.0
    """A look's whole answer may take this long at an endpoint; slower is as good as gone."""
    tokens: Annotated[int, Meta(ge=1, le=64)] = 4
    """Output of one look, at the lowest priority where the engine has one, marked as a shadow."""
    kv_cache_percent: Annotated[float, Meta(gt=0, le=100)] = 90.0
    """An endpoint is full above this share of its KV cache. What is below it, over all endpoints, has to hold
    what live work holds of the candidate's caches, as if an endpoint's cache were as large on both sides."""
    capacity_requests: Annotated[int, Meta(ge=1)] | None = None
    """Requests that one endpoint can run at once, where you have measured it: the pool must then have room
    for what the candidate runs. Say it where the two pools' machines differ in memory."""


def is_loopback(url: str) -> bool:
    """Whether the URL's host is the machine that reads it. A name that is no address, but for localhost, is
    not."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
