"""The one door: HTTP to the judge over its unix socket. The standard library alone, so that it opens fast."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote, urlencode

import orjson

from forkgate.cli.exits import Exit
from forkgate.cli.output import leave

TIMEOUT_S = 10.0
REPLAY_TIMEOUT_S = 600.0


class Door:
    """Requests to one judge. What it refuses ends the command with its words."""

    def __init__(self, admin_socket: Path) -> None:
        self.socket = admin_socket

    def get(self, path: str, **query: Any) -> Any:
        """The answer's JSON."""
        return orjson.loads(self._call("GET", path, query=query).read())

    def post(self, path: str, body: Any = None, timeout_s: float = TIMEOUT_S) -> Any:
        """The answer's JSON."""
        return orjson.loads(self._call("POST", path, body=body, timeout_s=timeout_s).read())

    def lines(self, path: str, **query: Any) -> Iterator[bytes]:
        """The lines of a streamed answer, as they come."""
        yield from self._call("GET", path, query=query, timeout_s=REPLAY_TIMEOUT_S)

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, Any] | None = None,
        body: Any = None,
        timeout_s: float = TIMEOUT_S,
    ) -> http.client.HTTPResponse:
        asked = {key: value for key, value in (query or {}).items() if value is not None}
        target = f"{path}?{urlencode(asked)}" if asked else path
        connection = _UnixConnection(self.socket, timeout_s)
        try:
            connection.request(
                method,
                target,
                body=None if body is None else orjson.dumps(body),
                headers={} if body is None else {"content-type": "application/json"},
            )
            response = connection.getresponse()
        except (FileNotFoundError, ConnectionRefusedError):
            leave(Exit.UNMEASURED, f"{self.socket}: no judge answers there, is `forkgate serve` running?")
        except PermissionError:
            leave(
                Exit.UNMEASURED, f"{self.socket}: permission denied, run this as the user that runs the judge"
            )
        except TimeoutError:
            leave(Exit.UNMEASURED, f"{self.socket}: the judge did not answer within {timeout_s:g} s")
        except (OSError, http.client.HTTPException) as error:
            leave(Exit.UNMEASURED, f"{self.socket}: {type(error).__name__}: {error}")
        if response.status >= 400:
            _refused(response)
        return response


def _refused(response: http.client.HTTPResponse) -> NoReturn:
    raw = response.read()
    code = None
    try:
        error = orjson.loads(raw)["error"]
        text, code = error["message"], error.get("code")
    except (orjson.JSONDecodeError, KeyError, TypeError):
        text = f"the judge answered {response.status}: {raw[:200]!r}"
    if code == "blocked":  # nothing is wrong with what was typed; it is not time for it
        leave(Exit.INCONCLUSIVE, text)
    leave(Exit.UNMEASURED if response.status >= 500 else Exit.USAGE, text)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("judge", timeout=timeout_s)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def segment(name: str) -> str:
    """A name as one segment of a path."""
    return quote(name, safe="")
