"""What a rollout's gates folded, read back: for a judge that takes over, and for whoever computes again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec

from comparator.compare import compare
from comparator.comparison import Comparison
from comparator.evidence import places, tables
from comparator.evidence.codec import ContentError
from comparator.evidence.connection import Connection
from comparator.evidence.erasure_log import ERASED_SELECT, ERASURE_SELECT, erased_text, erasures_of
from comparator.evidence.errors import (
    EvidenceDamaged,
    EvidenceErased,
    EvidenceNotFound,
    EvidencePruned,
    mapped,
)
from comparator.evidence.journal import unpack
from comparator.evidence.rows import ErasureRow, JournalRow, PlanRow, Shown, VerdictRow
from comparator.evidence.whole import NotWholeError, comparison_of
from comparator.floor import Floors
from comparator.pair import ForkSeen
from comparator.records import Arm, CaptureId

FLOOR_PAIRS = 200
"""Control pairs that a noise floor is taken from, at most: a fraction of a second of work."""


class FoldedReader(Connection):
    """Comparisons and forks as gates saw them, and the journal that tells their order."""

    def show(self, capture_id: str) -> Shown:
        """Everything about one capture.

        Raises:
            EvidenceNotFound: the store knows nothing of it.
        """
        exchanges = self._all(f"{tables.EXCHANGE_SELECT} WHERE capture_id = ? ORDER BY id", [capture_id])
        forks = self._all(f"SELECT {tables.FORK_COLUMNS} FROM fork WHERE capture_id = ?", [capture_id])
        comparisons = self._all(
            f"SELECT id, {tables.COMPARISON_COLUMNS} FROM comparison WHERE capture_id = ?", [capture_id]
        )
        if not exchanges and not forks and not comparisons:
            self._check_erased(capture_id)
            raise EvidenceNotFound(
                self.path, f"no capture {capture_id}; `forkgate evidence list` shows what there is"
            )
        pairs = self._all(f"{tables.PAIR_SELECT} WHERE pair.capture_id = ? ORDER BY pair.id", [capture_id])
        verdicts = self._all(
            f"SELECT {tables.VERDICT_COLUMNS} FROM verdict WHERE deciding_id = ? ORDER BY id", [capture_id]
        )
        pins = self._all("SELECT why FROM pin WHERE capture_id = ?", [capture_id])
        scores = self._all(
            f"SELECT {tables.SCORE_COLUMNS} FROM score WHERE capture_id = ? ORDER BY id", [capture_id]
        )
        return Shown(
            capture_id=CaptureId(capture_id),
            comparison=tables.comparison_of(self._seal, comparisons[0]) if comparisons else None,
            scores=tuple(tables.score_of(self._seal, row) for row in scores),
            exchanges=tuple(tables.exchange_of(self._seal, row) for row in exchanges),
            pairs=tuple(tables.pair_of(self._seal, row) for row in pairs),
            forks=tuple(tables.fork_of(self._seal, row) for row in forks),
            verdicts=tuple(tables.verdict_of(self._seal, row) for row in verdicts),
            pinned=pins[0][0] if pins else None,
        )

    def comparison(self, capture_id: str) -> Comparison:
        """One comparison as its gates saw it: pairs compared again from their stored exchanges.

        Raises:
            EvidenceNotFound: it was never finished, or is forgotten.
            EvidencePruned: its steps made room.
            EvidenceDamaged: what is stored of it does not fit together.
        """
        try:
            return comparison_of(self.show(capture_id))
        except NotWholeError as exc:
            kind = EvidencePruned if exc.pruned else EvidenceDamaged
            raise kind(self.path, f"capture {capture_id}: {exc}") from exc
        except (ContentError, msgspec.MsgspecError, ValueError) as exc:
            raise EvidenceDamaged(self.path, f"capture {capture_id}: {exc}") from exc

    def hashed(self, capture_id: str) -> bool:
        """Whether keyed hashes were kept of it, and neither token IDs nor text."""
        return bool(self._all("SELECT 1 FROM exchange WHERE capture_id = ? AND hashed LIMIT 1", [capture_id]))

    def fork_seen(self, capture_id: str, left_arm: str, right_arm: str, replicate: int) -> ForkSeen:
        """A fork as it was reported. Raises EvidenceNotFound."""
        rows = self._all(
            f"SELECT {tables.FORK_COLUMNS} FROM fork WHERE "
            "capture_id = ? AND left_arm = ? AND right_arm = ? AND replicate = ?",
            [capture_id, left_arm, right_arm, replicate],
        )
        if not rows:
            self._check_erased(capture_id)
            arms = f"{left_arm} and {right_arm}, replicate {replicate}"
            raise EvidenceNotFound(self.path, f"capture {capture_id}: no fork of {arms}")
        try:
            stored = tables.fork_of(self._seal, rows[0])
        except msgspec.MsgspecError as exc:
            raise EvidenceDamaged(self.path, f"capture {capture_id}: its fork: {exc}") from exc
        return ForkSeen(
            capture_id=stored.capture_id,
            rollout=stored.rollout,
            tenant=stored.tenant,
            left_arm=Arm(left_arm),
            right_arm=Arm(right_arm),
            fork=stored.fork,
            replicate=stored.replicate,
        )

    def erasures(self) -> tuple[ErasureRow, ...]:
        """The erasure log, oldest first."""
        return erasures_of(self._all(ERASURE_SELECT, []))

    def _check_erased(self, capture_id: str) -> None:
        """Raises EvidenceErased where this capture was, or is just being."""
        rows = self._all(ERASED_SELECT, [capture_id])
        if rows:
            raise EvidenceErased(self.path, erased_text(capture_id, rows[0]))

    def clusters(self, rollout: str, since_unix_s: float = 0.0) -> Iterator[str]:
        """The cluster of each kept comparison with a valid pair of the candidate, samples of suites included,
        repeats left out, oldest first, streamed.

        Those of captures that were forgotten to make room are not among them.
        """
        for row in self._pages(
            "SELECT id, cluster, capture_id FROM comparison WHERE id > ? AND rollout = ? AND NOT repeat "
            "AND unix_s >= ? AND EXISTS (SELECT 1 FROM pair WHERE "
            "pair.capture_id = comparison.capture_id AND right_arm = 'candidate' AND set_aside IS NULL) "
            "ORDER BY id LIMIT ?",
            [rollout, since_unix_s],
        ):
            yield self._seal.open_text(places.cluster_place(row[2]), row[1]) or ""

    def samples_done(
        self, rollout: str, suite_digest: str, stage: str, since_unix_s: float = 0.0
    ) -> Iterator[tuple[str, int]]:
        """(sample, passage) of each kept comparison of this suite in this stage, oldest first."""
        for row in self._pages(
            "SELECT id, sample_id, passage FROM comparison WHERE id > ? AND rollout = ? "
            "AND suite_digest = ? AND suite_stage = ? AND unix_s >= ? AND sample_id IS NOT NULL "
            "ORDER BY id LIMIT ?",
            [rollout, suite_digest, stage, since_unix_s],
        ):
            yield row[1], row[2]

    def journal(self, rollout: str, until_id: int) -> Iterator[JournalRow]:
        """What is left of a rollout's journal up to an entry, oldest first, streamed; bodies still packed."""
        for row in self._pages(
            f"SELECT id, {tables.JOURNAL_COLUMNS} FROM journal WHERE id > ? AND rollout = ? AND id <= ? "
            "ORDER BY id LIMIT ?",
            [rollout, until_id],
        ):
            yield tables.journal_of(self._seal, row)

    def journal_after(self, rollout: str, sequence: int, limit: int) -> tuple[JournalRow, ...]:
        """The end of a rollout's journal, from the event after number ``sequence`` on, oldest first; its
        newest ``limit`` entries at most."""
        rows = self._all(
            f"SELECT id, {tables.JOURNAL_COLUMNS} FROM journal WHERE rollout = ? ORDER BY id DESC LIMIT ?",
            [rollout, limit],
        )
        newest = itertools.takewhile(
            lambda row: row.sequence > sequence, (tables.journal_of(self._seal, row) for row in rows)
        )
        return tuple(reversed(list(newest)))

    def plans(self, rollout: str) -> tuple[PlanRow, ...]:
        """Every plan that this rollout had, oldest first."""
        rows = self._all(
            "SELECT rollout, digest, unix_s, policy_digest, policy, body FROM plan WHERE rollout = ? "
            "ORDER BY unix_s",
            [rollout],
        )
        return tuple(
            PlanRow(
                rollout=row[0],
                digest=row[1],
                unix_s=row[2],
                policy_digest=row[3],
                policy=row[4],
                body=unpack(row[5]),
            )
            for row in rows
        )

    def taken(self) -> dict[str, int]:
        """Edge incarnation → its last batch whose live records are in the journal, oldest first."""
        return dict(self._all("SELECT incarnation, batch FROM taken ORDER BY id", []))

    def verdicts_until_now(self, rollout: str) -> tuple[int, tuple[VerdictRow, ...]]:
        """The ID of the journal's last entry, and every stored verdict, oldest first, of one moment."""
        with mapped(self.path):
            self._db.execute("BEGIN")
            try:
                last = self._db.execute("SELECT coalesce(max(id), 0) FROM journal").fetchone()[0]
                rows = self._db.execute(
                    f"SELECT {tables.VERDICT_COLUMNS} FROM verdict WHERE rollout = ? ORDER BY id", [rollout]
                ).fetchall()
            finally:
                self._db.execute("COMMIT")
        return int(last), tuple(tables.verdict_of(self._seal, row) for row in rows)

    def rollouts(self) -> tuple[str, ...]:
        """Every rollout that the store knows, by name."""
        rows = self._all(
            "SELECT rollout FROM plan UNION SELECT rollout FROM verdict UNION SELECT rollout FROM ledger "
            "ORDER BY 1",
            [],
        )
        return tuple(row[0] for row in rows)

    def floors(self, rollout: str, *, without: str, limit: int = FLOOR_PAIRS) -> Floors:
        """The A/A floor of a rollout, by path and band, from its newest stored control pairs.

        Args:
            without: a capture whose own controls are left out: what is explained must not excuse itself.
            limit: control pairs at most.
        """
        rows = self._all(
            "SELECT pair.left_exchange_id, pair.right_exchange_id FROM pair "
            "JOIN exchange l ON l.exchange_id = pair.left_exchange_id "
            "JOIN exchange r ON r.exchange_id = pair.right_exchange_id "
            "WHERE pair.rollout = ? AND pair.right_arm = 'control' AND pair.set_aside IS NULL "
            "AND pair.capture_id != ? AND NOT l.pruned AND NOT r.pruned ORDER BY pair.id DESC LIMIT ?",
            [rollout, without, limit],
        )
        floors = Floors()
        for ids in reversed(rows):
            found = self._all(f"{tables.EXCHANGE_SELECT} WHERE exchange_id IN (?, ?)", list(ids))
            by_id = {row[0]: tables.exchange_of(self._seal, row).exchange for row in found}
            if len(by_id) == 2:  # else pruned since
                floors = floors.add(compare(by_id[ids[0]], by_id[ids[1]]))
        return floors
