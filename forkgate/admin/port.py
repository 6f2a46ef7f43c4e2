"""What the admin API needs from the judge behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol


class Refused(Exception):  # noqa: N818 - reads as the fact that it is
    """A request that cannot be obeyed: status, what, where, what to do."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


class AdminPort(Protocol):
    """All values are plain data, ready for JSON."""

    evidence_path: Path

    async def status(self) -> dict[str, Any]: ...

    def ledger(self) -> dict[str, Any]: ...

    def rollouts(self) -> list[dict[str, Any]]: ...

    def rollout(self, name: str) -> dict[str, Any]:
        """Raises Refused (404) for an unknown name."""
        ...

    async def lift(self, name: str, reason: str) -> dict[str, Any]:
        """Raises Refused: 404 unknown, 409 not rolled back."""
        ...

    async def replay(self, capture_id: str, replicate: int, arm: str) -> dict[str, Any]:
        """Raises Refused: 404 unknown, 409 no longer whole, 502 an engine failed."""
        ...

    def not_ready(self) -> list[str]:
        """Why the judge cannot do its work; empty when it can."""
        ...
