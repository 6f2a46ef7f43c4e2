"""File descriptors for what the configuration promises: a worker holds two for every client that it serves.

Most systems start a process with 1,024 and let it ask for more. Children inherit what is asked for here.
"""

from __future__ import annotations

import logging
import resource
from typing import Final

log = logging.getLogger(__name__)

_BESIDES: Final = 2_048
"""For a process's idle connections to engines, handshakes under way, its link and its files."""


def make_room(connections: int) -> None:
    """Raise this process's limit for workers of ``limits.connections``, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + _BESIDES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    given = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if given > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (given, hard))
    if given < wanted:
        log.warning(
            "the system allows fewer descriptors than limits.connections may need",
            extra={"limit": given, "wanted": wanted},
        )
