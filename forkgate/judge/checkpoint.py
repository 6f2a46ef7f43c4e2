"""What a judge knew of its rollouts, for the judge that comes after a ``kill -9``.

Once a second every rollout's state goes to one file, with the captures that it folded last. The next judge
takes the state over if the plan is still the same and nothing is latched, and folds again, from the
evidence store, the pairs that were kept after the checkpoint. Live records are not kept anywhere: their
gates miss at most a second. With the states go the numbers of the batches that brought the records in them,
so that a batch that comes again after a restart does not count twice. Gates that start anew (another plan)
do not get it a second time either.

The latch is not in here: it has its own file, and it always wins.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from comparator.compare import compare
from comparator.comparison import Comparison
from comparator.errors import ComparatorError
from comparator.evidence import EvidenceError, EvidenceStore
from forkgate.judge.desk import Asked, Desk, Tally
from forkgate.judge.writer import EvidenceWriter
from policies.rollout import RolloutState

log = logging.getLogger(__name__)

RECENT = 256
"""Captures remembered with a checkpoint: more than a judge can fold in the second between two."""
DAY_S = 86_400.0
EDGES = 4_096
"""Edge incarnations whose last batch is remembered."""
MAX_AGAIN = 1_000
"""Pairs folded again at most."""
AGAIN_S = 60.0
"""What reading them may take before a judge starts without."""


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout in the file."""

    state: RolloutState
    tally: Tally
    folded: tuple[str, ...]
    """Newest captures in ``state``."""
    spent_today: dict[str, int] = {}
    """Shadow tokens by tenant, since 00:00 UTC of the file's day."""


class File(msgspec.Struct, frozen=True, kw_only=True):
    version: int = 1
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
        self._saved: dict[str, int] = {}
        self._folded: dict[str, deque[str]] = {}
        self._failed = False
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
        self.caught_up: list[Asked] = []
        """What came of pairs that :meth:`restore` folded again: to be obeyed once edges can be reached."""

    def folded(self, rollout: str, capture_id: str) -> None:
        """This capture's pair is in the state now."""
        self._folded.setdefault(rollout, deque(maxlen=RECENT)).append(capture_id)

    async def save(self) -> None:
        """Write the file if anything moved. A disk that refuses costs memory across a crash, nothing else."""
        now: dict[str, int] = {state.plan.name: state.sequence for state in self._desk.states()}
        if now == self._saved:
            return
        kept = tuple(
            Kept(
                state=state,
                tally=msgspec.structs.replace(self._desk.tallies[state.plan.name]),
                folded=tuple(self._folded.get(state.plan.name, ())),
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
            if not self._failed:
                log.error("rollout states are not kept", extra={"error": str(error)})
            self._failed = True
            return
        self._failed = False
        self._saved = now

    def _write(self, file: File) -> None:
        scratch = self._path.with_name(self._path.name + ".new")
        with self._disk:  # one that hung may still be at it when the judge stops and saves for the last time
            scratch.write_bytes(msgspec.json.encode(file))
            os.replace(scratch, self._path)

    async def restore(self) -> None:
        """Take over what an earlier judge left, and catch up from the evidence store."""
        try:
            file = msgspec.json.decode(self._path.read_bytes(), type=File)
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            log.error("rollout states are lost, gates start anew", extra={"error": str(error)})
            return
        self.batches_before = file.batches
        if int(file.unix_s // DAY_S) == int(time.time() // DAY_S):
            self.spent_before = {kept.state.plan.name: kept.spent_today for kept in file.rollouts}
        for kept in file.rollouts:
            await self._take_over(kept)

    async def _take_over(self, kept: Kept) -> None:
        name = kept.state.plan.name
        try:
            fresh = self._desk.state(name)
        except KeyError:
            return
        if kept.state.plan != fresh.plan:
            log.warning("the plan changed, gates start anew", extra={"rollout": name})
            return
        if fresh.latch is not None:
            if (
                kept.state.latch is not None
            ):  # what the gates said then is shown; the latch's own file decides
                self._desk.restore(msgspec.structs.replace(kept.state, latch=fresh.latch))
                self._desk.tallies[name] = kept.tally
            return
        if kept.state.latch is not None:
            return  # lifted since: starts from nothing
        self._desk.restore(kept.state)
        self._desk.tallies[name] = kept.tally
        self._folded[name] = deque(kept.folded, maxlen=RECENT)
        try:
            pairs: list[Comparison] = await self._writer.call(
                lambda store: _after(store, name, frozenset(kept.folded)), AGAIN_S
            )
        except EvidenceError as error:
            log.error("pairs after the checkpoint are not folded again", extra={"error": str(error)})
            return
        for pair in pairs:
            self.folded(name, pair.capture_id)
            self.caught_up.append(self._desk.observe(pair, time.time()))
        log.info("rollout state taken over", extra={"rollout": name, "pairs_after": len(pairs)})


def _after(store: EvidenceStore, rollout: str, folded: frozenset[str]) -> list[Comparison]:
    """Pairs of this rollout that are newer than everything in ``folded``, oldest first."""
    newer: list[str] = []
    cursor: str | None = None
    while len(newer) < MAX_AGAIN:
        page = store.list(rollout=rollout, limit=100, cursor=cursor)
        for stored in page.pairs:
            if stored.capture_id in folded:
                cursor = None
                break
            newer.append(stored.capture_id)
        else:
            cursor = page.cursor
        if cursor is None:
            break
    pairs = []
    for capture_id in reversed(newer):
        shown = store.show(capture_id)
        if len(shown.exchanges) != 2 or any(one.pruned for one in shown.exchanges):
            continue
        try:
            pair = compare(shown.exchanges[0].exchange, shown.exchanges[1].exchange)
        except ComparatorError as error:
            log.warning(
                "a stored pair cannot be compared again",
                extra={"capture_id": capture_id, "error": str(error)},
            )
            continue
        pairs.append(
            Comparison(
                capture_id=pair.capture_id,
                rollout=rollout,
                tenant=pair.right.tenant,
                cluster=shown.exchanges[0].prompt_sha256[:16],
                pairs=(pair,),
                unix_s=pair.right.timing.started_unix_s,
            )
        )
    return pairs
