"""The judge as a process: everything built once, started in order, stopped in reverse."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from collections.abc import Coroutine
from typing import Any

import msgspec

from comparator.evidence import RecordSeen
from comparator.evidence.keys import SealedKeyError
from engines import open_engine
from forkgate.admin.server import AdminError, AdminServer
from forkgate.config.declared import DeclaredError, declared_records
from forkgate.config.policy import frozen
from forkgate.evidence_keys import EvidenceKeyError, keyring_of
from forkgate.fleet import Fleet, FleetError
from forkgate.hooks import Hooks, StepHooks
from forkgate.hooks.hooks import HookConfigError
from forkgate.judge.checkpoint import Checkpoints, NewerStatesError
from forkgate.judge.desk import Desk
from forkgate.judge.early_lift import EarlyLift
from forkgate.judge.engine_watch import EngineWatch
from forkgate.judge.judge import Judge
from forkgate.judge.latchkeeper import LatchKeeper
from forkgate.judge.mirrors import open_checks, open_mirror
from forkgate.judge.observed import observed
from forkgate.judge.pool_watch import PoolWatch
from forkgate.judge.provenance import LiveAnswers
from forkgate.judge.publisher import Publisher
from forkgate.judge.replay import Replayer
from forkgate.judge.rollout_view import rollout_observed
from forkgate.judge.settings import JudgeSettings
from forkgate.judge.starts import Starts, kept_samples
from forkgate.judge.upkeep import upkeep
from forkgate.judge.views import Views
from forkgate.judge.writer import EvidenceWriter
from forkgate.state.home import HomeUnclear, home_moved
from forkgate.state.latch import Latch, LatchFile
from forkgate.state.lock import Locked, StateLock
from forkgate.state.paths import StatePaths
from forkgate.state.table_file import TableCorrupt, read_table
from forkgate.state.unreadable import all_latched, with_announced
from forkgate.suites import SuiteRuns
from forkgate.supervisor.plan import link_address, pools, sidecar_name
from forkgate.telemetry import Instruments, MetricsPage, Outlet, PageError, Tenants, resource_of
from policies.policy import Policy
from proxy.ledger import JudgeLedger
from proxy.link.channel import LinkError
from proxy.link.server import LinkServer
from proxy.mirror import Mirror

log = logging.getLogger(__name__)

LOCK_WAIT_S = 10.0
"""For the judge of a supervisor that was killed a moment ago to end."""
STOP_S = 7.0
"""What each part may take to stop, beyond its own drain time."""
FIRST_SAVE_S = 5.0
EVIDENCE_CLOSE_S = 10.0
HARD_STOP_S = 60.0
"""Beyond the drain time, after which the process ends whatever hangs in it."""


class StartError(Exception):
    """The judge cannot start: what, where, what to do."""


class JudgeProcess:
    """One judge life."""

    def __init__(self, settings: JudgeSettings) -> None:
        self.settings = settings
        self.config = settings.config
        self.paths = StatePaths(self.config.state_dir)
        self._stop = asyncio.Event()

    async def run(self) -> int:
        """Judge until SIGTERM. Returns the exit status.

        Raises:
            StartError: another judge, or an address that cannot be listened on.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        lock = StateLock(self.paths.judge_lock)
        try:
            self.paths.create()
            await self._acquire(lock)
        except OSError as error:
            raise StartError(f"state_dir: {self.config.state_dir}: {error.strerror or error}") from error
        try:
            await self._judge()
        finally:
            lock.release()
        return 0

    async def _judge(self) -> None:
        config = self.config
        keeper = LatchKeeper(LatchFile(self.paths.latch), self._all_latched)
        keeper.open()
        self._recall(keeper)
        self._at_home(keeper)
        policies = {rollout.name: frozen(self.settings.policies[rollout.name]) for rollout in config.rollouts}
        desk = self._desk(keeper, {name: one.policy for name, one in policies.items()})
        writer = self._writer()
        writer.start()
        checkpoints = Checkpoints(self.paths.rollouts, desk, writer)
        try:
            await checkpoints.restore()
        except SealedKeyError as error:
            raise StartError(
                f"{self.paths.rollouts}: {error}. Name it under evidence.encryption.old_keys; or move the "
                "file away, and every rollout begins anew"
            ) from error
        except NewerStatesError as error:
            raise StartError(f"{self.paths.rollouts}: {error}") from error
        if checkpoints.home_is_back:
            keeper.recall(keeper.latch.with_home(None), "the latch does not hold that home is back yet")
        publisher = Publisher(
            home=config.home,
            pools=pools(config),
            states=desk.states,
            keeper=keeper,
            epoch=self._first_epoch(keeper.latch.epoch),
            latch_s=config.judge.latch_s,
            acknowledge_s=config.judge.acknowledge_s,
        )
        ledger = JudgeLedger()
        checkpoints.batches = ledger.batches
        prometheus = config.telemetry.prometheus
        page = MetricsPage(prometheus.host, prometheus.port) if prometheus is not None else None
        resource = resource_of(sidecar_name(config))
        told = [tenant.name for tenant in config.tenants] if config.telemetry.tenant_attribute else None
        outlet = Outlet(config.telemetry, resource, Tenants(told))
        instruments = Instruments(
            [*([page.reader] if page else []), *outlet.readers],
            resource,
            told,
            lambda: msgspec.structs.replace(
                observed(server, publisher, desk, writer, mirror, fleet, pool_watch, hooks),
                exports=outlet.counts(),
            ),
            lambda: [rollout_observed(state, starts) for state in desk.states()],
        )
        judge = Judge(desk, publisher, writer, instruments, checkpoints)
        try:
            hooks = Hooks(config.hooks, sidecar_name(config))
        except HookConfigError as error:
            raise StartError(str(error)) from error
        try:
            fleet = Fleet(config, open_engine)
        except FleetError as error:
            raise StartError(str(error)) from error
        mirror = open_mirror(config, fleet, judge, ledger, desk.compared, outlet.tracing)
        judge.tracing = outlet.tracing
        starts = Starts(
            open_checks(config, fleet),
            SuiteRuns(mirror),
            {name: one.suites for name, one in policies.items()},
            kept_samples(writer, lambda name: desk.state(name).begun_unix_s),
            judge,
        )
        judge.attach(mirror, starts)
        judge.hooks = hooks
        judge.in_the_way.steps = step_hooks = StepHooks(hooks)
        judge.early = EarlyLift(fleet)
        judge.attribute = LiveAnswers(fleet).attribute
        watch = EngineWatch(fleet, desk.states, judge)
        watch.on_record = writer.note
        pool_watch = PoolWatch(config, fleet, open_engine, desk.states, judge, arms=mirror.arms)
        judge.in_the_way.looked = pool_watch.found.__contains__
        judge.in_the_way.silent = pool_watch.silent
        _share_budgets(mirror, checkpoints)
        server = LinkServer(
            link_address(config),
            config.judge.tls,
            judge,
            publisher.table,
            ledger=ledger,
            past=writer.past,
            live_taken=checkpoints.batches_before,
            edge_grace_s=config.judge.grace_s,
        )
        publisher.server = server
        views = Views(
            self.settings,
            judge,
            server,
            fleet,
            mirror,
            Replayer(config, fleet, self.paths.evidence, writer.keys),
        )
        admin = AdminServer(self.paths.admin_socket, views, config.admin)
        views.page, views.outlet = page, outlet
        views.pool_watch = pool_watch
        # What the journal gets from now on is stepped from here: without a file no judge would look there. A
        # disk that hangs keeps none from starting.
        await _within(FIRST_SAVE_S, "first checkpoint", checkpoints.save())
        await self._listen(admin, page, server)
        fleet.start()
        for state in desk.states():
            if not state.mirrors:  # what edges copied before they heard of it is dropped, not run
                await mirror.stop_rollout(
                    state.plan.name, f"{state.stage} when this judge started: no copies"
                )
        for asked in checkpoints.caught_up:
            judge.obey(asked, time.monotonic())
        judge.begin()
        outlet.start()
        self._say_ready(publisher.table.epoch, keeper.durable)
        tasks = upkeep(judge, publisher, checkpoints, mirror, page, config.judge.latch_s)
        tasks.append(asyncio.create_task(watch.run(), name="engine samples"))
        tasks.append(asyncio.create_task(pool_watch.run(), name="old pools"))
        await self._stop.wait()
        log.info("stopping", extra={"drain_s": config.judge.drain_s})
        _watchdog(config.judge.drain_s + HARD_STOP_S)
        for task in tasks:
            task.cancel()
        await _within(STOP_S, "checks and suites", starts.close())
        await _within(config.judge.drain_s + STOP_S, "mirror", mirror.close(config.judge.drain_s))
        await _within(STOP_S, "flips", judge.settle(config.judge.acknowledge_s))
        await step_hooks.close()
        await _within(STOP_S, "hooks", hooks.close())
        await _within(STOP_S, "link", server.stop())
        await _within(STOP_S, "checkpoint", checkpoints.save())
        await _within(STOP_S, "admin API", admin.close())
        if page is not None:
            await _within(STOP_S, "metrics page", page.close())
        await _within(STOP_S, "watch of old pools", pool_watch.close())
        await _within(STOP_S, "engines", fleet.close())
        await _within(EVIDENCE_CLOSE_S + STOP_S, "evidence", writer.close(EVIDENCE_CLOSE_S))
        keeper.close()
        await _within(STOP_S, "telemetry", outlet.close())
        instruments.close()
        log.info("stopped")

    def _writer(self) -> EvidenceWriter:
        section = self.config.evidence
        try:
            keys = keyring_of(section)
            declared = list(declared_records(self.config))
        except (EvidenceKeyError, DeclaredError) as error:
            raise StartError(str(error)) from error
        log.info(
            "evidence at rest",
            extra={
                "sealed_with": keys.current.id if keys.current is not None else None,
                "can_read": list(keys.ids),
                "kept": section.store.value,
            },
        )
        writer = EvidenceWriter(
            self.paths.evidence,
            section.max_bytes,
            keys=keys,
            kept=section.store,
            retention=section.retention,
        )
        now = time.time()
        writer.note(
            *(
                RecordSeen(
                    kind=one.kind,
                    digest=one.digest,
                    document=one.document,
                    pool=one.pool,
                    endpoint="configuration",
                    unix_s=now,
                )
                for one in declared
            )
        )
        return writer

    def _all_latched(self, why: str) -> Latch:
        return all_latched([rollout.name for rollout in self.config.rollouts], why)

    def _recall(self, keeper: LatchKeeper) -> None:
        """A rollback that edges were told of stands, also when the judge before could not write it down."""
        latch = with_announced(keeper.latch, self.settings.rolled_back)
        if latch is not keeper.latch:
            new = sorted(set(latch.announced) - set(keeper.latch.announced))
            keeper.recall(latch, f"{self.paths.latch}: does not hold the rollback of {', '.join(new)}")
            log.error("rollbacks that were announced without a latch still stand", extra={"rollouts": new})

    def _at_home(self, keeper: LatchKeeper) -> None:
        """A home that moved by a rollout which the configuration has taken up, or names no more, did not."""
        latch = keeper.latch
        candidates = {rollout.name: rollout.candidate for rollout in self.config.rollouts}
        try:
            moved = home_moved(latch, self.config.home, candidates)
        except HomeUnclear as error:
            raise StartError(str(error)) from error
        if moved != latch.moved:
            keeper.recall(
                latch.with_home(moved), f"{self.paths.latch}: says where home was under another file"
            )

    def _desk(self, keeper: LatchKeeper, policies: dict[str, Policy]) -> Desk:
        desk = Desk(self.config, policies, keeper.latch)
        for state in desk.states():
            desk.mark_durable(state.plan.name, keeper.durable)
            for tenant in state.sent_home:
                desk.mark_durable(state.plan.name, keeper.durable, tenant)
        return desk

    async def _listen(self, admin: AdminServer, page: MetricsPage | None, server: LinkServer) -> None:
        try:
            await admin.start()
            await server.start()
        except (AdminError, LinkError) as error:
            raise StartError(str(error)) from error
        if page is not None:
            try:
                await page.start()
            except PageError as error:
                # The supervisor found the port free a moment ago, or a judge before had it. Judging matters
                # more than being watched: upkeep tries again, and the status says so meanwhile.
                log.error("running without metrics", extra={"error": str(error)})

    def _first_epoch(self, latch_epoch: int) -> int:
        try:
            table = read_table(self.paths.table)
        except (TableCorrupt, OSError) as error:
            log.warning("the supervisor's route table cannot be read", extra={"error": str(error)})
            table = None
        return max(self.settings.least_epoch, latch_epoch, table.epoch if table is not None else 0) + 1

    async def _acquire(self, lock: StateLock) -> None:
        end = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                lock.acquire()
            except Locked as error:
                if time.monotonic() >= end or self._stop.is_set():
                    raise StartError(
                        f"state_dir: another judge runs there: {error}; stop it first"
                    ) from error
                await asyncio.sleep(0.05)
            else:
                return

    def _say_ready(self, epoch: int, durable: bool) -> None:
        log.info(
            "judging",
            extra={
                "link": link_address(self.config),
                "admin": str(self.paths.admin_socket),
                "epoch": epoch,
                "latch_durable": durable,
            },
        )
        if self.settings.ready_fd is not None:
            os.write(self.settings.ready_fd, b"ready\n")
            os.close(self.settings.ready_fd)


