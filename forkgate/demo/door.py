"""The judge's admin API as the demo asks it: over the unix socket, while its own traffic runs."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import aiohttp


class AsyncDoor:
    """GET requests to one judge."""

    def __init__(self, admin_socket: Path) -> None:
        self._session = aiohttp.ClientSession(
            "http://judge", connector=aiohttp.UnixConnector(path=str(admin_socket))
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def get(self, path: str) -> Any:
        """The answer's JSON. Raises ``aiohttp.ClientError`` when the judge refuses or is not there."""
        async with self._session.get(path, raise_for_status=True) as response:
            return await response.json()

    async def ready(self) -> bool:
        """Whether the judge answers and has probed every engine."""
        try:
            await self.get("/readyz")
        except (aiohttp.ClientError, OSError):
            return False
        return True
