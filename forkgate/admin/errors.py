"""Refusals as the error objects that clients of OpenAI-like APIs know."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import orjson
from aiohttp import web

from comparator.evidence import EvidenceAmbiguous, EvidenceError, EvidenceNotFound
from forkgate.admin.port import Refused
from forkgate.brief import brief

log = logging.getLogger(__name__)

_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(
        body=orjson.dumps(value), status=status, content_type="application/json", headers=headers
    )


def error_response(
    status: int,
    message: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> web.Response:
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    body = {"error": {"message": brief(message), "type": kind, "param": param, "code": code}}
    return json_response(body, status, headers)


def refusal(error: Exception) -> tuple[int, str | None]:
    """Status and code that an error is answered with."""
    if isinstance(error, Refused):
        return error.status, error.code
    if isinstance(error, EvidenceNotFound):
        return 404, "not_found"
    if isinstance(error, EvidenceAmbiguous):
        return 409, "ambiguous"
    if isinstance(error, EvidenceError):
        return 503, "evidence_unavailable"
    if isinstance(error, web.HTTPException):
        return error.status, None
    return 500, None


@web.middleware
async def errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Every way to fail, in one shape."""
    try:
        return await handler(request)
    except Refused as error:
        return error_response(
            error.status, str(error), param=error.param, code=error.code, headers=error.headers
        )
    except EvidenceError as error:
        status, code = refusal(error)
        return error_response(status, str(error), code=code)
    except web.HTTPException as error:
        allow = error.headers.get("allow")
        return error_response(
            error.status,
            f"{request.method} {request.path}: {error.reason}",
            headers=None if allow is None else {"allow": allow},
        )
    except Exception as error:
        log.exception("admin request failed", extra={"path": request.path})
        return error_response(500, f"{type(error).__name__}: {error}; the judge's log has the details")
