"""The journal: what gates folded comes back in its order, to the last bit; what is missing shows."""

from __future__ import annotations

import math
import random
import struct

import msgspec
import pytest

from comparator.comparison import SampleRef, Score
from comparator.evidence import (
    Batch,
    ComparisonDone,
    EvidenceDamaged,
    EvidenceFull,
    EvidenceNotFound,
    EvidencePruned,
    EvidenceStore,
    JournalEntry,
    Pin,
    PlanRow,
    Taken,
    columns,
)
from comparator.evidence.columns import FIELDS, VERSION, ColumnsError, decode_live, encode_live
from comparator.evidence.journal import ComparisonRef, ForkRef, JournalError, decode_items, encode_items
from comparator.evidence.rows import LOST, OBSERVED, STATE
from comparator.pair import ForkSeen
from comparator.records import Arm, CaptureId, EngineSample, Fact, LiveRecord
from tests.support.exchanges import comparison, live, pair, plain_steps

BYTES = 50_000_000


@pytest.fixture
def store(tmp_path):
    with EvidenceStore(tmp_path / "e", BYTES) as opened:
        yield opened


def observed(*items, rollout="old-to-new", before=0, unix_s=1.0, sequence=1) -> JournalEntry:
    return JournalEntry(
        rollout=rollout,
        sequence=sequence,
        before=before,
        after=before + len(items),
        unix_s=unix_s,
        kind=OBSERVED,
        items=items,
    )


def traffic(count: int, seed: int = 1) -> list[LiveRecord]:
    """Live records as an edge makes them: clocks of many digits, few names, the odd failure."""
    rng = random.Random(seed)
    records, now = [], 1_790_000_000.0
    for number in range(count):
        now += rng.expovariate(50.0)
        ttft = rng.lognormvariate(-1.5, 0.4)
        records.append(
            LiveRecord(
                sequence=number + 1,
                started_unix_s=now,
                tenant=rng.choice(("acme", "globex", "initech")),
                pool="old",
                endpoint=rng.choice(("http://10.0.0.1:8000", "http://10.0.0.2:8000")),
                status=200 if rng.random() < 0.99 else 500,
                first_byte_s=ttft if rng.random() < 0.99 else math.nan,
                total_s=ttft + rng.lognormvariate(1.0, 0.5),
                request_bytes=rng.randrange(200, 4_000),
                response_bytes=rng.randrange(500, 60_000),
                aborted_by="" if rng.random() < 0.98 else "client",
                retried=False,
                canary=rng.random() < 0.5,
                sampled=rng.random() < 0.1,
                streamed=True,
                drawable=rng.random() < 0.5,
                environment=rng.choice(("sha256:" + "a" * 64, "sha256:" + "b" * 64, "?", "")),
                environment_by_probe=rng.random() < 0.5,
            )
        )
    return records


def bits(records) -> list[bytes]:
    """NaN is not equal to itself; its bits are."""
    return [msgspec.msgpack.encode(record) for record in records]


def test_every_field_of_a_live_record_has_a_column():
    """A new field needs a new version of the columns, or replays would see its default."""
    assert tuple(name for name, _ in FIELDS[VERSION]) == LiveRecord.__struct_fields__


@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_live_records_come_back_bit_for_bit(count):
    records = traffic(count)
    assert bits(decode_live(encode_live(records))) == bits(records)


def test_records_of_an_older_version_are_read_with_defaults(monkeypatch):
    records = [
        msgspec.structs.replace(record, drawable=True, environment="", environment_by_probe=False)
        for record in traffic(20)
    ]
    monkeypatch.setattr(columns, "VERSION", 1)
    old = encode_live(records)
    monkeypatch.undo()
    assert bits(decode_live(old)) == bits(records)


def test_a_nan_keeps_its_payload_and_a_zero_its_sign():
    odd = struct.unpack("<d", bytes.fromhex("0100000000000cff"))[0]
    record = msgspec.structs.replace(live(), first_byte_s=odd, total_s=-0.0)
    (back,) = decode_live(encode_live([record]))
    assert struct.pack("<d", back.first_byte_s) == struct.pack("<d", odd)
    assert math.copysign(1.0, back.total_s) == -1.0


