"""In front of every route: who asks, whether they may, and what the audit log has of it.

A request on the unix socket is its owner's, for the file's mode lets nobody else in. One over TCP has a
token; its role decides. What is refused here never reaches a handler.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pwd
import socket
import struct
import time
from collections import Counter
from typing import Any

import orjson
from aiohttp import web

from forkgate.admin.audit import AuditEntry, AuditError, AuditLog
from forkgate.admin.errors import json_response, refusal
from forkgate.admin.port import Refused
from forkgate.admin.roles import Caller, roles_for
from forkgate.admin.routes import CALLER, WHO, Handler, Route
from forkgate.admin.tokens import Failures, Tokens, given_token
from forkgate.brief import brief
from forkgate.config.admin import AdminSection, Role

log = logging.getLogger(__name__)

MAX_WHY_CHARS = 2_000
MAX_TARGET_CHARS = 1_000
DENIALS_PER_MINUTE = 10
"""Refusals for want of a role that the audit log takes of one caller; all are counted."""
RETRY_LATE_S = 1.0


class Guard:
    """One admin API's."""

    def __init__(self, settings: AdminSection, audit: AuditLog) -> None:
        self._settings = settings
        self.audit = audit
        self.tokens = Tokens(settings.tokens)
        self.refused: Counter[str] = Counter()
        """Requests by status: ``401``, ``403``, ``429``, and ``503`` where the audit log refused its line."""
        self._failures = Failures(settings.limits.failures_per_minute, time.monotonic)
        self._denials = Failures(DENIALS_PER_MINUTE, time.monotonic)
        self._retry: asyncio.Task[None] | None = None

    def guarded(self, route: Route) -> Handler:
        """The route's handler behind the guard."""

        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                caller = self._caller(request, route)
                if caller is not None:
                    request[WHO], request[CALLER] = caller.name, caller
                await self._read_body(request)
                if route.action is None or caller is None:
                    _check_query(request, route)
                    return await route.handler(request)
                await self._check_role(request, route, caller)
                _check_query(request, route)
                if route.acts:
                    return await self._acted(request, route, caller)
                await self._note_read(request, route, caller)
                return await route.handler(request)
            except Refused as error:
                if error.status in (401, 403, 429):
                    self.refused[str(error.status)] += 1
                raise

        return handle

    async def close(self) -> None:
        """Write what is late, if the disk takes it by now."""
        if self._retry is not None:
            self._retry.cancel()
        with contextlib.suppress(AuditError):
            await self.audit.flush()
        if self.audit.late:
            log.error("lines of the audit log are lost with this judge", extra={"lines": self.audit.late})
        await self.audit.close()

    def troubles(self) -> list[str]:
        """What a person should look at, in words."""
        found = self.tokens.troubles()
        if self.audit.trouble is not None:
            found.append(f"the audit log cannot be written, and actions are refused: {self.audit.trouble}")
        if self.audit.late or self.audit.lost:
            found.append(
                f"{self.audit.late} lines of the audit log wait for the disk, {self.audit.lost} are lost"
            )
        return found

    # -- who ----------------------------------------------------------------------------------------------

    def _caller(self, request: web.Request, route: Route) -> Caller | None:
        transport = request.transport
        if transport is None:
            raise Refused(400, "the connection is gone")
        one = transport.get_extra_info("socket")
        if one.family == socket.AF_UNIX:
            return _owner(one)
        peer = transport.get_extra_info("peername")
        if peer is None:  # it was reset before it was accepted
            raise Refused(400, "the connection is gone")
        source = str(peer[0])
        wait_s = self._failures.wait_s(source)
        if wait_s > 0 and route.needs:
            raise Refused(
                429,
                f"too many wrong tokens came from {source}, try again in {wait_s:.0f} s",
                code="too_many_failures",
                headers={"retry-after": str(int(wait_s) + 1)},
            )
        given = given_token(request.headers.get("authorization"))
        if given is None:
            if not route.needs:
                return None
            if "authorization" in request.headers:
                self._failures.note(source)
            raise _unauthorized("a token is needed: send `Authorization: Bearer TOKEN`")
        found = self.tokens.owner(given, time.time())
        if isinstance(found, str):
            self._failures.note(source)
            if not route.needs:
                return None
            log.warning("an admin request was refused", extra={"peer": source, "why": found})
            raise _unauthorized(found)
        caller = Caller(name=found.name, role=found.role, via=_via(transport), peer=_peer(transport))
        if not caller.may(*route.needs) and route.action is None:
            raise _forbidden(route, caller)
        return caller

    async def _check_role(self, request: web.Request, route: Route, caller: Caller) -> None:
        if caller.may(*route.needs):
            return
        refused = _forbidden(route, caller)
        if self._denials.wait_s(caller.name) == 0:
            self._denials.note(caller.name)
            with contextlib.suppress(AuditError):
                await self.audit.write(
                    _entry(request, route, caller, "denied", status=403, result=str(refused))
                )
        raise refused

    # -- what ---------------------------------------------------------------------------------------------

    async def _read_body(self, request: web.Request) -> None:
        """Here, so that a client that trickles holds up nothing but itself; handlers find it read."""
        if not request.can_read_body:
            return
        try:
            async with asyncio.timeout(self._settings.limits.body_s):
                await request.read()
        except TimeoutError:
            raise Refused(
                408, f"the body did not come within {self._settings.limits.body_s:g} s", headers=_CLOSE
            ) from None
        except web.RequestPayloadError as error:
            raise Refused(400, f"the body cannot be read: {error}", headers=_CLOSE) from None

    async def _note_read(self, request: web.Request, route: Route, caller: Caller) -> None:
        try:
            await self.audit.write(_entry(request, route, caller, "read"))
        except AuditError as error:
            self.refused["503"] += 1
            raise _unlogged(route, error) from error

    async def _acted(self, request: web.Request, route: Route, caller: Caller) -> web.StreamResponse:
        asked = _entry(request, route, caller, "asked", why=await _why(request))
        number, trouble = 0, None
        try:
            number = (await self.audit.write(asked)).seq
        except AuditError as error:
            if not route.unlogged_too:
                self.refused["503"] += 1
                raise _unlogged(route, error) from error
            trouble = str(error)
            log.error("a rollback goes through without its line in the audit log", extra={"why": trouble})
            self._later(asked)
        # What was begun comes to its end and into the log, also when the client has gone.
        work = asyncio.ensure_future(self._carry_out(request, route, caller, number))
        response = await asyncio.shield(work)
        return response if trouble is None else _told(response, trouble)

    async def _carry_out(
        self, request: web.Request, route: Route, caller: Caller, number: int
    ) -> web.StreamResponse:
        try:
            response = await route.handler(request)
        except BaseException as error:
            status = refusal(error)[0] if isinstance(error, Exception) else 0
            await self._note_done(request, route, caller, number, status, str(error) or type(error).__name__)
            raise
        told = _body(response)
        await self._note_done(request, route, caller, number, response.status, "ok", told.get("epoch"))
        return response

    async def _note_done(
        self,
        request: web.Request,
        route: Route,
        caller: Caller,
        number: int,
        status: int,
        result: str,
        epoch: Any = None,
    ) -> None:
        entry = _entry(
            request,
            route,
            caller,
            "done",
            about=number,
            status=status,
            result=result[:MAX_WHY_CHARS],
            epoch=epoch if isinstance(epoch, int) else 0,
        )
        try:
            await self.audit.write(entry)
        except AuditError:
            self._later(entry)

    def _later(self, entry: AuditEntry) -> None:
        self.audit.later(entry)
        if self._retry is None or self._retry.done():
            self._retry = asyncio.get_running_loop().create_task(self._write_late())

    async def _write_late(self) -> None:
        while self.audit.late:
            await asyncio.sleep(RETRY_LATE_S)
            with contextlib.suppress(AuditError):
                await self.audit.flush()


