"""Refusals as the error objects that clients of OpenAI-like APIs know."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
from aiohttp import web

from comparator.evidence import EvidenceAmbiguous, EvidenceError, EvidenceNotFound
from forkgate.admin.port import Refused

log = logging.getLogger(__name__)


def json_response(value: Any, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(value), status=status, content_type="application/json")


def error_response(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> web.Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return json_response(body, status)


@web.middleware
async def errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Every way to fail, in one shape."""
    try:
        return await handler(request)
    except Refused as error:
        return error_response(error.status, str(error), param=error.param, code=error.code)
    except EvidenceNotFound as error:
        return error_response(404, str(error), code="not_found")
    except EvidenceAmbiguous as error:
        return error_response(409, str(error), code="ambiguous")
    except EvidenceError as error:
        return error_response(503, str(error), code="evidence_unavailable")
    except web.HTTPException as error:
        return error_response(error.status, f"{request.method} {request.path}: {error.reason}")
    except Exception as error:
        log.exception("admin request failed", extra={"path": request.path})
        return error_response(500, f"{type(error).__name__}: {error}; the judge's log has the details")
