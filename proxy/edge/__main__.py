"""``python -m proxy.edge``: one edge worker, told everything as JSON on its standard input.

Started by the supervisor, which owns the listening sockets. Exit status 0 after a drain, 2 for settings that
cannot work.
"""

from __future__ import annotations

import gc
import sys

import msgspec
import uvloop

from proxy.edge.errors import SettingsError
from proxy.edge.settings import EdgeSettings
from proxy.edge.worker import serve
from proxy.logs import log_to_stderr


def main() -> int:
    log_to_stderr("edge")
    try:
        settings = msgspec.json.decode(sys.stdin.buffer.read(), type=EdgeSettings)
    except (msgspec.DecodeError, ValueError) as error:
        sys.stderr.write(f"edge worker: its settings cannot be read: {error}\n")
        return 2
    # Exchanges form cycles only while they run, and are taken apart when they end: what the collector finds
    # is the link's calls, some hundred objects a second, and its passes are the longest pauses that a request
    # could meet. Frequent enough that what waits for it stays under half a MiB, rare enough to cost nothing.
    gc.freeze()
    gc.set_threshold(10_000, 20, 100)
    try:
        uvloop.run(serve(settings))
    except SettingsError as error:
        sys.stderr.write(f"edge worker: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
