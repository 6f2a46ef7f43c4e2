"""Answers about the whole sidecar, about the API itself, and verdicts for other tools."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web

from forkgate.admin.audit import AuditLog, read_entries, unsealed
from forkgate.admin.errors import json_response
from forkgate.admin.port import AdminPort, Refused
from forkgate.admin.routes import CALLER
from forkgate.admin.verdict import verdict_of
from policies.verdict import Answer

MAX_AUDIT_LINES = 1_000
DEFAULT_AUDIT_LINES = 100
_MET = {
    "pass": {Answer.PASS},
    "fail": {Answer.FAIL},
    "not_fail": {Answer.PASS, Answer.INCONCLUSIVE},
}


class GeneralRoutes:
    """What has no room of its own."""

    def __init__(
        self,
        judge: AdminPort,
        audit: AuditLog,
        view: Callable[[], dict[str, Any]],
        document: Callable[[], dict[str, Any]],
    ) -> None:
        """
        Args:
            view: the API as the status shows it.
            document: the OpenAPI document.
        """
        self._judge = judge
        self._audit = audit
        self._view = view
        self._document = document

    async def health(self, _request: web.Request) -> web.Response:
        return json_response({"status": "ok"})

    async def ready(self, request: web.Request) -> web.Response:
        reasons = self._judge.not_ready()
        # Reasons name engines; a load balancer's probe needs the status alone.
        told = reasons if CALLER in request else []
        return json_response({"ready": not reasons, "reasons": told}, 503 if reasons else 200)

    async def document(self, _request: web.Request) -> web.Response:
        return json_response(self._document())

    async def status(self, _request: web.Request) -> web.Response:
        status, view = await self._judge.status(), self._view()
        troubles = [*status.get("troubles", []), *view.pop("troubles")]
        return json_response({**status, "admin": view, "troubles": troubles})

    async def ledger(self, _request: web.Request) -> web.Response:
        return json_response(self._judge.ledger())

    async def audit(self, request: web.Request) -> web.Response:
        text = request.query.get("limit", str(DEFAULT_AUDIT_LINES))
        if not (text.isascii() and text.isdecimal() and len(text) <= 9 and 1 <= int(text) <= MAX_AUDIT_LINES):
            raise Refused(400, f"limit: {text[:40]!r} is outside 1-{MAX_AUDIT_LINES}", param="limit")
        try:
            entries = await asyncio.to_thread(self._last, int(text))
        except OSError as error:
            raise Refused(
                503, f"{self._audit.path}: {error.strerror or error}", code="audit_unreadable"
            ) from error
        seq, head = self._audit.head
        return json_response({"entries": entries, "seq": seq, "head": head})

    async def verdict(self, request: web.Request) -> web.Response:
        return json_response(msgspec.to_builtins(self._verdict(request)))

    async def expect(self, request: web.Request) -> web.Response:
        expected = request.query.get("expect", "pass")
        if expected not in _MET:
            raise Refused(400, f"expect: {expected!r} is not one of {', '.join(_MET)}", param="expect")
        found = self._verdict(request)
        if found.verdict not in _MET[expected]:
            raise Refused(
                409,
                (
                    f"rollout {found.rollout}: {found.verdict.value}, and {expected} was expected: "
                    f"{found.reason}"
                ),
                code=f"verdict_{found.verdict.value}",
            )
        return json_response(msgspec.to_builtins(found))

    def _verdict(self, request: web.Request) -> Any:
        return verdict_of(self._judge.rollout(request.match_info["name"]))

    def _last(self, count: int) -> list[dict[str, Any]]:
        found: deque[dict[str, Any]] = deque(maxlen=count)
        try:
            for number, line in read_entries(self._audit.path):
                try:
                    found.append(msgspec.to_builtins(unsealed(line)[0]))
                except ValueError as error:
                    found.append({"kind": "damaged", "detail": f"line {number}: {error}"})
        except FileNotFoundError:
            return []
        return list(found)