def test_what_no_column_holds_is_refused_by_name():
    with pytest.raises(ColumnsError, match="live records cannot be stored"):
        encode_live([msgspec.structs.replace(live(), request_bytes=2**64)])


@pytest.mark.parametrize("blob", [b"", b"\x93\x01", msgspec.msgpack.encode([9, 0, []])])
def test_bytes_that_are_no_columns_are_refused(blob):
    with pytest.raises(ColumnsError):
        decode_live(blob)


def test_a_live_record_costs_a_few_tens_of_bytes():
    """Its three clocks alone have 18 random bytes; all of it takes 88 where it lies packed in memory."""
    for count, most in ((1_000, 34), (100, 38), (10, 70)):
        size = len(encode_items(traffic(count))) / count
        assert size < most, (count, size)


def sample_of_engine(number: int) -> EngineSample:
    return EngineSample(
        rollout="old-to-new",
        pool="new",
        endpoint="http://new",
        candidate=True,
        unix_s=1.0 + number,
        running=number,
        waiting=0,
        kv_cache_usage=Fact(value=0.1 + 0.2),
        memory_bytes=Fact(unknown="the engine tells none"),
        generated_tokens=Fact(value=10**12),
    )


def seen(capture_id="c", replicate=0, right=Arm.CANDIDATE) -> ForkSeen:
    made = pair((1, 2), (1, 5), capture_id=capture_id, right_arm=right)
    assert made.fork is not None
    return ForkSeen(
        capture_id=CaptureId(capture_id),
        rollout="old-to-new",
        tenant="acme",
        left_arm=Arm.BASELINE,
        right_arm=right,
        fork=made.fork,
        replicate=replicate,
    )


def test_kinds_of_evidence_keep_their_order():
    first, second, third = traffic(3, seed=2)
    one, other = sample_of_engine(1), sample_of_engine(2)
    items = (first, second, comparison(pair(capture_id="c")), one, other, seen("d", 2, Arm.CONTROL), third)
    assert decode_items(encode_items(items)) == (
        first,
        second,
        ComparisonRef("c"),
        one,
        other,
        ForkRef("d", "baseline", "control", 2),
        third,
    )


def test_a_body_of_a_newer_version_is_refused():
    with pytest.raises(JournalError, match="version 7; this forkgate reads 1"):
        decode_items(b"p" + msgspec.msgpack.encode([7]))
    with pytest.raises(JournalError, match="none of a journal"):
        decode_items(b"?")
    with pytest.raises(JournalError, match="damaged body"):
        decode_items(b"zzzz")


def rich_comparison(capture_id: str = "c"):
    """Two replicates with a control each, a sample of a suite, scores, repeated and timed."""
    pairs = []
    for replicate in (0, 1):
        baseline = {"replicate": replicate, "steps": plain_steps((1, 2, 3 + replicate))}
        candidate = pair(
            capture_id=capture_id,
            left=baseline,
            right={"replicate": replicate, "steps": plain_steps((1, 2, 9))},
        )
        control = pair(capture_id=capture_id, right_arm=Arm.CONTROL, left=baseline, right=baseline)
        pairs += [candidate, msgspec.structs.replace(control, left=candidate.left)]
    return comparison(
        *pairs,
        cluster="0123456789abcdef",
        repeat=True,
        timing=True,
        sample=SampleRef(
            suite="starter",
            digest="sha256:aa",
            stage="canary",
            sample_id="s-1",
            category="code",
            passage=3,
            samples=10,
            passes=5,
        ),
        scores=(
            Score(arm=Arm.BASELINE, question="answer", value=1.0, replicate=1),
            Score(arm=Arm.CANDIDATE, question="rules", error="the scorer hung"),
        ),
        unix_s=0.1 + 0.2,
    )


