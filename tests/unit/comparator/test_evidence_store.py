"""The evidence store: what goes in comes out, once, and trouble with the file is told apart."""

from __future__ import annotations

import math
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from comparator.compare import compare
from comparator.evidence import (
    Batch,
    ComparisonDone,
    Drop,
    EvidenceBusy,
    EvidenceCorrupt,
    EvidenceError,
    EvidenceForeign,
    EvidenceFull,
    EvidenceNotFound,
    EvidenceReader,
    EvidenceReadOnly,
    EvidenceStore,
    EvidenceUnavailable,
    Pin,
    VerdictRow,
    schema,
)
from comparator.pair import ForkSeen, Pair
from comparator.records import Arm, CaptureId, Fact, Sampling
from tests.support.exchanges import comparison, pair, plain_steps, step
from tests.support.waiting import LIMIT_S

BYTES = 50_000_000


def done(pair_: Pair, sequence: int = 1, incarnation: str = "edge-1") -> ComparisonDone:
    return ComparisonDone(comparison=comparison(pair_), incarnation=incarnation, sequence=sequence)


def drop(sequence: int, reason: str = "token_rate", incarnation: str = "edge-1") -> Drop:
    return Drop(
        incarnation=incarnation, sequence=sequence, rollout="r", reason=reason, detail="why", unix_s=1.0
    )


def verdict(deciding_id: str | None = None) -> VerdictRow:
    return VerdictRow(
        rollout="old-to-new",
        unix_s=2.0,
        policy_digest="sha256:00",
        gate="token_equality",
        answer="fail",
        value=1.0,
        limit=0.0,
        n=3,
        reason="forked",
        deciding_id=deciding_id,
        acted="rollback",
        state='{"n":3}',
        evidence_sequence=9,
    )


@pytest.fixture
def store(tmp_path: Path):
    with EvidenceStore(tmp_path / "evidence.sqlite", BYTES) as opened:
        yield opened


def rich_pair(capture_id: str = "c") -> Pair:
    facts = {
        "template_sha256": Fact(value="sha256:aa"),
        "adapter": Fact(unknown="the engine does not tell"),
        "attention_mask": Fact(value=[1, 1, 1]),
    }
    sampling = Sampling(
        max_tokens=9, temperature=0.7, stop=("END",), logit_bias={"5": -math.inf}, extra={"a": 1}
    )
    shared = {"facts": facts, "sampling": sampling, "stop_reason": "END", "replicate": 2}
    steps = [
        step(4, [(4, -0.1), (5, -2.5)], received_s=0.1 + 0.2, text="four"),
        step(6, [(7, -0.30000001192092896)], logprob=None, received_s=0.5),
        step(2**40, [], received_s=1e-9, text=""),
    ]
    return pair(capture_id=capture_id, left=shared | {"steps": steps}, right=shared | {"steps": steps[:2]})


def test_a_pair_comes_back_equal_in_every_field(store):
    kept = rich_pair()
    store.add(Batch(comparisons=(done(kept),)))
    left, right = (stored.exchange for stored in store.show("c").exchanges)
    assert left == kept.left
    assert right == kept.right
    assert compare(left, right) == kept


def test_r14_facts_keep_their_value_or_the_reason_why_not(store):
    store.add(Batch(comparisons=(done(rich_pair()),)))
    facts = store.show("c").exchanges[0].exchange.facts
    assert facts["adapter"].unknown == "the engine does not tell"
    assert facts["template_sha256"].value == "sha256:aa"
    assert facts["attention_mask"].value == [1, 1, 1]


def test_the_fork_is_shown_with_both_sides(store):
    forked = pair((1, 2, 3), (1, 5, 3), capture_id="f")
    store.add(Batch(comparisons=(done(forked),)))
    shown = store.show("f")
    assert [row.fork for row in shown.forks] == [forked.fork]
    assert shown.pairs[0].fork_index == 1


def test_a_fork_seen_before_its_pair_survives_a_judge_that_dies_in_between(tmp_path):
    fork = pair((1, 2), (1, 5)).fork
    assert fork is not None
    seen = ForkSeen(
        capture_id=CaptureId("early"),
        rollout="r",
        tenant="t",
        left_arm=Arm.BASELINE,
        right_arm=Arm.CANDIDATE,
        fork=fork,
    )
    with EvidenceStore(tmp_path / "e", BYTES) as store:
        store.add(Batch(forks=(seen,)))
    with EvidenceReader(tmp_path / "e") as reader:
        shown = reader.show("early")
    assert shown.exchanges == ()
    assert shown.forks[0].fork == fork


