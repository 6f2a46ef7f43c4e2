"""Erasure and retention: what goes is gone from the bytes too, what stays is told, and a kill only delays."""

from __future__ import annotations

import hashlib
import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from comparator.evidence import (
    Batch,
    ComparisonDone,
    ErasureRow,
    EvidenceErased,
    EvidenceNotFound,
    EvidencePruned,
    EvidenceStore,
    Pin,
    Retention,
)
from comparator.evidence import erasure as module
from comparator.evidence.erasure_log import FIRST, faults_of
from comparator.evidence.export import read_comparisons
from comparator.records import CaptureId
from tests.support.at_rest import KEYS, fork_of, found_in, secret_pair
from tests.support.exchanges import comparison, pair

BYTES = 50_000_000
DAY_S = 86_400.0
NOW = 1_800_000_000.0


def add(
    store: EvidenceStore, capture_id: str, sequence: int, tenant: str = "acme", unix_s: float = NOW
) -> None:
    one = secret_pair(capture_id, tenant)
    done = comparison(one, unix_s=unix_s)
    store.add(
        Batch(
            comparisons=(ComparisonDone(comparison=done, incarnation="e", sequence=sequence),),
            forks=(fork_of(one),),
        )
    )


def harmless(store: EvidenceStore, capture_id: str, sequence: int, tenant: str = "globex") -> None:
    changes = {"tenant": tenant}
    one = comparison(pair(capture_id=capture_id, left=changes, right=changes))
    store.add(Batch(comparisons=(ComparisonDone(comparison=one, incarnation="e", sequence=sequence),)))


def erase(store: EvidenceStore, scope: str, name: str, reason: str = "ticket 7") -> ErasureRow:
    begun = store.erase(scope, name, "anna", reason, NOW)
    while not isinstance(begun, ErasureRow):
        line = store.erase_step(NOW + 1)
        begun = line if line is not None else begun
    return begun


def files(path: Path) -> list[Path]:
    return [path, path.with_name(path.name + "-wal")]


def test_a_tenant_is_gone_from_the_bytes_of_file_and_log(tmp_path: Path) -> None:
    path = tmp_path / "e"
    with EvidenceStore(path, BYTES) as store:  # nothing sealed: the bytes themselves must go
        for number in range(1, 60):
            add(store, f"c-{number}", number)
            harmless(store, f"g-{number}", 100 + number)
        assert found_in(files(path))
        line = erase(store, "tenant", "acme")
        assert (line.captures, line.exchanges, line.scope, line.name) == (59, 118, "tenant", "acme")
        assert (line.who, line.reason, line.unix_s, line.done_unix_s) == ("anna", "ticket 7", NOW, NOW + 1)
        assert found_in(files(path)) == []
        assert {row.tenant for row in store.list(limit=1000).pairs} == {"globex"}
        assert len(store.list(limit=1000).pairs) == 59
        assert store.ledger_counts("e").compared == 118  # counts stay
    assert found_in(files(path)) == []


def test_one_request_goes_and_its_neighbours_stay(tmp_path: Path) -> None:
    with EvidenceStore(tmp_path / "e", BYTES, keys=KEYS) as store:
        for number in range(1, 4):
            add(store, f"c-{number}", number)
        store.add(
            Batch(pins=(Pin(capture_id=CaptureId("c-2"), rollout="old-to-new", why="tipped", unix_s=1.0),))
        )
        line = erase(store, "capture", "c-2")
        assert (line.captures, line.exchanges) == (1, 2)
        for ask in (
            lambda: store.show("c-2"),
            lambda: store.comparison("c-2"),
            lambda: store.fork_seen("c-2", "baseline", "candidate", 0),
            lambda: store.resolve("c-2"),
        ):
            with pytest.raises(EvidenceNotFound):
                ask()
        with pytest.raises(EvidenceErased, match=r"c-2 was erased on 2027-01-15T08:00:00Z by anna: ticket 7"):
            store.comparison("c-2")
        assert store.comparison("c-1").pairs
        assert store.comparison("c-3").pairs
        assert store.status().pinned == 0  # an erasure is stronger than a pin


