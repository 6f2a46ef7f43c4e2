"""Ports for processes that must be told theirs before they can ask the kernel for one."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST = 10_000


def free_port() -> int:
    """A port that is free, and that stays so until its process binds it: the kernel gives none of its kind to
    connections and listeners that ask for any."""
    first_given = int(_RANGE.read_text().split()[0])
    for port in random.sample(range(_FIRST, first_given), min(100, max(0, first_given - _FIRST))):
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    with socket.socket() as one:  # a kernel that gives every port, or a crowd that holds a hundred
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