def test_the_pair_replaces_its_early_fork_row(store):
    kept = pair((1, 2), (1, 5), capture_id="c")
    assert kept.fork is not None
    seen = ForkSeen(
        capture_id=CaptureId("c"),
        rollout="old-to-new",
        tenant="acme",
        left_arm=Arm.BASELINE,
        right_arm=Arm.CANDIDATE,
        fork=kept.fork,
    )
    store.add(Batch(forks=(seen,)))
    store.add(Batch(comparisons=(done(kept),)))
    assert len(store.show("c").forks) == 1


def test_a_repeated_delivery_is_counted_once(store):
    first = store.add(Batch(comparisons=(done(pair()),), drops=(drop(2),)))
    again = store.add(Batch(comparisons=(done(pair()),), drops=(drop(2, "shutdown"),)))
    assert (first.pairs, first.drops, first.repeated) == (1, 1, ())
    assert again.drops == 0
    assert again.repeated == (("edge-1", 1), ("edge-1", 2))
    counts = store.ledger_counts("edge-1")
    assert counts.compared == 1
    assert counts.dropped == {"token_rate": 1}
    assert counts.highest_sequence == 2


def test_a_capture_with_two_pairs_is_one_capture_in_the_ledger(store):
    candidate = pair(capture_id="c")
    control = msgspec.structs.replace(pair(capture_id="c", right_arm=Arm.CONTROL), left=candidate.left)
    store.add(Batch(comparisons=(done(candidate), done(control))))
    assert store.ledger_counts("edge-1").compared == 1
    assert len(store.show("c").exchanges) == 3
    assert len(store.show("c").pairs) == 2


def test_terminal_tells_which_sequences_ended(store):
    store.add(Batch(comparisons=(done(pair(), 4),), drops=(drop(6), drop(8, incarnation="other"))))
    assert store.terminal("edge-1", range(1, 2_000)) == {4, 6}
    assert store.terminal("edge-9", [4]) == set()
    assert set(store.incarnations()) == {"edge-1", "other"}


def test_an_unknown_incarnation_has_a_ledger_of_zeros(store):
    counts = store.ledger_counts("never")
    assert (counts.compared, counts.dropped, counts.highest_sequence) == (0, {}, 0)


def test_list_filters_and_pages_newest_first(store):
    for number in range(7):
        forked = number % 2 == 0
        store.add(
            Batch(
                comparisons=(
                    done(pair((1, 2), (1, 9) if forked else (1, 2), capture_id=f"c{number}"), number),
                )
            )
        )
    first = store.list(limit=3)
    assert [row.capture_id for row in first.pairs] == ["c6", "c5", "c4"]
    rest = store.list(limit=10, cursor=first.cursor)
    assert [row.capture_id for row in rest.pairs] == ["c3", "c2", "c1", "c0"]
    assert rest.cursor is None
    assert [row.capture_id for row in store.list(forked=True).pairs] == ["c6", "c4", "c2", "c0"]
    assert [row.capture_id for row in store.list(forked=False).pairs] == ["c5", "c3", "c1"]
    assert store.list(tenant="nobody").pairs == ()
    assert len(store.list(rollout="old-to-new", tenant="acme").pairs) == 7


@pytest.mark.parametrize(("limit", "cursor"), [(0, None), (5_000, None), (5, "; DROP")])
def test_a_bad_page_request_says_what_is_wrong(store, limit, cursor):
    with pytest.raises(EvidenceError, match=r"limit|cursor"):
        store.list(limit=limit, cursor=cursor)


def test_show_of_nothing_says_how_to_look(store):
    with pytest.raises(EvidenceNotFound, match="no capture nope; `forkgate evidence list`"):
        store.show("nope")


def test_verdicts_are_kept_with_their_state_and_shown_with_the_capture_that_tipped_them(store):
    store.add(Batch(comparisons=(done(pair(capture_id="c")),), verdicts=(verdict("c"), verdict())))
    assert store.show("c").verdicts == (verdict("c"),)
    assert store.verdicts(rollout="old-to-new") == (verdict(), verdict("c"))
    assert store.verdicts(rollout="another") == ()