def test_a_comparison_comes_back_as_its_gates_saw_it(store):
    kept = rich_comparison()
    store.add(Batch(comparisons=(ComparisonDone(comparison=kept, incarnation=None, sequence=None),)))
    assert store.comparison("c") == kept
    shown = store.show("c")
    assert len(shown.exchanges) == 6  # each baseline once
    assert [(row.right_arm, row.replicate) for row in shown.pairs] == [
        ("candidate", 0),
        ("control", 0),
        ("candidate", 1),
        ("control", 1),
    ]
    assert store.show("c").scores == kept.scores


def test_a_sample_settles_no_capture(store):
    store.add(
        Batch(comparisons=(ComparisonDone(comparison=rich_comparison(), incarnation=None, sequence=None),))
    )
    assert store.incarnations() == ()
    assert list(store.samples_done("old-to-new", "sha256:aa", "canary")) == [("s-1", 3)]
    assert list(store.samples_done("old-to-new", "sha256:aa", "shadow")) == []
    assert list(store.clusters("old-to-new")) == []  # it is a repeat


def test_clusters_are_those_that_bet(store):
    def asked(number: int, **changes):
        made = pair(capture_id=f"c{number}", right=changes.pop("right", {}))
        one = comparison(made, cluster=f"{number:016x}", unix_s=100.0 + number, **changes)
        return ComparisonDone(comparison=one, incarnation="e", sequence=number)

    sample = rich_comparison().sample
    store.add(
        Batch(
            comparisons=(
                asked(1),
                asked(2, repeat=True),
                asked(3, right={"prompt": (1, 2)}),  # set aside: it bet nothing
                asked(4, sample=sample),
                asked(5, rollout="other"),
                asked(6),
            )
        )
    )
    assert [int(key, 16) for key in store.clusters("old-to-new")] == [1, 4, 6]
    assert [int(key, 16) for key in store.clusters("old-to-new", 102.0)] == [4, 6]


def test_half_a_capture_is_no_capture():
    with pytest.raises(ValueError, match="settles a capture by incarnation and sequence"):
        ComparisonDone(comparison=rich_comparison(), incarnation="e", sequence=None)


def test_a_comparison_kept_twice_has_its_scores_once(store):
    one = ComparisonDone(comparison=rich_comparison(), incarnation="e", sequence=1)
    store.add(Batch(comparisons=(one,)))
    again = store.add(Batch(comparisons=(one,)))
    assert (again.pairs, again.repeated) == (0, (("e", 1),))
    assert len(store.show("c").scores) == 2


def test_a_fork_comes_back_by_its_arms_and_replicate(store):
    early = (seen("c", 0), seen("c", 1), seen("c", 1, Arm.CONTROL))
    store.add(Batch(forks=early))
    assert store.fork_seen("c", "baseline", "control", 1) == early[2]
    assert store.fork_seen("c", "baseline", "candidate", 1) == early[1]
    with pytest.raises(EvidenceNotFound, match="no fork of baseline and control, replicate 0"):
        store.fork_seen("c", "baseline", "control", 0)


def test_a_fork_that_its_finished_pair_replaced_is_the_same_fork(store):
    made = pair((1, 2), (1, 5), capture_id="c")
    assert made.fork is not None
    early = msgspec.structs.replace(seen("c"), fork=made.fork)
    store.add(Batch(forks=(early,)))
    store.add(Batch(comparisons=(ComparisonDone(comparison=comparison(made), incarnation="e", sequence=1),)))
    assert store.fork_seen("c", "baseline", "candidate", 0) == early


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE pair SET fork_index = 1", "says fork 1"),
        ("UPDATE pair SET max_error_nats = 0.5", "error 0.5"),
        ("UPDATE exchange SET output_sha256 = 'x'", "output token IDs are not those of its hash"),
        (
            "DELETE FROM exchange WHERE arm = 'candidate'",
            r"it had 1 pairs and 0 scores, of which 0 and 0 are left",
        ),
        ("DELETE FROM pair", "of which 0 and 0 are left"),
        ("UPDATE content SET blob = x'00'", "cannot be read"),
        ("UPDATE exchange SET settings = x'00'", "capture c"),
    ],
)
def test_a_comparison_that_contradicts_itself_is_damaged(store, statement, said):
    store.add(
        Batch(
            comparisons=(
                ComparisonDone(comparison=comparison(pair(capture_id="c")), incarnation="e", sequence=1),
            )
        )
    )
    store._db.execute(statement)
    with pytest.raises(EvidenceDamaged, match=said):
        store.comparison("c")


