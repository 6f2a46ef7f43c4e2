"""Rollouts: where each stands, what it waits for, and what a person may tell it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from forkgate.admin.errors import json_response
from forkgate.admin.port import AdminPort, Refused, Verb
from forkgate.admin.routes import WHO
from forkgate.brief import brief

MAX_REASON_CHARS = 2_000
OF_A_TENANT = (Verb.ROLLBACK, Verb.LIFT)
"""What may be told of one tenant alone."""
DEFAULT_WHO = "admin API"
"""Who acts where the request does not tell: the socket's file mode lets only the sidecar's user in."""


class RolloutRoutes:
    """``/v1/rollouts...``"""

    def __init__(self, judge: AdminPort) -> None:
        self._judge = judge

    async def list(self, _request: web.Request) -> web.Response:
        return json_response({"rollouts": self._judge.rollouts()})

    async def show(self, request: web.Request) -> web.Response:
        return json_response(self._judge.rollout(request.match_info["name"]))

    async def plan(self, request: web.Request) -> web.Response:
        return json_response(self._judge.plan(request.match_info["name"]))

    def act(self, verb: Verb) -> Callable[[web.Request], Awaitable[web.Response]]:
        """The handler of one verb."""

        async def act(request: web.Request) -> web.Response:
            body = await _object(request)
            reason = _reason(body)
            tenant, look = _name(body, "tenant"), _name(body, "look")
            if tenant is not None and verb not in OF_A_TENANT:
                raise Refused(400, f"tenant: {verb} is for a whole rollout, leave it out", param="tenant")
            if look is not None and verb is not Verb.PROMOTE:
                raise Refused(400, f"look: {verb} is for any stage, leave it out", param="look")
            unknown = sorted(body.keys() - {"reason", "tenant", "look"})
            if unknown:
                raise Refused(
                    400,
                    f"{unknown[0]}: unknown, there are reason, tenant and look",
                    param=brief(unknown[0]),
                )
            who = request.get(WHO, DEFAULT_WHO)
            return json_response(
                await self._judge.act(
                    request.match_info["name"], verb, reason=reason, who=who, tenant=tenant, look=look
                )
            )

        return act


def _name(body: dict[str, Any], key: str) -> str | None:
    value = body.get(key)
    if value is not None and (not isinstance(value, str) or not value):
        raise Refused(400, f"{key}: is no name", param=key)
    return value


def _reason(body: dict[str, Any]) -> str:
    reason = body.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        raise Refused(400, "reason: missing, say why it is safe to go on", param="reason")
    if len(reason) > MAX_REASON_CHARS:
        raise Refused(400, f"reason: {len(reason)} characters, at most {MAX_REASON_CHARS}", param="reason")
    return reason.strip()


async def _object(request: web.Request) -> dict[str, Any]:
    try:
        body = orjson.loads(await request.read())
    except orjson.JSONDecodeError as error:
        raise Refused(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Refused(400, "the body is not a JSON object")
    return body