def test_export_writes_one_capture_a_line_and_hides_no_infinity(store):
    store.add(Batch(comparisons=(done(rich_pair("a"), 1), done(pair(capture_id="b"), 2))))
    head, *lines = [msgspec.json.decode(line) for line in store.export()]
    assert head["bundle"] == "evidence/1"
    assert [line["capture_id"] for line in lines] == ["a", "b"]
    assert lines[0]["exchanges"][0]["exchange"]["sampling"]["logit_bias"] == {"5": "-Infinity"}
    assert lines[0]["exchanges"][0]["exchange"]["steps"][0]["received_s"] == 0.1 + 0.2
    assert [msgspec.json.decode(line)["capture_id"] for line in list(store.export(forked=True))[1:]] == ["a"]


def big(number: int) -> Pair:
    ids = [number * 1_000 + i for i in range(40)]
    steps = plain_steps(ids, k=20)
    return pair(capture_id=f"c{number}", left={"steps": steps}, right={"steps": steps})


def test_oldest_content_makes_room_and_the_rows_say_so(tmp_path):
    with EvidenceStore(tmp_path / "e", 1_000_000) as store:
        for number in range(120):
            store.add(Batch(comparisons=(done(big(number), number),)))
        assert store.status().used_bytes <= 1_000_000
        oldest, newest = store.show("c0"), store.show("c119")
        assert oldest.pairs[0].pruned
        assert oldest.exchanges[0].pruned
        assert oldest.exchanges[0].exchange.steps == ()
        assert oldest.exchanges[0].output_tokens == 40
        assert oldest.exchanges[0].output_sha256 == oldest.exchanges[1].output_sha256
        assert not newest.exchanges[0].pruned
        assert len(newest.exchanges[0].exchange.steps) == 40
        assert store.ledger_counts("edge-1").compared == 120
        assert store.status().pruned_exchanges > 0


def test_a_pinned_capture_outlives_newer_ones(tmp_path):
    with EvidenceStore(tmp_path / "e", 1_000_000) as store:
        store.add(
            Batch(
                comparisons=(done(big(0), 0),),
                pins=(Pin(capture_id=CaptureId("c0"), rollout="r", why="rolled back", unix_s=1.0),),
            )
        )
        for number in range(1, 120):
            store.add(Batch(comparisons=(done(big(number), number),)))
        assert store.show("c0").pinned == "rolled back"
        assert not store.show("c0").exchanges[0].pruned
        assert store.show("c1").exchanges[0].pruned


def test_when_all_content_is_gone_whole_captures_go_and_are_counted(tmp_path):
    with EvidenceStore(tmp_path / "e", 1_000_000) as store:
        number = 0
        while store.status().forgotten_captures == 0:
            pairs = tuple(done(pair((), (), capture_id=f"c{number + i}"), number + i) for i in range(100))
            store.add(Batch(comparisons=pairs))
            number += 100
            assert number < 5_000
        assert store.status().used_bytes <= 1_000_000
        assert store.ledger_counts("edge-1").compared == number
        with pytest.raises(EvidenceNotFound):
            store.show("c0")


def test_pins_beyond_the_limit_are_refused_and_nothing_of_the_batch_is_kept(tmp_path):
    with EvidenceStore(tmp_path / "e", 1_000_000) as store:

        def add_pinned(number: int) -> None:
            pin = Pin(capture_id=CaptureId(f"c{number}"), rollout="r", why="w", unix_s=1.0)
            store.add(Batch(comparisons=(done(big(number), number),), pins=(pin,)))

        number = 0
        while store.status().used_bytes < 970_000:
            add_pinned(number)
            number += 1
        with pytest.raises(EvidenceFull, match="pinned"):
            store.add(
                Batch(
                    comparisons=tuple(done(big(n), n) for n in range(number, number + 9)),
                    pins=tuple(
                        Pin(capture_id=CaptureId(f"c{n}"), rollout="r", why="w", unix_s=1.0)
                        for n in range(number, number + 9)
                    ),
                )
            )
        with pytest.raises(EvidenceNotFound):
            store.show(f"c{number}")
        assert store.ledger_counts("edge-1").compared == number


