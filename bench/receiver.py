"""A judge that only takes: the real link server, whose sink counts what arrives and throws it away.

``python -m bench.receiver --bind unix:PATH`` reads a route table as one JSON line from standard input, prints
``{"ready": true}``, and answers each further line with its counts, until standard input closes. It stands in
for the judge where the cost of an edge is measured: what edges ship is really shipped, over the real wire.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
from collections.abc import Mapping, Sequence

import msgspec
import uvloop

from comparator.records import LiveRecord
from policies.routes import RouteTable
from proxy.ledger import EdgeCounts
from proxy.link.server import LinkServer
from proxy.link.values import Capture, EdgeIdentity


class Counts(msgspec.Struct, kw_only=True):
    """What has arrived so far."""

    captures: int = 0
    live: int = 0


class CountingSink:
    """``proxy.link.ports.LinkSink`` that counts and forgets."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def capture(self, edge: EdgeIdentity, capture: Capture) -> None:
        self._counts.captures += 1

    def live(self, records: Sequence[LiveRecord]) -> None:
        self._counts.live += len(records)

    def overhead(self, seconds: Sequence[float]) -> None:
        pass

    def epoch_ahead(self, edge: EdgeIdentity, epoch: int) -> None:
        raise RuntimeError(f"{edge} knows epoch {epoch}, which this bench never published")

    def rolled_back(self, edge: EdgeIdentity, announced: Mapping[str, int]) -> None:
        raise RuntimeError(f"{edge} knows of rollbacks, and this bench has none: {dict(announced)}")

    def edge_gone(self, edge: EdgeIdentity, final: EdgeCounts) -> None:
        pass


async def _serve(bind: str) -> None:
    loop = asyncio.get_running_loop()
    lines = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin.buffer)
    table = msgspec.json.decode(await lines.readline(), type=RouteTable)
    counts = Counts()
    server = LinkServer(bind, None, CountingSink(counts), table)
    await server.start()
    tell(b'{"ready": true}')
    gc.collect()
    gc.freeze()
    while await lines.readline():
        tell(msgspec.json.encode(counts))
    await server.stop()


def tell(line: bytes) -> None:
    """One line to whoever started this process."""
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Command line of the receiver."""
    parser = argparse.ArgumentParser(prog="python -m bench.receiver", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--bind", required=True, help="unix:PATH, or HOST:PORT")
    uvloop.run(_serve(parser.parse_args().bind))


if __name__ == "__main__":
    main()