def _share_budgets(mirror: Mirror, checkpoints: Checkpoints) -> None:
    """What the judge before spent today is spent; what this one spends, the next will know."""
    known = {status.rollout for status in mirror.status()}
    for rollout, by_tenant in checkpoints.spent_before.items():
        for tenant, tokens in by_tenant.items():
            if rollout in known:
                mirror.charge(rollout, tokens, tenant)

    def spent(rollout: str) -> dict[str, int]:
        return next((one.spent.today_by_tenant for one in mirror.status() if one.rollout == rollout), {})

    checkpoints.spent = spent


def _watchdog(limit_s: float) -> None:
    """A library that hangs while it is torn down must not leave an orphan that holds the judge's lock."""
    timer = threading.Timer(limit_s, os._exit, (1,))
    timer.daemon = True
    timer.start()


async def _within(limit_s: float, part: str, work: Coroutine[Any, Any, None]) -> None:
    """One part of the stop, or of the start. What hangs or fails is named and left behind: an orphaned judge
    must still end."""
    try:
        async with asyncio.timeout(limit_s):
            await work
    except TimeoutError:
        log.error("not done in its time, left behind", extra={"part": part, "limit_s": limit_s})
    except Exception:
        log.exception("failed, left behind", extra={"part": part})


def read_settings(raw: bytes) -> JudgeSettings:
    """From standard input. Raises StartError."""
    try:
        return msgspec.json.decode(raw, type=JudgeSettings)
    except msgspec.DecodeError as error:
        raise StartError(f"settings on standard input: {error}") from error
