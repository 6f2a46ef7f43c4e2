"""One thread that writes evidence, so that the event loop never waits for a disk.

Whatever waits while a transaction runs goes into the next one together: batches grow with the load by
themselves, and a quiet judge commits at once. A store that fails costs its evidence and nothing else: a pair
that cannot be kept raises to its owner, who counts it ``evidence_failed``; the store is opened again later.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from comparator.evidence import (
    NO_KEYS,
    Batch,
    ComparisonDone,
    Drop,
    ErasureRow,
    EvidenceError,
    EvidenceStore,
    JournalEntry,
    Kept,
    Keyring,
    Pin,
    RecordSeen,
    Retention,
    StoreStatus,
    Taken,
    VerdictRow,
)
from comparator.pair import ForkSeen
from proxy.ledger import Past

log = logging.getLogger(__name__)

MAX_BATCH_PAIRS = 128
"""Pairs in one transaction: a few tens of megabytes at most, and a second of work."""
MAX_NOTES = 10_000
"""Drops, verdicts, forks, pins and journal entries that wait for a store that fails. Beyond, the oldest are
lost, counted; a lost journal entry shows in the store as a gap in its rollout's numbers."""
MAX_NOTED_ITEMS = 200_000
"""Live records and the like in journal entries that wait: some tens of megabytes."""
REOPEN_S = 2.0
"""Between attempts to open a store that could not be opened."""

PAST_S = 3.0
"""How long an edge's first batch waits for what the store knows of it: well under the edge's own patience."""
ASK_S = 10.0
"""How long anybody else waits for an answer of a store that hangs."""

UPKEEP_S = 60.0
"""Between looks at what retention takes, and at erasures that an earlier judge left half done."""
UPKEEP_AGAIN_S = 0.05
"""The same while there is more to do: each step is bounded, and evidence goes in between."""

Note = Drop | VerdictRow | ForkSeen | Pin | JournalEntry | Taken | RecordSeen


class _Job:
    """One pair to keep, or one question to the store; its future is resolved on the event loop."""

    __slots__ = ("ask", "first_note", "future", "pair")

    def __init__(
        self,
        future: asyncio.Future[Any],
        pair: ComparisonDone | None,
        ask: Callable[[EvidenceStore], Any] | None,
        first_note: int,
    ) -> None:
        self.future = future
        self.pair = pair
        self.ask = ask
        self.first_note = first_note
        """Place of the first note that came with it or later, among all notes ever."""


