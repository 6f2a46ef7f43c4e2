"""gRPC between edges and judge is cut, or says nothing more, while a rollback is decided."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.faults.figures import Figures
from tests.faults.scene import Scene, play
from tests.support.waiting import eventually

GRACE = {"grace_s": 1.5, "return_s": 0.2}


class Relay:
    """Stands between the link's socket and the judge. Bytes pass until somebody says otherwise."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._behind = socket.with_suffix(".behind")
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._flows = asyncio.Event()
        self._flows.set()
        self._cut = False
        self.carried_bytes = 0

    async def __aenter__(self) -> Relay:
        self._socket.rename(self._behind)
        self._server = await asyncio.start_unix_server(self._accept, str(self._socket))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self._drop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Close every connection and take no new one."""
        self._cut = True
        self._drop()

    def stall(self) -> None:
        """Connections stay, bytes do not pass: what a lost route looks like."""
        self._flows.clear()

    def mend(self) -> None:
        self._cut = False
        self._flows.set()

    def _drop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._cut:
            writer.transport.abort()
            return
        try:
            judge_reader, judge_writer = await asyncio.open_unix_connection(str(self._behind))
        except OSError:  # a killed judge
            writer.transport.abort()
            return
        self._writers |= {writer, judge_writer}
        for one, other in ((reader, judge_writer), (judge_reader, writer)):
            task = asyncio.create_task(self._pass_on(one, other))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                await self._flows.wait()
                self.carried_bytes += len(data)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()


def unreachable(how: str) -> Callable[[Figures, Path], Awaitable[None]]:
    """No edge hears the judge. The canary goes home after its grace, and the rollback decided meanwhile is
    obeyed as soon as an edge hears of it."""

    async def act(it: Scene) -> None:
        async with Relay(it.one.state / "link.sock") as relay:
            for name in ("edge 0", "edge 1"):  # those that are connected past the relay
                await it.another_edge(name)
            await it.one.obeyed()
            await eventually(lambda: relay.carried_bytes > 0, "edges on the relay")
            await at_candidate(it)
            carried = relay.carried_bytes
            async with it.fault():
                getattr(relay, how)()
                it.figures.rollback = "lost"
                await it.say("rollback")
                await it.stays_home_by_and_by()
                await asyncio.sleep(2)
                assert (await it.show())["state"] == "rolled_back"
                relay.mend()
                await it.one.obeyed()
            await it.stays_home()
            await it.rollback_lasts()
        it.figures.note = f"{carried >> 10} KiB had passed, then none; the canary went home by its grace"

    async def row(figures: Figures, directory: Path) -> None:
        await play(figures, directory, act, rollback_after=False, judge=GRACE)

    return row


async def at_candidate(it: Scene) -> None:
    await eventually(
        lambda: any(one.engine == "new" for one in it.load.answers[-8:]), "the canary at the candidate"
    )


ROWS = (
    ("grpc-cut", "the link's connections are closed, no new one is taken", unreachable("cut")),
    ("grpc-stalled", "the link's connections stay and carry nothing", unreachable("stall")),
)
