"""Where shadow arms run: a pool's endpoints, and what their probes found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from comparator.records import Digest, Fact
from engines.base import (
    Capability,
    Engine,
    EngineInvalid,
    EngineRefused,
    EngineTimeout,
    EngineUnavailable,
    Probe,
)
from proxy.mirror.settings import MirrorSettings


class ShadowEndpoint(Protocol):
    """One endpoint, as the judge watches it."""

    @property
    def engine(self) -> Engine: ...

    @property
    def probe(self) -> Probe | None:
        """What its last successful probe found; None before the first."""
        ...

    @property
    def error(self) -> str | None:
        """Why it was not probed successfully, last time, or why an arm could not use it since."""
        ...

    @property
    def environment(self) -> Fact:
        """Digest of the environment that answered there last, whatever answer or probe told it, or why it is
        unknown."""
        ...

    @property
    def environment_in_answers(self) -> bool:
        """Its answers tell digests, so that one that tells none is vouched for by nobody."""
        ...

    def answered(self) -> None:
        """An arm, or a reading of its load, got an answer just now."""
        ...

    def not_answering(self, why: str) -> None:
        """An arm, or a reading of its load, got none: it should be probed soon."""
        ...


def note_end(endpoint: ShadowEndpoint, error: Exception | None) -> None:
    """Tell an endpoint's watcher what a call to it showed: that it lives, or that it gave no answer.

    A refusal and an invalid answer are answers. One that came too late may be load alone: the probe that
    follows will tell.
    """
    if isinstance(error, EngineUnavailable | EngineTimeout):
        endpoint.not_answering(str(error))
    elif error is None or isinstance(error, EngineRefused | EngineInvalid):
        endpoint.answered()


class ShadowPool(msgspec.Struct, frozen=True, kw_only=True):
    """One side of a comparison."""

    name: str
    endpoints: tuple[ShadowEndpoint, ...]
    dedicated: bool = False
    """They serve no live work (``shadow_endpoints``): shadows need not wait for a lull."""
    declared_digest: Digest | None = None
    """The environment that answers there, as declared; None declares none."""
    compared_digest: Callable[[], Digest | None] = lambda: None
    """Where none is declared: the environment that this comparison began with, once one was told. Answers of
    another are not averaged with its own."""


class ShadowRollout(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison to be made of captured traffic."""

    name: str
    baseline: ShadowPool
    candidate: ShadowPool
    settings: MirrorSettings
    global_seed: str
    """Keys every derived seed; 64 bytes at most."""


def logprobs_depth(asked: int, probes: Sequence[Probe | None]) -> int:
    """The top-k that every arm can give: the same on all, since asking may change tokens."""
    for probe in probes:
        if probe is not None:
            asked = min(asked, probe.max_logprobs if Capability.LOGPROBS in probe.has else 0)
    return asked
