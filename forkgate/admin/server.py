"""Binding and routing of the admin API."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from pathlib import Path

from aiohttp import web

from forkgate.admin.errors import errors, json_response
from forkgate.admin.evidence import EvidenceRoutes
from forkgate.admin.port import AdminPort
from forkgate.admin.rollouts import RolloutRoutes

SOCKET_MODE = 0o600
MAX_BODY_BYTES = 65_536


class AdminError(Exception):
    """The socket cannot be listened on."""


class AdminServer:
    """Serves one judge."""

    def __init__(self, path: Path, judge: AdminPort) -> None:
        self._path = path
        self._judge = judge
        app = web.Application(middlewares=[errors], client_max_size=MAX_BODY_BYTES)
        app.router.add_get("/healthz", self._health)
        app.router.add_get("/readyz", self._ready)
        app.router.add_get("/v1/status", self._status)
        app.router.add_get("/v1/ledger", self._ledger)
        RolloutRoutes(judge).add_to(app.router)
        EvidenceRoutes(judge).add_to(app.router)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)

    async def start(self) -> None:
        """Listen. Raises AdminError when the path is taken by something that is no socket."""
        await self._runner.setup()
        await web.SockSite(self._runner, _bind(self._path)).start()

    async def close(self) -> None:
        await self._runner.cleanup()
        with contextlib.suppress(OSError):
            self._path.unlink()

    async def _health(self, _request: web.Request) -> web.Response:
        return json_response({"status": "ok"})

    async def _ready(self, _request: web.Request) -> web.Response:
        reasons = self._judge.not_ready()
        return json_response({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)

    async def _status(self, _request: web.Request) -> web.Response:
        return json_response(await self._judge.status())

    async def _ledger(self, _request: web.Request) -> web.Response:
        return json_response(self._judge.ledger())


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
