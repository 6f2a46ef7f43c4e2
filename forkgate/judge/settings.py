"""All that a judge process is told at its start, as JSON on its standard input."""

from __future__ import annotations

import msgspec

from forkgate.config.model import Config
from forkgate.config.policy import PolicySource
from policies.routes import RolloutName


class JudgeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One judge life. A restart within the same ``serve`` is told the same configuration and policies."""

    config: Config
    policies: dict[str, PolicySource]
    """By rollout: the policy and all files that it names, read once when the sidecar started."""
    incarnation: str
    """UUIDv7 of this process life."""
    least_epoch: int
    """Epoch of the table that the supervisor's edges use now; the judge's first table is above it."""
    rolled_back: dict[RolloutName, int] = {}
    """Rollbacks that this table announced, with their epochs: they stand, whatever the latch's file says."""
    ready_fd: int | None = None
    """A pipe; the judge writes ``ready\\n`` once edges can reach it."""
