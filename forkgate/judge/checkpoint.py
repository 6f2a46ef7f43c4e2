"""What a judge knew of its rollouts, for the judge that comes after a ``kill -9``.

Once a second every rollout's state goes to one file. The next judge takes it over and steps again, from the
evidence store's journal, the events that came after it: comparisons, forks, live records, checks, a person's
lift, all of them in the order in which they were taken in. What the store's last transaction did not hold any
more is lost, and the journal shows where: it goes on behind the gap with a snapshot of the state that was
taken over. Where the configuration says something else than it did, ``policies.rollout.resume`` decides.

With events of live records the journal holds the numbers of the batches that brought them, so that a batch
that comes again after a restart does not count twice. Gates that start anew (another plan) do not get it a
second time either.

The latch is not in here: it has its own file, and it wins. It says what stands rolled back, which tenants are
home, and where home is; a state that says otherwise is made to agree (:meth:`Checkpoints._agree`). What a
state says is latched, and the file never held, is latched again.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from comparator.evidence import EvidenceError, EvidenceHashed, EvidenceStore, JournalRow, Taken
from comparator.evidence.journal import ComparisonRef, ForkRef, JournalError, decode_items, unpack
from comparator.evidence.keys import SealedFileError, SealedKeyError, open_file, seal_file
from comparator.evidence.rows import LOST, OBSERVED, STATE
from forkgate.judge.desk import Asked, Desk, Tally
from forkgate.judge.journal import event_of, snapshot
from forkgate.judge.writer import EvidenceWriter
from forkgate.state.whole import replace_file
from policies.gates import drawn
from policies.gates.base import Evidence
from policies.gates.by_token import by_token
from policies.rollout import (
    ENDED_STAGES,
    Effect,
    Event,
    Hold,
    HoldCause,
    HomeMoved,
    Latch,
    Lift,
    MoveHome,
    Observed,
    Publish,
    RollBack,
    RolloutPlan,
    RolloutState,
    SendHome,
    Stage,
    come_home,
)
from policies.routes import RolloutName

log = logging.getLogger(__name__)

PURPOSE = "rollout states"
"""What a sealed checkpoint is bound to."""
DAY_S = 86_400.0
VERSION = 1
"""Of the file. It rises with whatever a reader that passes over unknown fields would read wrongly, or not at
all: a further stage or cause, a field of a state."""
EDGES = 4_096
"""Edge incarnations whose last batch is remembered."""
MAX_AGAIN = 10_000
"""Events stepped again at most: far more than a judge takes in between two checkpoints."""
CHUNK = 100
AGAIN_S = 60.0
"""What reading them may take before a judge starts without."""

OBEYED = (MoveHome, Hold, Publish)
"""Effects of events stepped again that are carried out. What sends somebody home follows from the state that
came of them all; the others were (a log line), or are asked for anew by whoever takes a state over (a
check)."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout in the file."""

    state: RolloutState
    tally: Tally
    spent_today: dict[str, int] = {}
    """Shadow tokens by tenant, since 00:00 UTC of the file's day."""


class NewerStatesError(Exception):
    """A newer forkgate wrote the states. What people said stands in them: they are neither taken for lost nor
    written over."""


class _Version(msgspec.Struct, frozen=True):
    version: int = 1


