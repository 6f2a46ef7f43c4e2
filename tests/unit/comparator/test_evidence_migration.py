"""Stores of schema versions 1 and 2, as the forkgates of their time wrote them, opened by this one."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from comparator.evidence import (
    Batch,
    EvidenceForeign,
    EvidenceLocked,
    EvidenceNotFound,
    EvidenceReader,
    EvidenceStore,
    schema,
)
from comparator.evidence.explain import explain
from tests.support.at_rest import KEYS
from tests.support.exchanges import done, pair

DATA = Path(__file__).resolve().parents[2] / "data" / "evidence"
OLD = DATA / "version_1.sql"
BYTES = 50_000_000


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "evidence.db"
    db = sqlite3.connect(path)
    db.executescript(OLD.read_text())
    db.close()
    return path


def columns(path: Path) -> dict[str, set[str]]:
    db = sqlite3.connect(path)
    tables = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = {table: {row[1] for row in db.execute(f"PRAGMA table_info({table})")} for table in tables}
    db.close()
    return found


def indexes(path: Path) -> set[str]:
    db = sqlite3.connect(path)
    found = {row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'index'")}
    db.close()
    return found


def test_the_old_file_is_one_of_version_1(old: Path) -> None:
    db = sqlite3.connect(old)
    assert schema.version_of(db) == 1
    db.close()
    with pytest.raises(EvidenceForeign, match="schema_version 1 is older than 3; start the judge once"):
        EvidenceReader(old)


def test_it_ends_with_the_tables_of_a_new_file(old: Path, tmp_path: Path) -> None:
    EvidenceStore(old, BYTES).close()
    EvidenceStore(tmp_path / "new.db", BYTES).close()
    assert columns(old) == columns(tmp_path / "new.db")
    assert indexes(old) == indexes(tmp_path / "new.db")


def test_each_capture_becomes_a_comparison_that_its_gates_could_fold(old: Path) -> None:
    with EvidenceStore(old, BYTES) as store:
        equal, forked, other, again = (store.comparison(f"c-{number}") for number in (1, 2, 3, 4))
        assert [len(one.pairs) for one in (equal, forked, other, again)] == [1, 1, 1, 1]
        assert equal.pairs[0].fork is None
        assert forked.pairs[0].fork is not None
        assert forked.pairs[0].fork.fork_index == 2
        assert (equal.rollout, equal.tenant, equal.sample, equal.scores) == ("old-to-new", "acme", None, ())
        assert equal.unix_s == equal.pairs[0].right.timing.started_unix_s


def test_a_prompt_that_came_twice_is_a_repeat(old: Path) -> None:
    with EvidenceStore(old, BYTES) as store:
        repeats = [store.comparison(f"c-{number}").repeat for number in (1, 2, 3, 4)]
        assert repeats == [False, True, False, True]
        first, other = list(store.clusters("old-to-new"))
        assert first == store.comparison("c-1").cluster != other
        assert len(first) == 16


def test_what_was_kept_is_still_there(old: Path) -> None:
    with EvidenceStore(old, BYTES) as store:
        counts = store.ledger_counts("e")
        assert (counts.compared, counts.dropped) == (4, {"too_old": 1})
        assert store.terminal("e", range(9)) == {1, 2, 3, 4, 5}
        (verdict,) = store.verdicts(rollout="old-to-new")
        assert (verdict.answer, verdict.evidence_sequence, verdict.verdict) == ("fail", 4, "")
        assert (verdict.estimand, verdict.hold, verdict.interval) == ("traffic", False, None)
        assert store.show("c-2").pinned == "tipped the rollback"
        assert explain(store.show("c-2"))[0].stored_matches_recomputed is True
        assert [row.replicate for row in store.list().pairs] == [0, 0, 0, 0]
        with pytest.raises(EvidenceNotFound, match="no capture c-9"):
            store.comparison("c-9")


def test_it_can_be_written_to_and_read_beside_the_writer(old: Path) -> None:
    with EvidenceStore(old, BYTES) as store:
        store.add(Batch(comparisons=(done(pair(capture_id="new"), sequence=6),)))
        with EvidenceReader(old) as reader:
            assert reader.list(limit=1).pairs[0].capture_id == "new"
            assert reader.ledger_counts("e").compared == 5


def test_a_migration_that_fails_leaves_the_old_file_as_it_was(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real = columns(old), schema.MIGRATIONS[1]

    def fails(db: sqlite3.Connection) -> None:
        real(db)
        raise RuntimeError("disk on fire")

    monkeypatch.setitem(schema.MIGRATIONS, 1, fails)
    with pytest.raises(RuntimeError, match="on fire"):
        EvidenceStore(old, BYTES)
    assert columns(old) == before
    monkeypatch.setitem(schema.MIGRATIONS, 1, real)
    with EvidenceStore(old, BYTES) as store:
        assert store.status().pairs == 4


# -- version 2 ----------------------------------------------------------------------------------------------


@pytest.fixture
def second(tmp_path: Path) -> Path:
    path = tmp_path / "second.db"
    db = sqlite3.connect(path)
    db.executescript((DATA / "version_2.sql").read_text())
    db.close()
    return path


def test_a_file_of_version_2_ends_with_the_tables_of_a_new_one(second: Path, tmp_path: Path) -> None:
    db = sqlite3.connect(second)
    assert schema.version_of(db) == 2
    db.close()
    with pytest.raises(EvidenceForeign, match="schema_version 2 is older than 3; start the judge once"):
        EvidenceReader(second)
    EvidenceStore(second, BYTES).close()
    EvidenceStore(tmp_path / "new.db", BYTES).close()
    assert columns(second) == columns(tmp_path / "new.db")
    assert indexes(second) == indexes(tmp_path / "new.db")


def _everything(store: EvidenceReader) -> object:
    return (
        [store.show(f"c-{number}") for number in (1, 2, 3)],
        [store.comparison(f"c-{number}") for number in (1, 2, 3)],
        store.verdicts(),
        list(store.journal("old-to-new", 100)),
        list(store.clusters("old-to-new")),
        store.plans("old-to-new"),
        store.taken(),
        store.ledger_counts("e"),
    )


def test_what_version_2_kept_is_read_as_it_was_and_sealed_on_request(second: Path) -> None:
    with EvidenceStore(second, BYTES) as store:
        before = _everything(store)
        (whole,) = store.comparison("c-2").pairs
        assert whole.fork is not None
        assert whole.fork.fork_index == 2
        assert store.status().key_ids == ()
    with EvidenceStore(second, BYTES, keys=KEYS) as store:
        assert _everything(store) == before
        while not store.rekey_step().done:
            pass
        assert _everything(store) == before
        assert (
            store._db.execute("SELECT detail FROM terminal WHERE sequence = 9").fetchone()[0][:1] == b"\xc1"
        )
    with EvidenceReader(second) as reader, pytest.raises(EvidenceLocked):
        reader.show("c-1")


def test_two_migrated_files_have_ids_of_their_own(second: Path, old: Path) -> None:
    ids = set()
    for path in (second, old):
        EvidenceStore(path, BYTES).close()
        db = sqlite3.connect(path)
        ids.add(db.execute("SELECT value FROM meta WHERE key = 'store_id'").fetchone()[0])
        db.close()
    assert len(ids) == 2
    assert {len(one) for one in ids} == {32}