def _check_query(request: web.Request, route: Route) -> None:
    """A parameter that nobody reads was meant to change something: refused, and so is one said twice."""
    known = [one.name for one in route.query]
    for name in request.query:
        if name not in known:
            there = f"there are {', '.join(known)}" if known else "this takes none"
            raise Refused(400, f"{name}: unknown parameter, {there}", param=brief(name))
        if len(request.query.getall(name)) > 1:
            raise Refused(400, f"{name}: stands here more than once, say it once", param=name)


def _entry(
    request: web.Request,
    route: Route,
    caller: Caller,
    kind: str,
    *,
    why: str = "",
    about: int = 0,
    status: int = 0,
    result: str = "",
    epoch: int = 0,
) -> AuditEntry:
    return AuditEntry(
        unix_s=time.time(),
        kind=kind,
        who=caller.name,
        role=caller.role.value,
        via=caller.via,
        peer=caller.peer,
        action=route.action or "",
        target=request.path_qs[:MAX_TARGET_CHARS],
        why=why,
        about=about,
        status=status,
        result=result,
        epoch=epoch,
    )


async def _why(request: web.Request) -> str:
    """The reason in the body, as far as there is one; the handler judges it."""
    try:
        body = orjson.loads(await request.read())
    except orjson.JSONDecodeError:
        return ""
    reason = body.get("reason") if isinstance(body, dict) else None
    return reason.strip()[:MAX_WHY_CHARS] if isinstance(reason, str) else ""


