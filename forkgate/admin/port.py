"""What the admin API needs from the judge behind it."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Any, Protocol

from comparator.evidence import Keyring


class Refused(Exception):  # noqa: N818 - reads as the fact that it is
    """A request that cannot be obeyed: status, what, where, what to do."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers


class Verb(enum.StrEnum):
    """What a person may tell a rollout."""

    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    PROMOTE = "promote"  # one step on, whatever the step is
    ROLLBACK = "rollback"
    ABORT = "abort"
    LIFT = "lift"


class KeepingPort(Protocol):
    """What may be asked of the evidence that is kept."""

    async def erase(self, scope: str, name: str, who: str, reason: str) -> dict[str, Any]:
        """Erase a ``tenant`` or a ``capture``. Raises EvidenceError: EvidenceNotFound among them."""
        ...

    async def rekey(self, limit_s: float) -> dict[str, Any]:
        """Bring values to the present key for about that long. Raises EvidenceError."""
        ...


class AdminPort(Protocol):
    """All values are plain data, ready for JSON."""

    evidence_path: Path
    evidence_keys: Keyring
    """What sealed evidence is read with."""
    keeping: KeepingPort

    async def status(self) -> dict[str, Any]: ...

    def ledger(self) -> dict[str, Any]: ...

    def rollouts(self) -> list[dict[str, Any]]: ...

    def rollout(self, name: str) -> dict[str, Any]:
        """Raises Refused (404) for an unknown name."""
        ...

    def plan(self, name: str) -> dict[str, Any]:
        """Its steps, where it stands, and what each waits for. Raises Refused (404)."""
        ...

    async def act(
        self,
        name: str,
        verb: Verb,
        *,
        reason: str,
        who: str,
        tenant: str | None = None,
        look: str | None = None,
    ) -> dict[str, Any]:
        """Tell a rollout something; journalled with who and why before it is answered.

        Args:
            tenant: with ``rollback``, the one tenant that is to go home; with ``lift``, that may leave it
                again.
            look: with ``promote``, the stage or step that is to be left, as the rollout tells it.

        Raises:
            Refused: 404 unknown; 409 with all that stands in the way, in words; 503 when the disk will not
                take what must be durable.
        """
        ...

    async def replay(self, capture_id: str, replicate: int, arm: str) -> dict[str, Any]:
        """Raises Refused: 404 unknown, 409 no longer whole, 502 an engine failed."""
        ...

    def not_ready(self) -> list[str]:
        """Why the judge cannot do its work; empty when it can."""
        ...