def test_it_is_safe_to_repeat(tmp_path: Path) -> None:
    with EvidenceStore(tmp_path / "e", BYTES) as store:
        add(store, "c-1", 1)
        add(store, "c-2", 2)
        first = erase(store, "capture", "c-1")
        assert erase(store, "capture", "c-1", "again") == first
        tenant = erase(store, "tenant", "acme")
        assert erase(store, "tenant", "acme", "again") == tenant
        assert erase(store, "capture", "c-2") == tenant  # it went with its tenant
        with pytest.raises(EvidenceNotFound, match="nothing of tenant nobody is stored"):
            store.erase("tenant", "nobody", "anna", "why", NOW)
        add(store, "c-3", 3)  # new evidence of the tenant is erased anew
        assert erase(store, "tenant", "acme").erasure == 3
        assert [line.erasure for line in store.erasures()] == [1, 2, 3]


def test_what_is_finished_after_its_erasure_is_not_kept(tmp_path: Path) -> None:
    with EvidenceStore(tmp_path / "e", BYTES) as store:
        store.add(Batch(forks=(fork_of(secret_pair("c-1")),)))
        erase(store, "capture", "c-1")
        one = comparison(secret_pair("c-1"))
        added = store.add(
            Batch(
                comparisons=(ComparisonDone(comparison=one, incarnation="e", sequence=1),),
                forks=(fork_of(secret_pair("c-1")),),
            )
        )
        assert (added.refused, added.pairs) == (1, 0)
        assert store.ledger_counts("e").compared == 1  # the capture is settled all the same
        with pytest.raises(EvidenceErased):
            store.show("c-1")
        assert found_in(files(tmp_path / "e")) == []


def test_the_log_is_a_chain_that_shows_every_change(tmp_path: Path) -> None:
    path = tmp_path / "e"
    with EvidenceStore(path, BYTES) as store:
        for number in range(1, 4):
            add(store, f"c-{number}", number)
            erase(store, "capture", f"c-{number}")
        lines = store.erasures()
        for statement in ("UPDATE erasure SET captures = 0", "DELETE FROM erasure WHERE id = 2"):
            with pytest.raises(sqlite3.IntegrityError, match="appended to only"):
                store._db.execute(statement)
    assert lines[0].previous == FIRST
    for line in lines:  # with other means than ours
        plain = msgspec.structs.asdict(line)
        told = plain.pop("hash")
        raw = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        assert hashlib.sha256(raw).hexdigest() == told
    assert faults_of(lines) == ()
    changed = msgspec.structs.replace(lines[1], reason="none")
    assert faults_of((lines[0], changed, lines[2])) == ("erasure 2: it was changed",)
    assert faults_of((lines[0], lines[2])) == ("erasure 3: a line before it was changed or taken out",)


def test_an_export_carries_the_log_and_its_comparisons_read_back(tmp_path: Path) -> None:
    with EvidenceStore(tmp_path / "e", BYTES) as store:
        add(store, "c-1", 1)
        add(store, "c-2", 2)
        erase(store, "capture", "c-1")
        lines = [msgspec.json.decode(line) for line in store.export()]
        assert [line["name"] for line in lines if "erasure" in line] == ["c-1"]
        assert [one.capture_id for one in read_comparisons(store.export())] == ["c-2"]
        other = [msgspec.json.decode(line) for line in store.export(tenant="globex")]
        assert len(other) == 2  # a request's ID says nothing of a tenant
        erase(store, "tenant", "acme")
        other = [msgspec.json.decode(line) for line in store.export(tenant="globex")]
        assert all(line.get("name") != "acme" for line in other)