def test_a_pruned_comparison_says_so(tmp_path):
    with EvidenceStore(tmp_path / "e", 1_000_000) as store:
        fill(store)
        with pytest.raises(EvidencePruned, match="its steps were pruned to make room"):
            store.comparison("c0")


def fill(store: EvidenceStore, count: int = 120, records: int = 0) -> None:
    steps = plain_steps(range(40), k=20)
    number = 0
    for place in range(count):
        at = {"steps": steps, "started_unix_s": 1_000.0 + place}
        one = comparison(pair(capture_id=f"c{place}", left=at, right=at))
        items = (one, *traffic(records, seed=place))
        entry = observed(*items, before=number, unix_s=1_000.0 + place, sequence=place + 1)
        number = entry.after
        store.add(
            Batch(
                comparisons=(ComparisonDone(comparison=one, incarnation="e", sequence=place + 1),),
                journal=(entry,),
            )
        )


def journal_of(store: EvidenceStore, rollout: str = "old-to-new"):
    return list(store.journal(rollout, 10**9))


def test_entries_come_back_in_order_with_their_numbers(store):
    records = tuple(traffic(3, seed=2))
    store.add(
        Batch(
            journal=(
                observed(*records),
                observed(comparison(pair(capture_id="c")), before=3, sequence=2),
                observed(records[0], rollout="other"),
            )
        )
    )
    first, second = journal_of(store)
    assert (first.before, first.after, second.before, second.after) == (0, 3, 3, 4)
    assert (first.sequence, second.sequence) == (1, 2)
    assert decode_items(first.body) == records
    assert len(journal_of(store, "other")) == 1
    assert store.status().journal == 3


def test_the_end_of_the_journal_is_found_by_the_events_number(store):
    entries = [observed(live(), before=number, sequence=number + 1) for number in range(9)]
    store.add(Batch(journal=tuple(entries)))
    assert [row.sequence for row in store.journal_after("old-to-new", 6, 100)] == [7, 8, 9]
    assert [row.sequence for row in store.journal_after("old-to-new", 0, 4)] == [6, 7, 8, 9]
    assert store.journal_after("old-to-new", 9, 100) == ()


def test_what_cannot_be_kept_leaves_a_mark_and_costs_its_neighbours_nothing(store):
    poison = msgspec.structs.replace(live(), request_bytes=2**64)
    added = store.add(
        Batch(journal=(observed(live()), observed(poison, before=1), observed(live(), before=2)))
    )
    assert [row.kind for row in journal_of(store)] == [OBSERVED, LOST, OBSERVED]
    assert [(row.before, row.after) for row in journal_of(store)] == [(0, 1), (1, 2), (2, 3)]
    (why,) = added.lost
    assert why.startswith("rollout old-to-new, evidence 1-2: live records cannot be stored")


def test_a_plan_is_kept_once_with_its_policys_text(store):
    plan = PlanRow(
        rollout="r", digest="sha256:p", unix_s=1.0, policy_digest="sha256:q", policy="{}", body=b"\x80" * 999
    )
    state = JournalEntry(
        rollout="r", sequence=0, before=0, after=0, unix_s=1.0, kind=STATE, body=b"\x80", plan=plan
    )
    later = msgspec.structs.replace(state, plan=msgspec.structs.replace(plan, unix_s=9.0))
    store.add(Batch(journal=(state, later)))
    assert store.plans("r") == (plan,)
    assert [row.plan_digest for row in journal_of(store, "r")] == ["sha256:p", "sha256:p"]
    assert store.rollouts() == ("r",)