def test_after_a_refused_batch_its_pruning_is_undone_and_can_be_done_again(tmp_path):
    with EvidenceStore(tmp_path / "e", 1_000_000) as store:
        for number in range(45):
            store.add(Batch(comparisons=(done(big(number), number),)))
        numbers = range(100, 160)
        with pytest.raises(EvidenceFull, match="pinned"):
            store.add(
                Batch(
                    comparisons=tuple(done(big(n), n) for n in numbers),
                    pins=tuple(
                        Pin(capture_id=CaptureId(f"c{n}"), rollout="r", why="w", unix_s=1.0) for n in numbers
                    ),
                )
            )
        assert not store.show("c0").exchanges[0].pruned
        for number in range(200, 225):
            store.add(Batch(comparisons=(done(big(number), number),)))
        assert store.show("c0").exchanges[0].pruned


def test_the_file_is_its_owners_alone(store):
    assert stat.S_IMODE(os.stat(store.path).st_mode) == 0o600


def test_readers_see_committed_rows_while_a_write_is_open(store):
    store.add(Batch(comparisons=(done(pair(capture_id="a")),)))
    with EvidenceReader(store.path) as reader:
        store._db.execute("BEGIN IMMEDIATE")
        assert [row.capture_id for row in reader.list().pairs] == ["a"]
        store._db.execute("ROLLBACK")
        store.add(Batch(comparisons=(done(pair(capture_id="b"), 2),)))
        assert [row.capture_id for row in reader.list().pairs] == ["b", "a"]


def test_a_store_locked_by_another_process_is_busy_and_works_again_after(tmp_path):
    path = tmp_path / "e"
    with EvidenceStore(path, BYTES, busy_timeout_s=0.05) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(EvidenceBusy, match="locked by another process"):
            store.add(Batch(comparisons=(done(pair()),)))
        other.execute("ROLLBACK")
        other.close()
        assert store.add(Batch(comparisons=(done(pair()),))).pairs == 1


def test_a_full_disk_is_told_and_the_store_goes_on_once_there_is_room(tmp_path):
    with EvidenceStore(tmp_path / "e", BYTES) as store:
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(EvidenceFull, match="disk is full"):
            store.add(Batch(comparisons=tuple(done(big(n), n) for n in range(30))))
        assert store.list().pairs == ()
        store._db.execute("PRAGMA max_page_count = 1000000")
        assert store.add(Batch(comparisons=(done(big(1), 1),))).pairs == 1


def test_a_read_only_connection_is_told(tmp_path):
    with EvidenceStore(tmp_path / "e", BYTES) as store:
        store._db.execute("PRAGMA query_only = ON")
        with pytest.raises(EvidenceReadOnly, match="read-only"):
            store.add(Batch(comparisons=(done(pair()),)))


def test_a_file_that_is_no_database_is_corrupt(tmp_path):
    path = tmp_path / "e"
    path.write_bytes(b"not a database at all, and long enough to have a header" * 100)
    with pytest.raises(EvidenceCorrupt, match="move the file away"):
        EvidenceStore(path, BYTES)


def test_a_damaged_database_is_corrupt(tmp_path):
    path = tmp_path / "e"
    with EvidenceStore(path, BYTES) as store:
        store.add(Batch(comparisons=tuple(done(big(n), n) for n in range(20))))
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (path.stat().st_size - 4096))
    with pytest.raises(EvidenceCorrupt):
        EvidenceReader(path).show("c3")


def test_a_missing_directory_is_unavailable(tmp_path):
    with pytest.raises(EvidenceUnavailable, match="cannot be opened"):
        EvidenceStore(tmp_path / "nowhere" / "e", BYTES)
    with pytest.raises(EvidenceUnavailable, match=r"nothing: no such file; it is STATE_DIR/evidence.db"):
        EvidenceReader(tmp_path / "nothing")


def test_a_reader_says_what_else_it_was_given(tmp_path):
    with pytest.raises(EvidenceUnavailable, match=r"is a directory; name the evidence.db in it"):
        EvidenceReader(tmp_path)
    (tmp_path / "policy.yaml").write_text("level: token, alpha: 0.05\n")
    with pytest.raises(EvidenceForeign, match=r"not an SQLite database; name the evidence.db of a state_dir"):
        EvidenceReader(tmp_path / "policy.yaml")


def test_another_programs_database_is_left_alone(tmp_path):
    path = tmp_path / "e"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE cats (name)")
    db.commit()
    db.close()
    with pytest.raises(EvidenceForeign, match="another program"):
        EvidenceStore(path, BYTES)