def test_an_erasure_waits_for_a_reader_of_old_pages_and_ends_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "e"
    with EvidenceStore(path, BYTES, busy_timeout_s=0.05) as store:
        add(store, "c-1", 1)
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM exchange").fetchone()
        begun = store.erase("tenant", "acme", "anna", "ticket 7", NOW)
        assert not isinstance(begun, ErasureRow)
        assert [store.erase_step(NOW) for _ in range(3)] == [None] * 3
        assert [job.deleted for job in store.erasing()] == [True]
        assert store.erasures() == ()  # nothing is claimed while old pages can be read
        reader.close()
        line = store.erase_step(NOW + 5)
        assert line is not None
        assert line.done_unix_s == NOW + 5
        assert found_in(files(path)) == []


KILLED = """
import os, sys
from comparator.evidence import EvidenceStore
from comparator.evidence import erasure as module
from comparator.evidence import rekey
from tests.support.at_rest import key
from comparator.evidence import Keyring
path, what, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
keys = Keyring(current=key(2), old=(key(1),)) if what == "rekey" else Keyring(current=key(1))
module.AT_ONCE, rekey.AT_ONCE = 5, 5
store = EvidenceStore(path, 50_000_000, keys=keys)
if what == "erase":
    store.erase("tenant", "acme", "anna", "ticket 7", 1_800_000_000.0)
real, count = store._db.execute, 0
class Killing:
    # Dies in the middle of a transaction, after so many statements of it.
    def __getattr__(self, name):
        return getattr(store_db, name)
    def execute(self, *args):
        global count
        count += 1
        if count >= steps:
            os.kill(os.getpid(), 9)
        return store_db.execute(*args)
    def executemany(self, *args):
        global count
        count += 1
        if count >= steps:
            os.kill(os.getpid(), 9)
        return store_db.executemany(*args)
store_db = store._db
store._db = store._eraser._db = store._seal._db = store._pruner._db = Killing()
print("ready", flush=True)
while True:
    store.erase_step(1_800_000_001.0) if what == "erase" else store.rekey_step()
"""


def killed(path: Path, what: str, steps: int) -> None:
    child = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), what, str(steps)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert "ready" in child.stdout


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8, 13, 21, 34, 55, 80, 110])
def test_a_kill_at_any_statement_leaves_a_store_that_the_next_one_finishes(
    tmp_path: Path, steps: int
) -> None:
    path = tmp_path / "e"
    with EvidenceStore(path, BYTES, keys=KEYS) as store:
        for number in range(1, 31):
            add(store, f"c-{number}", number)
            harmless(store, f"g-{number}", 100 + number)
    killed(path, "erase", steps)
    with EvidenceStore(path, BYTES, keys=KEYS) as store:
        assert store._db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        left = {
            row[0] for row in store._all("SELECT DISTINCT capture_id FROM exchange WHERE tenant = 'acme'", [])
        }
        gone = {row[0] for row in store._all("SELECT capture_id FROM erased", [])}
        assert len(left) + len(gone) == 30
        assert not left & gone
        assert len(store.erasing()) + len(store.erasures()) == 1
        while store.erasing():
            store.erase_step(NOW + 2)
        (line,) = store.erasures()
        assert (line.captures, line.exchanges) == (30, 60)
        assert faults_of((line,)) == ()
        assert len(list(read_comparisons(store.export()))) == 30


# -- retention ----------------------------------------------------------------------------------------


def test_age_takes_whole_captures_of_the_tenants_that_a_rule_means(tmp_path: Path) -> None:
    path = tmp_path / "e"
    with EvidenceStore(path, BYTES) as store:
        add(store, "old", 1, unix_s=NOW - 8 * DAY_S)
        add(store, "pinned", 2, unix_s=NOW - 8 * DAY_S)
        add(store, "sample", 3, tenant="", unix_s=NOW - 8 * DAY_S)
        add(store, "other", 4, tenant="globex", unix_s=NOW - 8 * DAY_S)
        add(store, "young", 5, unix_s=NOW - 6 * DAY_S)
        store.add(Batch(pins=(Pin(capture_id=CaptureId("pinned"), rollout="r", why="tipped", unix_s=1.0),)))
        rules = (Retention(tenant="globex", max_age_s=30 * DAY_S), Retention(max_age_s=7 * DAY_S))
        taken = store.retain(rules, NOW)
        assert (taken.captures, taken.exchanges, taken.more) == (1, 0, False)
        assert {row.capture_id for row in store.list().pairs} == {"pinned", "sample", "other", "young"}
        with pytest.raises(EvidenceNotFound):
            store.comparison("old")
        assert store.status().forgotten_captures == 1
        assert store.retain((Retention(tenant="", max_age_s=DAY_S),), NOW).captures == 1


