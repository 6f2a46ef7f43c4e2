"""Starts the sidecar's processes, keeps them alive, and stops them in the right order.

Order of a start: lock, listening sockets, the last table from disk, then edges and judge side by side; an
edge never waits for a judge. Order of a stop: edges first, so that their last captures and records reach
the judge, then the judge. Every child starts by exec and on a leash (see ``leash``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from forkgate.config.evidence import key_variables
from forkgate.config.model import Config
from forkgate.config.policy import PolicySource
from forkgate.identifiers import uuid7
from forkgate.judge.settings import JudgeSettings
from forkgate.state.latch import Latch, LatchCorrupt, read_latch
from forkgate.state.lock import StateLock
from forkgate.state.paths import StatePaths
from forkgate.state.table_file import TableCorrupt, read_table
from forkgate.state.unreadable import all_latched
from forkgate.state.whole import replace_file
from forkgate.supervisor import child as children
from forkgate.supervisor.backoff import Backoff
from forkgate.supervisor.child import Child, died_of
from forkgate.supervisor.descriptors import make_room
from forkgate.supervisor.keeper import TableKeeper
from forkgate.supervisor.listener import bind, check, handed_over
from forkgate.supervisor.plan import edge_settings, first_table, link_address, sidecar_name
from forkgate.supervisor.watch import JudgeWatch
from policies.routes import RouteTable

log = logging.getLogger(__name__)

KILL_AFTER_S = 5.0
"""Beyond its own drain time, what a child gets before SIGKILL."""


KEEP_S = 2.0
"""What the disk gets for the last route table when everything else has stopped."""


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """Which processes this supervisor runs: ``serve`` both, ``edge`` and ``judge`` one kind each."""

    edges: bool = True
    judge: bool = True


class Supervisor:
    """One ``forkgate serve``."""

    def __init__(self, config: Config, policies: Mapping[str, PolicySource], parts: Parts = Parts()) -> None:  # noqa: B008
        self.config = config
        self.paths = StatePaths(config.state_dir)
        self.parts = parts
        self._policies = dict(policies)
        self._sockets: list[socket.socket] = []
        self._children: dict[str, Child] = {}
        self._incarnations: dict[str, str] = {}
        self._stop = asyncio.Event()
        self._impatient = asyncio.Event()
        self._table: RouteTable | None = None
        self._watch: JudgeWatch | None = None
        self._keeper: TableKeeper | None = None

    async def run(self) -> int:
        """Serve until SIGTERM or SIGINT, then drain. Returns the exit status.

        Raises:
            Locked: another supervisor uses this state directory.
            ListenError: an address cannot be listened on.
            HomeUnclear: home moved, and the configuration does not tell of it.
            OSError: the state directory cannot be made.
        """
        self.paths.create()
        lock = StateLock(self.paths.lock if self.parts.edges else self.paths.root / "judge-serve.lock")
        lock.acquire()
        try:
            prometheus = self.config.telemetry.prometheus
            if self.parts.judge and prometheus is not None:
                check(prometheus.host, prometheus.port, "telemetry.prometheus")
            last = self._last_table()
            self._table = first_table(self.config, last, self._latch())
            if self.parts.edges:
                make_room(self.config.limits.connections)
                self._listen()
                self._keeper = TableKeeper(self.paths.table)
                self._keeper.start()
                if self._table != last:
                    self._keeper.keep(self._table.epoch, msgspec.json.encode(self._table))
            self._signals()
            await self._serve()
        finally:
            if self._keeper is not None:
                self._keeper.close(KEEP_S)
            for one in self._sockets:
                one.close()
            with contextlib.suppress(OSError):
                self.paths.listen.unlink()
            lock.release()
        return 0

    async def _serve(self) -> None:
        edges: list[asyncio.Task[None]] = []
        judge: list[asyncio.Task[None]] = []
        if self.parts.judge:
            judge.append(self._keep("judge", self._start_judge))
        if self.parts.edges:
            self._watch = JudgeWatch(
                link_address(self.config),
                self.config.judge.tls,
                sidecar_name(self.config),
                self.paths.ledgers,
                self._current_table(),
                self._on_table,
            )
            await self._watch.start()
            edges = [
                self._keep(f"edge {index}", lambda i=index: self._start_edge(i))  # type: ignore[misc]
                for index in range(self.config.listen.workers)
            ]
        await self._stop.wait()
        log.info("draining", extra={"drain_s": self.config.timeouts.drain_s})
        # Edges let go of theirs as they hear it: who connects from then on is refused and goes elsewhere, or
        # waits at the service manager that bound the socket, but never at one that nobody accepts from.
        for one in self._sockets:
            one.close()
        await self._drain(edges, "edge", self.config.timeouts.drain_s)
        if self._watch is not None:
            await self._watch.close(self.config.judge.drain_s)
        await self._drain(judge, "judge", self.config.judge.drain_s)
        log.info("stopped")

    # -- children ---------------------------------------------------------------------------------------

    def _keep(self, name: str, start: Callable[[], Awaitable[Child]]) -> asyncio.Task[None]:
        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                log.critical("nobody restarts this child any more", extra={"child": name}, exc_info=error)

        task = asyncio.create_task(self._keep_alive(name, start), name=f"keep {name}")
        task.add_done_callback(ended)
        return task

    async def _keep_alive(self, name: str, start: Callable[[], Awaitable[Child]]) -> None:
        """Run one child after another until the supervisor stops."""
        backoff = Backoff()
        while not self._stop.is_set():
            try:
                child = await start()
            except OSError as error:
                # No descriptor, process or memory is left. That passes; a part given up on would not return.
                wait_s = backoff.after(0.0)
                log.error(
                    "cannot be started, trying again",
                    extra={"child": name, "error": str(error), "wait_s": wait_s},
                )
                await self._stopped_within(wait_s)
                continue
            self._children[name] = child
            if self._stop.is_set():
                child.signal(signal.SIGTERM)  # the stop came while it was being started
            log.info("started", extra={"child": name, "child_pid": child.pid})
            if await child.ready():
                log.info(
                    "ready", extra={"child": name, "child_pid": child.pid, "ready_s": round(child.lived_s, 3)}
                )
            status = await child.wait()
            del self._children[name]
            if self._watch is not None and name in self._incarnations:
                self._watch.worker_died(self._incarnations.pop(name))
            if self._stop.is_set():
                log.info("ended", extra={"child": name, "child_pid": child.pid, "cause": died_of(status)})
                return
            wait_s = backoff.after(child.lived_s)
            log.error(
                "died, starting another",
                extra={"child": name, "child_pid": child.pid, "cause": died_of(status), "wait_s": wait_s},
            )
            await self._stopped_within(wait_s)

    async def _stopped_within(self, wait_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._stop.wait()

    async def _start_edge(self, index: int) -> Child:
        fds = tuple(one.fileno() for one in self._sockets)
        incarnation = self._incarnations[f"edge {index}"] = uuid7()

        def settings(ready_fd: int) -> bytes:
            return msgspec.json.encode(
                edge_settings(
                    self.config,
                    worker=index,
                    incarnation=incarnation,
                    listen_fds=fds,
                    ready_fd=ready_fd,
                    table=self._current_table(),
                )
            )

        # An edge speaks with anybody who connects, and reads no evidence.
        withheld = key_variables(self.config.evidence)
        return await children.start(f"edge {index}", ("-m", "proxy.edge"), settings, fds, withheld)

    async def _start_judge(self) -> Child:
        def settings(ready_fd: int) -> bytes:
            return msgspec.json.encode(
                JudgeSettings(
                    config=self.config,
                    policies=self._policies,
                    incarnation=uuid7(),
                    least_epoch=self._current_table().epoch,
                    rolled_back=self._current_table().rolled_back,
                    ready_fd=ready_fd,
                )
            )

        return await children.start("judge", ("-m", "forkgate.judge"), settings)

    async def _drain(self, tasks: list[asyncio.Task[None]], kind: str, drain_s: float) -> None:
        """SIGTERM to every child of this kind; SIGKILL to what is left after its time."""
        if not tasks:
            return
        self._signal(kind, signal.SIGTERM)
        impatient = asyncio.create_task(self._impatient.wait())
        done = asyncio.gather(*tasks, return_exceptions=True)  # each has said what it died of
        try:
            await asyncio.wait(
                (impatient, done), timeout=drain_s + KILL_AFTER_S, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            impatient.cancel()
        if not done.done():
            log.error(
                "still running after its drain time, killed", extra={"children": sorted(self._children)}
            )
            self._signal(kind, signal.SIGKILL)
            await asyncio.wait((done,), timeout=KILL_AFTER_S)
            if not done.done():  # it sits in the kernel, as on a disk that hangs
                log.error("not even killed, left behind", extra={"children": sorted(self._children)})

    def _signal(self, kind: str, number: signal.Signals) -> None:
        for name, one in self._children.items():
            if name.startswith(kind):
                one.signal(number)

    # -- state ------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        listen = self.config.listen
        handed = handed_over(os.environ)
        self._sockets = handed or bind(listen.host, listen.port, listen.backlog)
        addresses = ["{}:{}".format(*one.getsockname()[:2]) for one in self._sockets]
        log.info(
            "listening", extra={"addresses": addresses, "bound_by": "service manager" if handed else "us"}
        )
        try:
            told = msgspec.json.encode({"pid": os.getpid(), "addresses": addresses})
            replace_file(self.paths.listen, told, durable=False)
        except OSError as error:
            log.error(
                "cannot write where we listen", extra={"file": str(self.paths.listen), "error": str(error)}
            )

    def _last_table(self) -> RouteTable | None:
        try:
            return read_table(self.paths.table)
        except (TableCorrupt, OSError) as error:
            # Fail to home: without a table to go by, nobody is a canary until the judge says so.
            log.error(
                "the last route table is lost, every tenant starts at home", extra={"error": str(error)}
            )
            return None

    def _latch(self) -> Latch:
        try:
            return read_latch(self.paths.latch)
        except (LatchCorrupt, OSError) as error:
            log.error(
                "the latch cannot be read, every rollout counts as rolled back", extra={"error": str(error)}
            )
            return all_latched([one.name for one in self.config.rollouts], str(error))

    def _current_table(self) -> RouteTable:
        assert self._table is not None
        return self._table

    def _on_table(self, table: RouteTable, encoded: bytes) -> None:
        """A judge published ``table``; new workers start from it, and so does the next life."""
        if table.epoch <= self._current_table().epoch:
            return
        self._table = table
        if self._keeper is not None:
            self._keeper.keep(table.epoch, encoded)

    def _signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, number)
        loop.add_signal_handler(
            signal.SIGHUP,
            lambda: log.warning("SIGHUP: the configuration is read at start only; restart to change it"),
        )

    def _on_stop(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            log.warning("second signal, not waiting any longer", extra={"signal": number.name})
            self._impatient.set()
        self._stop.set()