def test_a_newer_schema_is_refused_by_writer_and_reader(tmp_path):
    path = tmp_path / "e"
    with EvidenceStore(path, BYTES) as store:
        store._db.execute("UPDATE meta SET value = 99 WHERE key = 'schema_version'")
    for kind in (lambda: EvidenceStore(path, BYTES), lambda: EvidenceReader(path)):
        with pytest.raises(EvidenceForeign, match=r"schema_version 99, this one knows 3\); upgrade"):
            kind()


def test_migrations_run_one_by_one_and_a_failing_one_leaves_the_version(tmp_path, monkeypatch):
    path = tmp_path / "e"
    with EvidenceStore(path, BYTES) as store:
        db = store._db
        monkeypatch.setitem(schema.MIGRATIONS, 1, lambda d: d.execute("CREATE TABLE second (x)"))

        def fails(d: sqlite3.Connection) -> None:
            d.execute("CREATE TABLE third (x)")
            raise RuntimeError("disk on fire")

        monkeypatch.setitem(schema.MIGRATIONS, 2, fails)
        with pytest.raises(RuntimeError, match="on fire"):
            schema.migrate(db, 1, path, target=3)
        assert schema.version_of(db) == 2
        names = {row[0] for row in db.execute("SELECT name FROM sqlite_master")}
        assert "second" in names
        assert "third" not in names
        with pytest.raises(EvidenceForeign, match="no way from schema_version 3 to 4"):
            schema.migrate(db, 3, path, target=4)


def test_a_killed_writer_leaves_every_committed_pair_and_none_of_the_open_one(tmp_path):
    path = tmp_path / "e"
    script = f"""
import os, signal, sys
from comparator.evidence import EvidenceStore, Batch
from tests.support.exchanges import done, pair
store = EvidenceStore({str(path)!r}, {BYTES})
for n in range(5):
    store.add(Batch(comparisons=(done(pair(capture_id=f"c{{n}}"), sequence=n),)))
store._db.execute("BEGIN IMMEDIATE")
store._db.execute("DELETE FROM pair")
os.kill(os.getpid(), signal.SIGKILL)
"""
    root = Path(__file__).resolve().parents[3]
    ended = subprocess.run([sys.executable, "-c", script], cwd=root, timeout=LIMIT_S, check=False)
    assert ended.returncode == -9
    with EvidenceStore(path, BYTES) as store:
        assert len(store.list().pairs) == 5
        assert store.terminal("e", range(10)) == {0, 1, 2, 3, 4}


def test_a_value_that_no_blob_can_hold_names_the_pair_problem(store):
    with pytest.raises(EvidenceError, match="a pair cannot be stored"):
        store.add(Batch(comparisons=(done(pair((2**70,), (1,))),)))
    assert store.add(Batch(comparisons=(done(pair()),))).pairs == 1


def test_max_bytes_too_small_to_work_is_refused(tmp_path):
    with pytest.raises(EvidenceError, match="max_bytes: 10 is under the least"):
        EvidenceStore(tmp_path / "e", 10)


def test_a_file_system_that_refuses_to_write_is_told_and_outlived(tmp_path):
    """A real refusal by the kernel (a file size limit), in a process of its own."""
    script = f"""
import resource, signal
from comparator.evidence import Batch, EvidenceError, EvidenceStore
from tests.support.exchanges import done, pair
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = EvidenceStore({str(tmp_path / "e")!r}, {BYTES})
ids = tuple(range(400))
def add(n):
    made = pair(ids, ids, capture_id=f"c{{n}}")
    store.add(Batch(comparisons=(done(made, sequence=n),)))
add(0)
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, hard))
failed = 0
for n in range(1, 5):
    try:
        add(n)
    except EvidenceError as exc:
        failed += 1
        assert "check the disk" in str(exc) or "disk is full" in str(exc), exc
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
add(9)
store.close()
print(failed)
"""
    root = Path(__file__).resolve().parents[3]
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=root, timeout=LIMIT_S, check=False, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    failed = int(ended.stdout)
    assert failed > 0
    with EvidenceReader(tmp_path / "e") as reader:
        kept = {row.capture_id for row in reader.list().pairs}
        assert {"c0", "c9"} <= kept
        assert len(kept) == 6 - failed
        assert reader.ledger_counts("e").compared == len(kept)