class File(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    unix_s: float
    rollouts: tuple[Kept, ...]
    batches: dict[str, int] = {}
    """Edge incarnation → its last batch whose live records are in the states."""


class Checkpoints:
    """Saves and restores the desk."""

    def __init__(self, path: Path, desk: Desk, writer: EvidenceWriter) -> None:
        self._path = path
        self._desk = desk
        self._writer = writer
        self._saved: dict[str, Any] = {}
        self._told: dict[str, int] = {}
        self.trouble: str | None = None
        """Why the last save failed, in words."""
        self._disk = threading.Lock()
        self.spent: Callable[[str], dict[str, int]] = lambda _rollout: {}
        """Shadow tokens of today, by tenant; the mirror's, once there is one."""
        self.spent_before: dict[str, dict[str, int]] = {}
        """The same of an earlier life on the same day, after :meth:`restore`: a restart buys no second
        budget."""
        self.batches: Callable[[], dict[str, int]] = dict
        """Edge incarnation → the last batch taken of it; the ledger's, once there is one."""
        self.batches_before: dict[str, int] = {}
        """The same of earlier lives, after :meth:`restore`."""
        self.home_is_back = False
        """After :meth:`restore`: the latch's file says that home moved, and it has moved back since."""
        self.caught_up: list[Asked] = []
        """What came of events that :meth:`restore` stepped again: to be obeyed once edges can be reached."""

    def taken(self) -> tuple[Taken, ...]:
        """Edge batches that this was not asked about yet: to be kept with the events of their records."""
        now = self.batches()
        new = tuple(
            Taken(incarnation=name, batch=batch)
            for name, batch in now.items()
            if batch != self._told.get(name)
        )
        self._told = now
        return new

    async def must_exist(self) -> None:
        """What the journal holds is stepped from the file, so a word that it alone holds is lost on the next
        judge while there is none. Raises OSError where there is none, and none can be written."""
        if self.trouble is None or await asyncio.to_thread(self._path.exists):
            return
        await self.save()
        if self.trouble is not None:
            raise OSError(self.trouble)

    async def save(self) -> None:
        """Write the file if anything moved. A disk that refuses costs memory across a crash, nothing else."""
        now: dict[str, Any] = {
            state.plan.name: (state.sequence, _durable(state)) for state in self._desk.states()
        }
        if now == self._saved:
            return
        kept = tuple(
            Kept(
                state=state,
                tally=msgspec.structs.replace(self._desk.tallies[state.plan.name]),
                spent_today=self.spent(state.plan.name),
            )
            for state in self._desk.states()
        )
        batches = list({**self.batches_before, **self.batches()}.items())[-EDGES:]
        file = File(unix_s=time.time(), rollouts=kept, batches=dict(batches))
        try:
            # On a thread: a disk that stalls must not hold up a flip.
            await asyncio.to_thread(self._write, file)
        except OSError as error:
            if self.trouble is None:
                log.error("rollout states are not kept", extra={"error": str(error)})
            self.trouble = f"rollout states are not kept, a judge that starts now knows older ones: {error}"
            return
        self.trouble = None
        self._saved = now

    def _write(self, file: File) -> None:
        with self._disk:  # one that hung may still be at it when the judge stops and saves for the last time
            content = msgspec.json.encode(file)
            key = self._writer.keys.current
            # Reasons and gate states may quote what an engine said of a request.
            content = content if key is None else seal_file(key, PURPOSE, content)
            replace_file(self._path, content, durable=False)

    # -- the next judge -----------------------------------------------------------------------------------

    async def restore(self) -> None:
        """Take over what an earlier judge left, catch up from the journal, and begin its next stretch.

        Raises:
            SealedKeyError: the file is sealed with a key that is not given. What people said stands in it: it
                is neither taken for lost nor written over.
            NewerStatesError: a newer forkgate wrote it; the same.
        """
        await self._restore()
        self._agree_on_home()
        now = time.time()
        self._tell_home(now)
        for state in self._desk.states():
            if not state.begun_unix_s:
                # Prompts that an earlier plan of this name had met are new to these gates.
                self._desk.restore(msgspec.structs.replace(state, begun_unix_s=now))
        # Events of this life follow these states, whatever they came from.
        self._writer.note(*(snapshot(state, now) for state in self._desk.states()))

    async def _restore(self) -> None:
        try:
            content = open_file(self._writer.keys, PURPOSE, self._path.read_bytes())
            file = decoded(content)
        except FileNotFoundError:
            return
        except SealedKeyError:
            raise
        except (OSError, msgspec.DecodeError, SealedFileError) as error:
            log.error("rollout states are lost, gates start anew", extra={"error": str(error)})
            return
        self.batches_before = dict(file.batches)
        if int(file.unix_s // DAY_S) == int(time.time() // DAY_S):
            self.spent_before = {kept.state.plan.name: kept.spent_today for kept in file.rollouts}
        for kept in file.rollouts:
            await self._take_over(kept)
        await self._take_batches()

    def _agree_on_home(self) -> None:
        """Home is where the latch's file says, and the rollout that moved it is promoted: also where a judge
        was killed before its journal held the promotion. One that was ended since, or begun anew, has not
        moved it."""
        moved = self._desk.latch.moved
        if moved is None:
            return
        try:
            state = self._desk.state(moved.rollout)
        except KeyError:
            return
        anew = _begun_anew(state)
        # A clock that was set back dates a promotion before its rollout's begin: the stage knows better.
        older = state.stage is not Stage.PROMOTED and state.begun_unix_s > moved.unix_s
        if state.stage in ENDED_STAGES or anew or older:
            self.home_is_back = True
            log.warning("home is back where it was", extra={"rollout": moved.rollout, "stage": state.stage})
        elif state.stage is not Stage.PROMOTED:
            log.warning("promoted, as the latch's file says", extra={"rollout": moved.rollout})
            self._desk.restore(promoted(state, moved.unix_s))

    def _tell_home(self, now: float) -> None:
        """Every rollout knows whose candidate home is; one that was read now for the first time does not."""
        moved = None if self.home_is_back else self._desk.latch.moved
        for state in self._desk.states():
            name = state.plan.name
            by = None if moved is None or moved.rollout == name else RolloutName(moved.rollout)
            if state.home_of != by:
                self._writer.note(*self._desk.take(name, HomeMoved(by=by, unix_s=now)).notes)

    async def _take_over(self, kept: Kept) -> None:
        name = kept.state.plan.name
        try:
            fresh = self._desk.state(name)
        except KeyError:
            return
        self._desk.restore(kept.state)
        self._desk.tallies[name] = kept.tally
        caught_up = await self._catch_up(name, kept.state.sequence)
        self._replan(name, fresh.plan, caught_up)
        caught_up += self._agree(name, fresh)
        state = self._desk.state(name)
        for asked in caught_up:
            effects = tuple(effect for effect in asked.effects if _stands(effect, state))
            if effects:
                self.caught_up.append(Asked(effects=effects))
        if state.begun_unix_s:
            await self._take_clusters(state)

    def _agree(self, name: str, fresh: RolloutState) -> list[Asked]:
        """Let a state say what the latch's file says. Returns what is latched again: a judge was killed
        before the file held it.

        Args:
            fresh: what was made of the file alone.
        """
        again: list[Asked] = []
        for tenant, latch in self._desk.state(name).sent_home.items():
            if tenant not in fresh.sent_home:
                again.append(self._lifted(name, latch) or Asked(effects=(SendHome(latch=latch),)))
        state = self._desk.state(name)
        if fresh.latch is None and state.latch is not None:
            again.append(self._lifted(name, state.latch) or Asked(effects=(RollBack(latch=state.latch),)))
            state = self._desk.state(name)
        state = msgspec.structs.replace(state, sent_home={**state.sent_home, **fresh.sent_home})
        if fresh.latch is not None:
            # What the gates said then is shown; the latch's own file decides.
            state = come_home(state, fresh.latch)
        self._desk.restore(state)
        return again

    def _lifted(self, name: str, latch: Latch) -> Asked | None:
        """Lift what a person had lifted before a judge was killed: the file was opened, and the journal does
        not tell. None where the file never held this latch."""
        lifted = next(
            (
                one
                for one in self._desk.latch.lifted
                if (one.latched.rollback.rollout, one.tenant, one.latched.rollback.unix_s)
                == (latch.rollout, latch.tenant, latch.unix_s)
            ),
            None,
        )
        if lifted is None and not latch.durable:
            return None
        why = "the latch's file does not hold it any more" if lifted is None else lifted.reason
        event = Lift(who="the latch's file", why=why, tenant=latch.tenant, unix_s=time.time())
        asked = self._desk.take(name, event)
        self._writer.note(*asked.notes)
        effects = tuple(effect for effect in asked.effects if isinstance(effect, OBEYED))
        return Asked(effects=effects)

    def _replan(self, name: str, plan: RolloutPlan, caught_up: list[Asked]) -> None:
        """The configuration may say something else than it said to the judge before."""
        if plan == self._desk.state(name).plan:
            return
        asked = self._desk.resume(name, plan, time.time())
        state = self._desk.state(name)
        if _begun_anew(state):
            caught_up.clear()  # of gates that are no more; nothing was rolled back, or it would still stand
        log.warning(
            "the configuration of a rollout is another one than before",
            extra={"rollout": name, "stage": state.stage, "held": state.held is not None},
        )
        effects = tuple(effect for effect in asked.effects if isinstance(effect, OBEYED))
        if effects:
            caught_up.append(Asked(effects=effects))

    async def _catch_up(self, name: str, sequence: int) -> list[Asked]:
        """Step what came after that many events again. Returns what is to be obeyed."""
        caught_up: list[Asked] = []
        count = 0
        try:
            rows: tuple[JournalRow, ...] = await self._writer.call(
                lambda store: store.journal_after(name, sequence, MAX_AGAIN), AGAIN_S
            )
            known = self._desk.state(name).evidence
            if rows and rows[0].before > known:
                log.error(
                    "evidence after the checkpoint is missing from the journal, the rest is taken in",
                    extra={"rollout": name, "missing": f"{known + 1}-{rows[0].before}"},
                )
            gates = by_token(self._desk.state(name).plan.policy.gates)
            for start in range(0, len(rows), CHUNK):
                # Some at a time: a comparison is large, and ten thousand of them would not fit.
                chunk = rows[start : start + CHUNK]
                events: list[tuple[int, Event]] = await self._writer.call(
                    functools.partial(_events_of, rows=chunk, by_token=gates), AGAIN_S
                )
                for number, event in events:
                    self._again(name, number, event, caught_up)
                count += len(events)
        except EvidenceError as error:
            log.error("events after the checkpoint are not taken in again", extra={"error": str(error)})
        log.info("rollout state taken over", extra={"rollout": name, "events_after": count})
        return caught_up

    def _again(self, name: str, number: int, event: Event, caught_up: list[Asked]) -> None:
        asked = self._desk.again(name, event, event.unix_s)
        # Events that were ignored then count too: numbers only rise, also from life to life.
        self._desk.restore(msgspec.structs.replace(self._desk.state(name), sequence=number))
        if isinstance(event, Lift) and event.tenant is None:
            caught_up.clear()  # what was held before it is no more
        effects = tuple(effect for effect in asked.effects if isinstance(effect, OBEYED))
        if effects:
            caught_up.append(Asked(effects=effects))

    async def _take_batches(self) -> None:
        """The journal's batches are newer than the file's: their records were stepped again just now."""
        try:
            taken: dict[str, int] = await self._writer.call(lambda store: store.taken())
        except EvidenceError as error:
            log.error("edge batches in the journal are not known", extra={"error": str(error)})
            return
        for incarnation, batch in taken.items():
            self.batches_before[incarnation] = max(batch, self.batches_before.get(incarnation, 0))

    async def _take_clusters(self, state: RolloutState) -> None:
        """Which prompts a rollout has met since its gates began. Nobody reads them yet, so they go from the
        store into the filter on the store's thread, one by one."""
        name, met = state.plan.name, self._desk.clusters[state.plan.name]
        try:
            await self._writer.call(
                lambda store: met.update(store.clusters(name, state.begun_unix_s)), AGAIN_S
            )
        except EvidenceError as error:
            log.error("prompts met before may count again", extra={"rollout": name, "error": str(error)})


def decoded(content: bytes) -> File:
    """The file, opened. Raises msgspec.DecodeError and NewerStatesError."""
    version = msgspec.json.decode(content, type=_Version).version
    if version > VERSION:
        raise NewerStatesError(
            f"version {version}, a newer forkgate wrote it and this one knows {VERSION}. Start that one; or "
            "move the file away, and every rollout begins anew"
        )
    return msgspec.json.decode(content, type=File)


def promoted(state: RolloutState, unix_s: float) -> RolloutState:
    """A rollout whose promotion the latch's file holds, and its journal does not."""
    return msgspec.structs.replace(
        state,
        stage=Stage.PROMOTED,
        moved=state.plan.tenants,
        step=max(0, len(state.plan.steps) - 1),
        suites={},
        pairs=0,
        entered_unix_s=unix_s,
    )


def _begun_anew(state: RolloutState) -> bool:
    """Another plan has ended its gates; a person has not said yet that it is meant."""
    held = state.held
    return held is not None and held.cause is HoldCause.CONFIGURATION and not held.elsewhere


def _stands(effect: Effect, state: RolloutState) -> bool:
    """Whether what an event asked for is still meant after all that came later."""
    if isinstance(effect, MoveHome):
        return (effect.by is not None) == (state.stage is Stage.PROMOTED)
    return True


def _durable(state: RolloutState) -> tuple[bool, ...]:
    latches = [*state.sent_home.values(), *([state.latch] if state.latch is not None else [])]
    return tuple(one.durable for one in latches)


def _events_of(
    store: EvidenceStore, rows: Sequence[JournalRow], by_token: Sequence[str] = ()
) -> list[tuple[int, Event]]:
    """Each event with its number; what cannot be read is left out."""
    events: list[tuple[int, Event]] = []
    for row in rows:
        if row.kind in (STATE, LOST):
            continue
        try:
            events.append((row.sequence, _event(store, row, by_token)))
        except (JournalError, EvidenceError) as error:
            log.warning(
                "an event cannot be taken in again",
                extra={"rollout": row.rollout, "sequence": row.sequence, "error": str(error)},
            )
    return events


def _event(store: EvidenceStore, row: JournalRow, by_token: Sequence[str]) -> Event:
    if row.kind != OBSERVED:
        return event_of(row.kind, unpack(row.body))
    items: list[Evidence] = []
    for part in decode_items(row.body):
        if isinstance(part, ComparisonRef):
            comparison = store.comparison(part.capture_id)
            if by_token and drawn.reads(comparison) and store.hashed(part.capture_id):
                raise EvidenceHashed(
                    store.path, f"{part.capture_id} is kept as hashes, and {' and '.join(by_token)} read IDs"
                )
            items.append(comparison)
        elif isinstance(part, ForkRef):
            items.append(store.fork_seen(part.capture_id, part.left_arm, part.right_arm, part.replicate))
        else:
            items.append(part)
    return Observed(items=tuple(items), unix_s=row.unix_s)
