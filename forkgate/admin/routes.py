"""What a route of the admin API is: a row of the one table that is served, guarded, logged and documented."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from forkgate.admin.roles import Caller, Need

WHO = web.RequestKey("who", str)
"""The caller's name, for whoever journals an act."""
CALLER = web.RequestKey("caller", Caller)
"""Missing where nobody was asked for."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Query:
    """One parameter of a query string."""

    name: str
    about: str
    kind: str = "string"
    """Of JSON Schema: ``string``, ``integer``, ``boolean``."""
    choices: tuple[str, ...] = ()
    pattern: str | None = None
    least: int | None = None
    most: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """One row."""

    method: str
    path: str
    handler: Handler
    summary: str
    """One sentence; the document and docs/admin-api.md say the same."""
    needs: tuple[Need, ...]
    """Empty: anybody who reaches the address."""
    answer: Any
    """Type of the answer's JSON, for the document."""
    query: tuple[Query, ...] = ()
    body: Any = None
    """Type of the body's JSON; None: a body is not looked at."""
    statuses: dict[int, str] | None = None
    """Answers beyond those that follow from the rest of the row, with their meaning."""
    lines: bool = False
    """The answer is NDJSON, an object a line."""
    action: str | None = None
    """Under which name the audit log has it; None: it is not logged."""
    unlogged_too: bool = False
    """It happens even where it cannot be logged: a rollback."""

    @property
    def acts(self) -> bool:
        """It changes something, so that the log has it before and after."""
        return Need.STEP in self.needs or self.method != "GET"