def test_what_age_took_is_gone_from_the_bytes_once_the_log_was_emptied(tmp_path: Path) -> None:
    path = tmp_path / "e"
    with EvidenceStore(path, BYTES) as store:
        for number in range(1, 40):
            add(store, f"c-{number}", number, unix_s=NOW - 8 * DAY_S)
            harmless(store, f"g-{number}", 100 + number)
        assert found_in(files(path))
        assert store.retain((Retention(tenant="acme", max_age_s=DAY_S),), NOW).captures == 39
        assert store.scrub()
        assert found_in(files(path)) == []


def test_a_fork_whose_comparison_never_came_ages_by_its_id(tmp_path: Path) -> None:
    with EvidenceStore(tmp_path / "e", BYTES) as store:
        old, young = (f"{int((NOW - days * DAY_S) * 1000):012x}" for days in (8, 6))
        ids = [f"{one[:8]}-{one[8:]}-7000-8000-000000000001" for one in (old, young)]
        store.add(Batch(forks=tuple(fork_of(secret_pair(one)) for one in (*ids, "no-uuid"))))
        assert store.retain((Retention(max_age_s=7 * DAY_S),), NOW).captures == 1
        assert {row[0] for row in store._all("SELECT capture_id FROM fork", [])} == {ids[1], "no-uuid"}


def test_size_takes_the_oldest_content_of_a_tenant_alone(tmp_path: Path) -> None:
    with EvidenceStore(tmp_path / "e", BYTES) as store:
        for number in range(1, 11):
            add(store, f"c-{number}", number)
            add(store, f"g-{number}", 100 + number, tenant="globex")
        each = store._all("SELECT content_bytes FROM exchange LIMIT 1", [])[0][0]
        taken = store.retain((Retention(tenant="acme", max_bytes=6 * each),), NOW)
        assert (taken.exchanges, taken.captures) == (14, 0)
        for capture_id, kept in (("c-1", False), ("c-7", False), ("c-8", True), ("g-1", True)):
            if kept:
                assert store.comparison(capture_id).pairs
            else:
                with pytest.raises(EvidencePruned):
                    store.comparison(capture_id)
        assert store.retain((Retention(tenant="acme", max_bytes=6 * each),), NOW).exchanges == 0


def test_a_run_is_bounded_and_says_that_there_is_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from comparator.evidence import tenants

    monkeypatch.setattr(tenants, "AT_ONCE", 4)
    with EvidenceStore(tmp_path / "e", BYTES) as store:
        for number in range(1, 11):
            add(store, f"c-{number}", number, unix_s=NOW - DAY_S)
        rule = (Retention(max_age_s=60.0),)
        assert [store.retain(rule, NOW).more for _ in range(3)] == [True, True, False]
        assert store.list().pairs == ()
        for number in range(11, 21):
            add(store, f"c-{number}", number)
        rule = (Retention(max_bytes=0),)
        runs = [store.retain(rule, NOW) for _ in range(5)]
        assert [run.exchanges for run in runs] == [4] * 5
        assert [run.more for run in runs] == [True] * 4 + [False]


def test_batches_of_an_erasure_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 4)
    with EvidenceStore(tmp_path / "e", BYTES) as store:
        for number in range(1, 11):
            add(store, f"c-{number}", number)
        store.erase("tenant", "acme", "anna", "why", NOW)
        counts = []
        while store.erasing():
            counts.append(store.erasing()[0].captures)
            store.erase_step(NOW)
        assert counts == [0, 4, 8, 10]
