"""What the edge answers by itself, and the errors that lead there.

Every answer of the edge's own has the shape that OpenAI clients already read:
``{"error": {"message", "type", "param", "code"}}``. Blame is in the status: 4xx the client, 5xx a pool or the
edge. Such an answer ends its connection (RFC 9112 section 9.6): after a request that could not be read, or
was not read to its end, nobody can say where the next one starts.
"""

from __future__ import annotations

import http
from email.utils import formatdate

import msgspec


class EdgeError(Exception):
    """Base of everything that ``proxy.edge`` raises on purpose."""


class SettingsError(EdgeError):
    """The worker cannot start with what it was told: what, where, what to do."""


class RefusalError(EdgeError):
    """A request that is answered by the edge itself instead of a pool.

    Attributes:
        status: HTTP status of the answer.
        code: stable, machine-readable reason, e.g. ``length_and_transfer_encoding``.
        message: what is wrong and what to do, for people.
        param: the header or part that is to blame, when there is one.
    """

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.param = param


class BadAnswerError(EdgeError):
    """An upstream broke HTTP in its answer. Before the answer's head was forwarded this is a 502."""


def render(refusal: RefusalError, request_id: str, *, with_body: bool = True) -> bytes:
    """A whole HTTP/1.1 answer that says ``refusal`` and closes the connection.

    ``with_body=False`` is for HEAD, whose answer has the head alone (RFC 9110 section 9.3.2).
    """
    kind = "invalid_request_error" if refusal.status < 500 else "server_error"
    body = msgspec.json.encode(
        {"error": {"message": refusal.message, "type": kind, "param": refusal.param, "code": refusal.code}}
    )
    lines = [
        f"HTTP/1.1 {refusal.status} {http.HTTPStatus(refusal.status).phrase}",
        f"Date: {formatdate(usegmt=True)}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]
    if refusal.status == 405:
        lines.append("Allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
    if refusal.status == 503:
        lines.append("Retry-After: 1")
    lines.append(f"x-request-id: {request_id}")
    head = "\r\n".join((*lines, "", "")).encode("ascii")
    return head + body if with_body else head
