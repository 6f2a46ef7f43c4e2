"""Ties a child's life to its parent's, then becomes the child.

    python leash.py PARENT_PID COMMAND [ARGUMENT ...]

``PR_SET_PDEATHSIG`` survives ``execve``, so after a ``kill -9`` of the supervisor every worker gets SIGTERM
from the kernel and drains; no orphan keeps a port or a database. It is set here, in a process that has not
become the worker yet, because ``preexec_fn`` would fork a supervisor that holds gRPC. Run by path and with
``-I -S``: it imports nothing of forkgate's.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(arguments: list[str]) -> None:
    parent, command = int(arguments[0]), arguments[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        sys.exit(f"leash: prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != parent:  # it died before prctl; the signal would never come
        sys.exit("leash: the supervisor is gone already")
    os.execv(command[0], command)  # noqa: S606 - an argument list, no shell


if __name__ == "__main__":
    main(sys.argv[1:])