class EvidenceWriter:
    """Owns the store. Its methods belong to the event loop."""

    def __init__(
        self,
        path: Path,
        max_bytes: int,
        *,
        keys: Keyring = NO_KEYS,
        kept: Kept = Kept.FULL,
        retention: Sequence[Retention] = (),
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self.keys = keys
        """What evidence is sealed and read with."""
        self._kept = kept
        self._retention = tuple(retention)
        self._next_upkeep = 0.0
        self._to_scrub = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._wake = threading.Condition()
        self._jobs: deque[_Job] = deque()
        self._notes: deque[Note] = deque()
        self._notes_gone = 0
        """Notes ever taken from the left: the place of the first that waits."""
        self._noted_items = 0
        self._closing = False
        self._store: EvidenceStore | None = None
        self._next_open = 0.0
        self.trouble: str | None = None
        """Why nothing can be kept now; None while all is well."""
        self._why: str | None = None
        """The same without the path, which must not come before it once more each time it is told."""
        self.notes_lost = 0
        self.size_bytes = 0
        """Of the store's file, looked at by the thread."""

    def start(self) -> None:
        """Start the thread; opening the store is its first job, and nobody waits for it."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="evidence", daemon=True)
        self._thread.start()

    async def keep(self, pair: ComparisonDone, *notes: Note) -> None:
        """Return once the pair is committed, with ``notes`` in the same transaction.

        Raises EvidenceError when it cannot be; the notes are kept all the same, by and by.
        """
        await self._submit(pair, None, notes)

    def note(self, *notes: Note) -> None:
        """Keep these with the next transaction, all in the same; nobody waits for them."""
        with self._wake:
            self._take_notes(notes)
            self._wake.notify()

    def kept(self, *notes: Note, limit_s: float) -> Awaitable[None]:
        """:meth:`note`, at once and so in order with all others; awaited, they are committed.

        Raises EvidenceError when they are not within ``limit_s``; they are kept by and by.
        """
        with self._wake:
            self._take_notes(notes)
            place = self._notes_gone + len(self._notes)
            self._wake.notify()

        def committed(_store: EvidenceStore) -> None:
            # Its transaction has just been tried, on this thread. What failed waits on the left again.
            if self._notes_gone < place:
                raise EvidenceError(self._path, self._why or "not kept yet")

        return self._ask(committed, limit_s)

    def _take_notes(self, notes: Sequence[Note]) -> None:
        self._notes.extend(notes)
        self._noted_items += sum(map(_weight, notes))
        self._bound_notes()

    def _bound_notes(self) -> None:
        while self._notes and (len(self._notes) > MAX_NOTES or self._noted_items > MAX_NOTED_ITEMS):
            self._noted_items -= _weight(self._notes.popleft())
            self._notes_gone += 1
            self.notes_lost += 1

    async def past(self, incarnation: str, sequences: Sequence[int]) -> Past:
        """What earlier judges ended of this edge (:class:`proxy.link.ports.PastReader`).

        From a store that cannot be read, or does not answer within :data:`PAST_S`, nothing is known: what
        they ended is charged to ``judge_lost``, the ledger balances all the same, and live records still
        come in.
        """

        def ask(store: EvidenceStore) -> Past:
            counts = store.ledger_counts(incarnation)
            ended = store.terminal(incarnation, sequences)
            return Past(compared=counts.compared, dropped=counts.dropped, ended=frozenset(ended))

        try:
            past: Past = await self._ask(ask, PAST_S)
        except EvidenceError as error:
            log.error("no memory of an edge's past", extra={"incarnation": incarnation, "error": str(error)})
            return Past()
        return past

    async def status(self) -> StoreStatus:
        """Size and counts. Raises EvidenceError."""
        status: StoreStatus = await self._ask(lambda store: store.status(), ASK_S)
        return status

    async def call(self, ask: Callable[[EvidenceStore], Any], limit_s: float = ASK_S) -> Any:
        """Run a short function on the writer's thread. Raises EvidenceError, also after ``limit_s``."""
        return await self._ask(ask, limit_s)

    async def close(self, timeout_s: float) -> None:
        """Commit what waits, within ``timeout_s``, and close the store."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        thread = self._thread
        if thread is not None:
            await asyncio.to_thread(thread.join, timeout_s)
            if thread.is_alive():
                log.error("evidence store still busy, left behind", extra={"waited_s": timeout_s})

    async def _ask(self, ask: Callable[[EvidenceStore], Any], limit_s: float) -> Any:
        try:
            async with asyncio.timeout(limit_s):
                return await self._submit(None, ask)
        except TimeoutError:
            raise EvidenceError(
                self._path, f"the disk did not answer within {limit_s:g} s, look at what it is doing"
            ) from None

    async def _submit(
        self,
        pair: ComparisonDone | None,
        ask: Callable[[EvidenceStore], Any] | None,
        notes: Sequence[Note] = (),
    ) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        with self._wake:
            if self._closing:
                raise EvidenceError(self._path, "the judge is stopping; nothing more is kept")
            self._jobs.append(_Job(future, pair, ask, self._notes_gone + len(self._notes)))
            self._take_notes(notes)
            self._wake.notify()
        return await future

    # -- the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        with contextlib.suppress(EvidenceError):  # said in the log; tried again with the first job
            self._opened()
        while True:
            with self._wake:
                while not (self._jobs or self._notes or self._closing or self._upkeep_in_s() <= 0):
                    self._wake.wait(self._upkeep_in_s())
                jobs = [self._jobs.popleft() for _ in range(min(len(self._jobs), MAX_BATCH_PAIRS))]
                notes = self._due_notes()
                last = self._closing and not self._jobs
            self._work(jobs, notes)
            if self._upkeep_in_s() <= 0 and not last:
                self._upkeep()
            with contextlib.suppress(OSError):
                self.size_bytes = self._path.stat().st_size
            if last:
                break
            if self.trouble is not None and not jobs:
                time.sleep(0.2)  # notes alone wait for the store; do not spin on a broken one
        if self._store is not None:
            with contextlib.suppress(EvidenceError):
                self._store.close()

    def _upkeep_in_s(self) -> float:
        return self._next_upkeep - time.monotonic()

    def _upkeep(self) -> None:
        """One bounded step of what nobody asks for: erasures that a judge was killed in, and retention."""
        more = False
        try:
            store = self._opened()
            under_way = store.erasing()
            if under_way:
                line = store.erase_step(time.time())
                # All is deleted and there is no line yet: a reader holds old pages, which is not to be spun
                # on.
                more = line is not None or not under_way[0].deleted
                if line is not None:
                    log_erasure(line)
            if self._retention:
                taken = store.retain(self._retention, time.time())
                more = more or taken.more
                self._to_scrub = self._to_scrub or bool(taken.captures or taken.exchanges)
            if self._to_scrub and not more:
                self._to_scrub = not store.scrub()
        except EvidenceError as error:
            self._failed(error)
        except Exception:
            log.exception("a bug in the evidence store's upkeep; tried again")
        self._next_upkeep = time.monotonic() + (UPKEEP_AGAIN_S if more else UPKEEP_S)

    def _due_notes(self) -> list[Note]:
        """All that wait, in their order, but for those of comparisons that wait themselves."""
        count = len(self._notes)
        if self._jobs:
            count = min(count, max(0, self._jobs[0].first_note - self._notes_gone))
        notes = [self._notes.popleft() for _ in range(count)]
        self._notes_gone += count
        self._noted_items -= sum(map(_weight, notes))
        return notes

    def _work(self, jobs: list[_Job], notes: list[Note]) -> None:
        results: list[tuple[_Job, Any, BaseException | None]] = []
        pairs = [job for job in jobs if job.pair is not None]
        try:
            store = self._opened()
            if pairs or notes:
                self._add(store, pairs, notes, results)
        except EvidenceError as error:
            self._failed(error)
            self._keep_notes(notes)
            results += [(job, None, error) for job in pairs]
        except Exception as error:
            log.exception("a bug in the evidence store; this batch is lost")
            self.notes_lost += len(notes)
            results += [
                (job, None, EvidenceError(self._path, f"{type(error).__name__}: {error}")) for job in pairs
            ]
        for job in jobs:
            if job.ask is not None and not job.future.cancelled():  # else whoever asked has left
                results.append(self._answer(job))
        self._resolve(results)

    def _add(
        self,
        store: EvidenceStore,
        pairs: list[_Job],
        notes: list[Note],
        results: list[tuple[_Job, Any, BaseException | None]],
    ) -> None:
        try:
            added = store.add(_batch([job.pair for job in pairs if job.pair is not None], notes))
            results += [(job, None, None) for job in pairs]
        except EvidenceError as error:
            if len(pairs) <= 1 or type(error) is not EvidenceError:
                raise
            # One value that cannot be stored must not cost its neighbours: each on its own.
            for job in pairs:
                assert job.pair is not None
                try:
                    store.add(_batch([job.pair], []))
                    results.append((job, None, None))
                except EvidenceError as own:
                    results.append((job, None, own))
            added = store.add(_batch([], notes))
        for why in added.lost:
            log.error("evidence was folded that the journal cannot hold", extra={"reason": why})
        self.notes_lost += len(added.lost)
        self._well()

    def _answer(self, job: _Job) -> tuple[_Job, Any, BaseException | None]:
        assert job.ask is not None
        try:
            return job, job.ask(self._opened()), None
        except EvidenceError as error:
            self._failed(error)
            return job, None, error
        except Exception as error:
            return job, None, error

    def _opened(self) -> EvidenceStore:
        if self._store is not None:
            return self._store
        now = time.monotonic()
        if now < self._next_open:
            raise EvidenceError(self._path, self._why or "not open")
        try:
            self._store = EvidenceStore(self._path, self._max_bytes, keys=self.keys, kept=self._kept)
        except EvidenceError as error:
            self._next_open = now + REOPEN_S
            self._failed(error)
            raise
        self._well()
        return self._store

    def _failed(self, error: EvidenceError) -> None:
        if self.trouble is None:
            log.error("evidence is not kept", extra={"error": str(error)})
        self.trouble, self._why = str(error), error.message

    def _well(self) -> None:
        if self.trouble is not None:
            log.info("evidence is kept again")
        self.trouble = self._why = None

    def _keep_notes(self, notes: list[Note]) -> None:
        with self._wake:
            self._notes.extendleft(reversed(notes))
            self._notes_gone -= len(notes)
            self._noted_items += sum(map(_weight, notes))
            self._bound_notes()
            if self._closing:
                self.notes_lost += len(self._notes)
                self._notes.clear()

    def _resolve(self, results: list[tuple[_Job, Any, BaseException | None]]) -> None:
        if not results or self._loop is None:
            return

        def resolve() -> None:
            for job, value, error in results:
                if job.future.done():
                    continue  # whoever asked has left
                if error is not None:
                    job.future.set_exception(error)
                else:
                    job.future.set_result(value)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(resolve)


def _batch(comparisons: Sequence[ComparisonDone], notes: Sequence[Note]) -> Batch:
    return Batch(
        comparisons=tuple(comparisons),
        forks=tuple(note for note in notes if isinstance(note, ForkSeen)),
        drops=tuple(note for note in notes if isinstance(note, Drop)),
        verdicts=tuple(note for note in notes if isinstance(note, VerdictRow)),
        pins=tuple(note for note in notes if isinstance(note, Pin)),
        journal=tuple(note for note in notes if isinstance(note, JournalEntry)),
        taken=tuple(note for note in notes if isinstance(note, Taken)),
        records=tuple(note for note in notes if isinstance(note, RecordSeen)),
    )


def log_erasure(line: ErasureRow) -> None:
    """Its hash in the judge's own log is what the end of the store's log can be held against."""
    log.warning(
        "evidence erased",
        extra={
            "erasure": line.erasure,
            "scope": line.scope,
            "erased": line.name,
            "who": line.who,
            "reason": line.reason,
            "captures": line.captures,
            "exchanges": line.exchanges,
            "hash": line.hash,
        },
    )


def _weight(note: Note) -> int:
    return len(note.items) if isinstance(note, JournalEntry) else 0
