"""The sockets that clients connect to. The supervisor binds them and keeps them; workers only accept.

All workers share one queue, so a worker that dies takes nothing with it but the connections it held: whoever
waits in the backlog is accepted by the next one. A service manager may hand over sockets that it bound itself
(``sd_listen_fds(3)``, systemd's socket activation): those outlive the supervisor too, so that who connects
while it is restarted waits instead of being refused.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import MutableMapping
from typing import Final

_FIRST_HANDED: Final = 3
"""The first descriptor that a service manager hands over; the others follow it."""


class ListenError(Exception):
    """An address that cannot be listened on: what, where, what to do."""


def bind(host: str, port: int, backlog: int, section: str = "listen") -> list[socket.socket]:
    """Listen on every address of ``host``. With port 0 all share the one that the system picks.

    Args:
        section: of the configuration, for errors.

    Raises:
        ListenError: the name is unknown, the port is taken or forbidden.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ListenError(f"{section}.host: {host!r} has no address: {error.strerror}") from error
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            at = socket.socket(family, kind | socket.SOCK_CLOEXEC, protocol)
            sockets.append(at)
            at.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                at.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            chosen = sockets[0].getsockname()[1] if port == 0 and len(sockets) > 1 else port
            at.bind((address[0], chosen, *address[2:]))
            at.listen(backlog)
            at.setblocking(False)
    except OSError as error:
        for one in sockets:
            one.close()
        raise ListenError(_explain(error, host, port, section)) from error
    return sockets


def handed_over(environ: MutableMapping[str, str]) -> list[socket.socket]:
    """The sockets that a service manager bound for this very process; empty where it did not.

    Args:
        environ: of the process. What says that sockets are there is taken out, for it is true of no child.

    Raises:
        ListenError: what was handed over is no listening TCP socket.
    """
    told, whom = environ.pop("LISTEN_FDS", ""), environ.pop("LISTEN_PID", "")
    environ.pop("LISTEN_FDNAMES", None)
    if whom != str(os.getpid()):
        return []  # meant for a parent of ours
    if not told.isdecimal():
        raise ListenError(f"LISTEN_FDS: {told!r} is no number of sockets")
    return [_handed(number) for number in range(_FIRST_HANDED, _FIRST_HANDED + int(told))]


def _handed(number: int) -> socket.socket:
    try:
        one = socket.socket(fileno=number)
        listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 1
    except OSError as error:
        raise ListenError(f"LISTEN_FDS: descriptor {number} is no socket: {error.strerror}") from error
    if not listens or one.family not in (socket.AF_INET, socket.AF_INET6):
        one.close()
        raise ListenError(f"LISTEN_FDS: descriptor {number} is no listening TCP socket (ListenStream=PORT)")
    one.set_inheritable(False)
    one.setblocking(False)
    return one


def check(host: str, port: int, section: str) -> None:
    """Whether a child could listen there now. Raises ListenError.

    It is bound and let go again, so somebody else may take it before the child does. Whoever uses this has to
    live with that: it makes the usual mistake an error at the start, not an impossible one.
    """
    for one in bind(host, port, 1, section):
        one.close()


def _explain(error: OSError, host: str, port: int, section: str) -> str:
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if error.errno == errno.EADDRINUSE:
        return f"{section}.port: {where} is taken by another process, stop that one or choose another port"
    if error.errno == errno.EACCES:
        return f"{section}.port: this user may not listen on {where}, choose a port of 1024 or above"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{section}.host: {host!r} is no address of this machine"
    return f"{section}: {where}: {error.strerror}"
