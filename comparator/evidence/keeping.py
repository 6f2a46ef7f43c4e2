"""What a store does with what it has: retention, erasure, rotation. Bounded steps, each all or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from comparator.evidence.erasure import Eraser, Erasing
from comparator.evidence.errors import EvidenceNotFound, mapped
from comparator.evidence.reader import EvidenceReader
from comparator.evidence.rekey import Rekeyed, Rekeyer
from comparator.evidence.retention import Pruner
from comparator.evidence.rows import ErasureRow
from comparator.evidence.tenants import Retained, Retention, retain


class KeepingStore(EvidenceReader):
    """The half of :class:`~comparator.evidence.store.EvidenceStore` that takes nothing in. A caller asks for
    another step while there is more to do, with whatever else waits in between."""

    _pruner: Pruner
    _eraser: Eraser

    def retain(self, rules: Sequence[Retention], now_unix_s: float) -> Retained:
        """Take what is too old or too much of a tenant, a bounded part of it. Raises EvidenceError."""
        with mapped(self.path):
            with self._transaction():
                taken = retain(self._db, rules, now_unix_s)
                self._pruner.count(captures=taken.captures, exchanges=taken.exchanges)
            if taken.captures or taken.exchanges:
                self._db.execute("PRAGMA incremental_vacuum").fetchall()
        return taken

    def erase(self, scope: str, name: str, who: str, reason: str, unix_s: float) -> Erasing | ErasureRow:
        """Begin to erase a tenant or a capture; :meth:`erase_step` does the work. Safe to repeat: one that is
        under way is found again, and one that is done and left nothing is answered with its line of the log.

        Raises:
            EvidenceNotFound: the store knows nothing of it, and never erased it.
        """
        with mapped(self.path), self._transaction():
            job = self._eraser.begin(scope, name, who, reason, unix_s)
            earlier = None if job is not None else self._eraser.earlier(scope, name)
        if job is not None:
            return job
        if earlier is None:
            raise EvidenceNotFound(
                self.path, f"nothing of {scope} {name} is stored, so there is nothing to erase"
            )
        return earlier

    def erasing(self) -> tuple[Erasing, ...]:
        """Erasures under way, also those that an earlier process began, oldest first."""
        with mapped(self.path):
            return tuple(self._eraser.under_way())

    def erase_step(self, unix_s: float) -> ErasureRow | None:
        """Go on with the oldest erasure. Returns its line in the log once it is done.

        Deletes a bounded part; when nothing is left, scrubs the file and appends to the log. A reader that
        holds an old page back postpones the end, and the next step tries again.
        """
        with mapped(self.path):
            jobs = self._eraser.under_way()
            if not jobs:
                return None
            job = jobs[0]
            if not job.deleted:
                with self._transaction():
                    self._eraser.step(job)
                return None
            if not self.scrub():
                return None
            with self._transaction():
                return self._eraser.finish(job, unix_s)

    def scrub(self) -> bool:
        """Give free pages back and empty the write-ahead log, which holds pages as they were before. Returns
        False while a reader needs them."""
        with mapped(self.path):
            self._db.execute("PRAGMA incremental_vacuum").fetchall()
            busy = self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        return not busy

    def rekey_step(self) -> Rekeyed:
        """Bring one more batch of values to the present key (:mod:`comparator.evidence.rekey`); begins anew
        after the last. Raises EvidenceLocked where an old key is needed that is not listed."""
        with mapped(self.path):
            self._seal.ready()
            with self._transaction():
                done = Rekeyer(self._db, self._seal).step()
            if done.done:
                self.scrub()
        return done

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            # A full disk may have rolled back by itself already.
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._pruner.floor = 0  # what it had pruned is back
            raise
