"""Binding and routing of the admin API: the owner's unix socket, and if configured a TCP address."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from forkgate.admin.audit import AuditLog
from forkgate.admin.errors import errors
from forkgate.admin.general import GeneralRoutes
from forkgate.admin.guard import Guard
from forkgate.admin.openapi import document
from forkgate.admin.port import AdminPort
from forkgate.admin.table import table
from forkgate.admin.tls import AdminError, TcpDoor
from forkgate.config.admin import AdminSection

__all__ = ["AdminError", "AdminServer"]

log = logging.getLogger(__name__)


def _clients_mistake(record: logging.LogRecord) -> bool:
    """Bytes that are no request are nobody's error here, and may hold a token: told in one line, without
    them."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError | web.RequestPayloadError):
        record.msg, record.args, record.exc_info = "an admin client sent what is no request", (), None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True


_http_log = logging.getLogger(f"{__name__}.http")
_http_log.addFilter(_clients_mistake)

SOCKET_MODE = 0o600
MAX_BODY_BYTES = 65_536
MAX_LINE_BYTES = 8_190
MAX_HEADERS = 64
AUDIT_FILE = "audit.jsonl"
RETRY_S = 1.0


class AdminServer:
    """Serves one judge."""

    def __init__(self, path: Path, judge: AdminPort, settings: AdminSection | None = None) -> None:
        """
        Args:
            path: of the unix socket; the audit log stands beside it.
            settings: who else may reach it, and how; nobody when absent.
        """
        self._path = path
        self._settings = settings = settings if settings is not None else AdminSection()
        audit = AuditLog(path.with_name(AUDIT_FILE), settings.audit_wait_s)
        self.guard = Guard(settings, audit)
        general = GeneralRoutes(judge, audit, self._view, self._document)
        self.routes = table(judge, general)
        self._runner = self._serving(keepalive_timeout=75.0)
        self._remote: web.AppRunner | None = None
        self._door: TcpDoor | None = None
        self._trouble: str | None = None
        """Why the TCP address is not listened on."""
        self._retry: asyncio.Task[None] | None = None
        if settings.listen is not None:
            # An application of its own, so that its connections are counted alone.
            self._remote = self._serving(keepalive_timeout=settings.limits.idle_s)
            self._door = TcpDoor(settings.listen, settings.limits, self._remote)

    @property
    def address(self) -> str | None:
        """Of the TCP address, as a URL; None without one."""
        return None if self._door is None else self._door.address

    async def start(self) -> None:
        """Listen. Raises AdminError when the socket's path is taken by something that is no socket.

        The TCP address is tried again until it can be had: judging matters more than being asked from afar,
        and the owner's socket is there meanwhile.
        """
        await self._runner.setup()
        await web.SockSite(self._runner, _bind(self._path)).start()
        if self._remote is not None and self._door is not None:
            await self._remote.setup()
            if not await self._open(self._door):
                self._retry = asyncio.create_task(self._open_later(self._door))

    async def _open(self, door: TcpDoor) -> bool:
        try:
            await door.start()
        except AdminError as error:
            if str(error) != self._trouble:
                log.error("the admin API is on its unix socket alone", extra={"error": str(error)})
            self._trouble = str(error)
            return False
        self._trouble = None
        log.info("the admin API listens", extra={"address": door.address})
        return True

    async def _open_later(self, door: TcpDoor) -> None:
        while True:
            await asyncio.sleep(RETRY_S)
            if await self._open(door):
                return

    async def close(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        if self._remote is not None and self._door is not None:
            self._door.stop_accepting()
            await self._remote.cleanup()
        await self._runner.cleanup()
        await self.guard.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _serving(self, *, keepalive_timeout: float) -> web.AppRunner:
        app = web.Application(middlewares=[errors], client_max_size=MAX_BODY_BYTES)
        paths = [route.path for route in self.routes]
        for route in self.routes:
            app.router.add_route(route.method, pattern(route.path, paths), self.guard.guarded(route))
        return web.AppRunner(
            app,
            access_log=None,
            logger=_http_log,
            handler_cancellation=True,
            shutdown_timeout=1.0,
            keepalive_timeout=keepalive_timeout,
            lingering_time=1.0,
            max_line_size=MAX_LINE_BYTES,
            max_field_size=MAX_LINE_BYTES,
            max_headers=MAX_HEADERS,
        )

    def _document(self) -> dict[str, Any]:
        return document(self.routes)

    def _view(self) -> dict[str, Any]:
        seq, head = self.guard.audit.head
        return {
            "socket": str(self._path),
            "address": self.address,
            "refused": dict(self.guard.refused),
            "turned_away": 0 if self._door is None else self._door.turned_away,
            "audit": {"path": str(self.guard.audit.path), "seq": seq, "head": head},
            "troubles": [*([self._trouble] if self._trouble is not None else []), *self.guard.troubles()],
        }


def pattern(path: str, paths: Sequence[str]) -> str:
    """The path for the router. A parameter at its end takes no name that another path has in that place, so
    that ``GET /v1/evidence/erase`` is the wrong method, and no capture of that name."""
    head, _, last = path.rpartition("/")
    if not last.startswith("{"):
        return path
    names = {other.rpartition("/")[2] for other in paths if other.rpartition("/")[0] == head}
    taken = "|".join(sorted(re.escape(name) for name in names if not name.startswith("{")))
    return f"{head}/{{{last[1:-1]}:(?!(?:{taken})$)[^{{}}/]+}}" if taken else path


def _bind(path: Path) -> socket.socket:
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise AdminError(f"{path}: there is a file of that name, and it is no socket")
        path.unlink()  # what a killed judge left; the judge's lock keeps a living one out
    one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        # Made private before anybody can connect: a socket that does not listen yet refuses.
        one.bind(str(path))
        os.chmod(path, SOCKET_MODE)
    except OSError as error:
        one.close()
        raise AdminError(f"{path}: cannot be listened on: {error.strerror}") from error
    return one
