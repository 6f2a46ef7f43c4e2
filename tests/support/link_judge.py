"""A judge process that can be killed: ``python -m tests.support.link_judge TARGET STORE``.

It "compares" every second capture it gets and commits that to STORE, a file of one JSON line an end; the
others it holds for ever. Prints ``ready`` once it listens.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import uvloop

from proxy.link.server import LinkServer
from proxy.link.values import Capture, EdgeIdentity
from tests.support.link import ListSink, MemoryStore, route_table


class HalfSink(ListSink):
    def __init__(self, store: Path) -> None:
        super().__init__()
        self.file = store.open("a")
        self.server: LinkServer | None = None

    def capture(self, edge: EdgeIdentity, capture: Capture) -> None:
        if capture.sequence % 2:
            return
        self.file.write(json.dumps([edge.incarnation, capture.sequence, "compared"]) + "\n")
        self.file.flush()
        assert self.server is not None
        self.server.ledger.compared(edge.incarnation, capture.sequence)


def read_store(path: Path) -> MemoryStore:
    store = MemoryStore()
    if path.exists():
        for line in path.read_text().splitlines():
            store.add(*json.loads(line))
    return store


async def serve(target: str, path: Path) -> None:
    sink = HalfSink(path)
    server = LinkServer(target, None, sink, route_table(5), past=read_store(path).past)
    sink.server = server
    await server.start()
    os.write(1, b"ready\n")
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], Path(sys.argv[2])))