def test_the_last_batch_of_an_edge_never_falls_back(store):
    store.add(Batch(taken=(Taken(incarnation="a", batch=4), Taken(incarnation="b", batch=1))))
    store.add(Batch(taken=(Taken(incarnation="a", batch=3), Taken(incarnation="b", batch=2))))
    assert store.taken() == {"a": 4, "b": 2}


def test_the_journal_goes_with_the_content_that_it_needs(tmp_path):
    with EvidenceStore(tmp_path / "e", 1_000_000) as store:
        fill(store)
        rows = journal_of(store)
        kept = [row.capture_id for row in store.list(limit=1_000).pairs if not row.pruned]
        refs = [part.capture_id for row in rows for part in decode_items(row.body)]
        assert 0 < len(kept) < 120
        # The oldest entry left may refer to the last capture that was pruned, of the same moment.
        assert set(kept) <= set(refs)
        assert len(refs) - len(kept) <= 1
        assert store.status().pruned_journal == 120 - len(rows) > 0
        assert [row.before for row in rows[1:]] == [row.after for row in rows[:-1]]


def test_a_journal_of_live_records_alone_stays_under_max_bytes(tmp_path):
    with EvidenceStore(tmp_path / "e", 1_000_000) as store:
        number = 0
        for turn in range(60):
            entry = observed(*traffic(1_000, seed=turn), before=number, unix_s=1.0 + turn, sequence=turn + 1)
            number = entry.after
            store.add(Batch(journal=(entry,)))
        status = store.status()
        assert status.used_bytes <= 1_000_000
        assert status.pruned_journal > 0
        rows = journal_of(store)
        assert rows[-1].after == number  # the newest are those that stay
        assert len(rows) > 20


def test_heavy_live_traffic_and_content_share_the_room_by_age(tmp_path):
    with EvidenceStore(tmp_path / "e", 1_000_000) as store:
        fill(store, count=100, records=100)
        assert store.status().used_bytes <= 1_000_000
        oldest = journal_of(store)[0].unix_s
        content = [row.started_unix_s for row in store.list(limit=1_000).pairs if not row.pruned]
        assert abs(min(content) - oldest) <= 1.0


def test_rows_of_short_answers_do_not_crowd_out_the_content_of_newer_ones(tmp_path):
    """Answers of a few tokens weigh less than their rows: what is recent must stay whole all the same."""
    with EvidenceStore(tmp_path / "e", 1_000_000) as store:
        for place in range(1_500):
            one = comparison(pair(capture_id=f"c{place}"))
            entry = observed(one, before=place, unix_s=1_700_000_000.0 + place, sequence=place + 1)
            store.add(
                Batch(
                    comparisons=(ComparisonDone(comparison=one, incarnation="e", sequence=place + 1),),
                    journal=(entry,),
                )
            )
        status = store.status()
        assert status.used_bytes <= 1_000_000
        assert status.forgotten_captures > 0
        for place in range(1_450, 1_500):
            assert store.comparison(f"c{place}").pairs
        # Nothing is left of what was forgotten.
        for table in ("content", "pair", "comparison"):
            column = "id" if table == "content" else "capture_id"
            known = f"SELECT {column} FROM exchange"
            orphans = store._db.execute(f"SELECT count(*) FROM {table} WHERE {column} NOT IN ({known})")
            assert orphans.fetchone()[0] == 0, table


def test_pinned_rows_that_fill_the_room_are_an_error_and_no_endless_search(tmp_path):
    def pinned(store: EvidenceStore, count: int) -> None:
        for place in range(count):
            one = comparison(pair(capture_id=f"c{place}"))
            pin = Pin(capture_id=one.capture_id, rollout="old-to-new", why="w", unix_s=1.0)
            done = ComparisonDone(comparison=one, incarnation="e", sequence=place + 1)
            store.add(Batch(comparisons=(done,), pins=(pin,)))

    with EvidenceStore(tmp_path / "e", 1_000_000) as store:
        with pytest.raises(EvidenceFull, match="pinned"):
            pinned(store, 2_000)
        assert 100 < store.status().pairs < 2_000
