"""Answers of the admin API as types, for its document.

Where an answer is made of values that other rooms own (a pair, a capture), those are the type. Where it is
plain data made for people (a rollout, the status), what tools may rely on stands here; there is more in it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from comparator.evidence import Shown, StoredPair


class ErrorObject(msgspec.Struct, frozen=True, kw_only=True):
    """A refusal, in the shape of OpenAI's APIs."""

    message: str
    """What, where, what to do."""
    type: str
    """``invalid_request_error``, ``authentication_error``, ``permission_error``, ``rate_limit_error`` or
    ``server_error``."""
    param: str | None
    code: str | None


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Every refusal."""

    error: ErrorObject


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The judge's event loop answers."""

    status: str


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """Whether every engine has answered a probe."""

    ready: bool
    reasons: list[str]
    """Why not; empty for a caller without a token."""


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """captured = compared + dropped + in flight."""

    captured: int
    compared: int
    dropped: dict[str, int]
    in_flight: int
    balanced: bool


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The sidecar at a glance."""

    version: str
    sidecar: str
    epoch: int
    home: str
    routes: dict[str, str]
    pools: list[dict[str, Any]]
    edges: list[dict[str, Any]]
    ledger: Ledger
    rollouts: list[Rollout]
    troubles: list[str]
    """What a person should look at, in words."""
    admin: dict[str, Any]
    """Address, refusals, and the audit log's head."""


class Rollout(msgspec.Struct, frozen=True, kw_only=True):
    """Where one migration stands."""

    name: str
    state: str
    look: str
    """The present stage or step, by a name that no other one has: for a promote that is not to move twice."""
    held: str | None
    baseline: str
    candidate: str
    pairs: int
    forks: int
    verdicts: list[dict[str, Any]]
    latched: dict[str, Any] | None
    checks: list[dict[str, Any]]
    """What it starts with; ``progress`` of the one that runs: ``answers`` there of ``wanted``, ``elapsed_s``,
    what it is ``waiting`` for."""
    too_early: list[str]
    """While it is rolled back or held: endpoints that do not answer, in words. A lift should await them."""
    shadow: dict[str, Any] | None
    """Its copies: ``dropped`` by reason and ``refused`` by what stood in the way, since the judge started."""
    other_drops: dict[str, int]
    """The rest of the ledger's drops, by reason: at edges, or in an earlier life of the judge."""


class Rollouts(msgspec.Struct, frozen=True, kw_only=True):
    """All of them."""

    rollouts: list[Rollout]


class Acted(msgspec.Struct, frozen=True, kw_only=True):
    """What a rollout is after a person told it something."""

    rollout: Rollout
    epoch: int
    """Route table under which it holds."""
    troubles: list[str]
    """What whoever did it should know, in words: a rollback that is not durable yet, a start or a lift that
    came before an endpoint could be probed, so that the rollout may be held for what is found there."""


class ListedPair(StoredPair, frozen=True, kw_only=True):
    """A pair, and what came of it in words."""

    summary: str


class Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """Pairs, newest first."""

    pairs: list[ListedPair]
    cursor: str | None


class ShownCapture(Shown, frozen=True, kw_only=True):
    """All that the store knows of one capture, and what it means."""

    explanations: list[dict[str, Any]]
    text: str


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a stored fork stands."""

    capture_id: str
    replicate: int
    arm: str
    verdict: str
    """``stands``, ``moved``, ``vanished`` or ``appeared``."""
    text: str


class AuditLines(msgspec.Struct, frozen=True, kw_only=True):
    """The last lines of the audit log, oldest first."""

    entries: list[dict[str, Any]]
    seq: int
    """Of the last line."""
    head: str
    """Its hash."""
