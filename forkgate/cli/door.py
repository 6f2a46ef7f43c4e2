"""The one door: HTTP to the judge, over its unix socket or to an address with a token. The standard library
alone, so that it opens fast."""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote, urlencode, urlsplit

import orjson

from forkgate.cli.exits import Exit
from forkgate.cli.output import leave

TIMEOUT_S = 30.0
REPLAY_TIMEOUT_S = 600.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Remote:
    """A judge on another machine, as it was named on the command line."""

    server: str
    """``https://HOST:PORT``; ``http`` to this machine alone."""
    token_file: Path | None = None
    ca_file: Path | None = None
    client_cert: Path | None = None
    """PEM: certificate and key."""


class Door:
    """Requests to one judge. What it refuses ends the command with its words."""

    def __init__(self, admin_socket: Path) -> None:
        self.where = str(admin_socket)
        self.headers: dict[str, str] = {}
        self._socket = admin_socket

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """Not connected yet."""
        return _UnixConnection(self._socket, timeout_s)

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
        connection = self.connection(timeout_s)
        try:
            connection.request(
                method,
                target,
                body=None if body is None else orjson.dumps(body),
                headers=self.headers
                if body is None
                else {**self.headers, "content-type": "application/json"},
            )
            response = connection.getresponse()
        except (FileNotFoundError, ConnectionRefusedError):
            leave(Exit.UNMEASURED, f"{self.where}: no judge answers there, is `forkgate serve` running?")
        except PermissionError:
            leave(
                Exit.UNMEASURED, f"{self.where}: permission denied, run this as the user that runs the judge"
            )
        except TimeoutError:
            leave(Exit.UNMEASURED, f"{self.where}: the judge did not answer within {timeout_s:g} s")
        except ssl.SSLCertVerificationError as error:
            leave(
                Exit.UNMEASURED,
                f"{self.where}: its certificate is not trusted: {error.verify_message}; see --ca-file",
            )
        except (OSError, http.client.HTTPException) as error:
            leave(Exit.UNMEASURED, f"{self.where}: {type(error).__name__}: {error}")
        if response.status >= 300:
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


class RemoteDoor(Door):
    """The same, to an address."""

    def __init__(self, remote: Remote) -> None:
        """Ends the command where the address, or a file, cannot be used."""
        parts = urlsplit(remote.server)
        try:
            port = parts.port
        except ValueError as error:
            leave(Exit.USAGE, f"--server: {remote.server!r} is not a URL: {error}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
            leave(Exit.USAGE, f"--server: {remote.server!r} is not https://HOST:PORT")
        if parts.username or parts.password:
            leave(Exit.USAGE, "--server: holds a credential, use --token-file")
        if parts.scheme == "http" and not _is_loopback(parts.hostname):
            leave(Exit.USAGE, f"--server: {remote.server} would carry the token in the clear, use https")
        self.where = remote.server
        self._host = parts.hostname
        self._port = port if port is not None else 443 if parts.scheme == "https" else 80
        self.headers = {} if remote.token_file is None else _authorization(remote.token_file)
        self._tls = _context(remote) if parts.scheme == "https" else None

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
        return http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=self._tls)


def _authorization(file: Path) -> dict[str, str]:
    try:
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        leave(Exit.USAGE, f"--token-file: {file}: cannot be read: {error}")
    if not token or not token.isprintable() or " " in token:
        leave(Exit.USAGE, f"--token-file: {file}: does not hold one token")
    return {"authorization": f"Bearer {token}"}


def _context(remote: Remote) -> ssl.SSLContext:
    try:
        made = ssl.create_default_context(cafile=None if remote.ca_file is None else str(remote.ca_file))
        if remote.client_cert is not None:
            made.load_cert_chain(str(remote.client_cert))
    except (OSError, ssl.SSLError) as error:
        leave(Exit.USAGE, f"--ca-file or --client-cert cannot be used: {error}")
    return made


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


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