def _body(response: web.StreamResponse) -> dict[str, Any]:
    if not isinstance(response, web.Response) or not isinstance(response.body, bytes):
        return {}
    try:
        told = orjson.loads(response.body)
    except orjson.JSONDecodeError:
        return {}
    return told if isinstance(told, dict) else {}


def _told(response: web.StreamResponse, trouble: str) -> web.StreamResponse:
    """The same answer, with what could not be logged in it."""
    return json_response({**_body(response), "audited": False, "audit_trouble": trouble}, response.status)


_CLOSE = {"connection": "close"}


def _unauthorized(why: str) -> Refused:
    return Refused(401, why, code="unauthorized", headers={"www-authenticate": 'Bearer realm="forkgate"'})


def _forbidden(route: Route, caller: Caller) -> Refused:
    able = " or ".join(role.value for role in roles_for(*route.needs))
    return Refused(403, f"{caller.name!r} is {caller.role.value}, and this is for {able}", code="forbidden")


def _unlogged(route: Route, error: AuditError) -> Refused:
    return Refused(
        503,
        f"{route.action}: refused, for it could not be written to the audit log: {error}",
        code="audit_unwritable",
    )


def _owner(one: socket.socket) -> Caller:
    """Who is at the other end of the unix socket, by the kernel's word."""
    with socket.socket(fileno=os.dup(one.fileno())) as real:  # an event loop's socket may be a stand-in
        raw = real.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _gid = struct.unpack("3i", raw)
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = f"uid {uid}"
    return Caller(name=name, role=Role.OWNER, via="unix", peer=f"uid {uid}, pid {pid}")


def _via(transport: asyncio.Transport) -> str:
    if transport.get_extra_info("sslcontext") is None:
        return "tcp"
    return "mtls" if transport.get_extra_info("peercert") else "tls"


def _peer(transport: asyncio.Transport) -> str:
    host, port = transport.get_extra_info("peername")[:2]
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    certificate = transport.get_extra_info("peercert")
    names = [
        value for part in (certificate or {}).get("subject", ()) for key, value in part if key == "commonName"
    ]
    names += [value for _, value in (certificate or {}).get("subjectAltName", ())]
    return f"{where}, certificate of {names[0]}" if names else where
