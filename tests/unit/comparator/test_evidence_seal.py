"""Sealed values: nothing to read without the key, everything with it, nothing that was moved or changed."""

from __future__ import annotations

import logging
import sqlite3
from pathlib import Path

import pytest

from comparator.comparison import Score
from comparator.evidence import (
    NO_KEYS,
    Batch,
    ComparisonDone,
    Drop,
    EvidenceDamaged,
    EvidenceLocked,
    EvidenceReader,
    EvidenceStore,
    JournalEntry,
    Key,
    Keyring,
    KeyTextError,
    VerdictRow,
    key_of,
)
from comparator.evidence import seal as module
from comparator.evidence.keys import SealedFileError, open_file, seal_file
from comparator.evidence.places import terminal_place
from comparator.evidence.seal import is_sealed
from comparator.records import Arm
from tests.support.at_rest import (
    CLUSTER,
    ERROR,
    KEYS,
    REASON,
    WORDS,
    fork_of,
    found_in,
    key,
    needles,
    secret_pair,
)
from tests.support.exchanges import comparison, live

BYTES = 50_000_000


def batch(capture_id: str = "c", sequence: int = 1, tenant: str = "acme") -> Batch:
    """One of everything that is kept."""
    one = secret_pair(capture_id, tenant)
    score = Score(arm=Arm.BASELINE, question="rules", error=ERROR)
    done = comparison(one, cluster=CLUSTER, scores=(score,))
    return Batch(
        comparisons=(ComparisonDone(comparison=done, incarnation="e", sequence=sequence),),
        forks=(fork_of(one), fork_of(secret_pair(capture_id + "-early", tenant))),
        drops=(
            Drop(
                incarnation="e",
                sequence=sequence + 1_000,
                rollout="old-to-new",
                reason="too_old",
                detail=ERROR,
                unix_s=1.0,
            ),
        ),
        verdicts=(
            VerdictRow(
                rollout="old-to-new",
                unix_s=1.5 + sequence,
                policy_digest="sha256:00",
                gate="rule_cases",
                answer="fail",
                value=None,
                limit=None,
                n=1,
                reason=REASON,
                state=f'{{"why":"{REASON}"}}',
                verdict=f'{{"reason":"{REASON}"}}',
                deciding_id=capture_id,
            ),
        ),
        journal=(
            JournalEntry(
                rollout="old-to-new",
                sequence=sequence,
                before=0,
                after=1,
                unix_s=2.0,
                kind="observed",
                items=(done, live()),
            ),
            JournalEntry(
                rollout="old-to-new",
                sequence=sequence,
                before=1,
                after=1,
                unix_s=3.0,
                kind="CheckDone",
                body=REASON.encode(),
            ),
        ),
    )


def all_of(store: EvidenceReader, capture_id: str = "c") -> object:
    return (
        store.show(capture_id),
        store.verdicts(),
        list(store.journal("old-to-new", 1_000)),
        list(store.clusters("old-to-new")),
        store.list().pairs,
        store.fork_seen(capture_id + "-early", "baseline", "candidate", 0),
        list(store.export()),
    )


def read_all(reader: EvidenceReader) -> None:
    """Every sealed value, also the one that nothing but a person's own look reads back."""
    all_of(reader)
    for incarnation, sequence, detail in reader._all(
        "SELECT incarnation, sequence, detail FROM terminal", []
    ):
        reader._seal.open_text(terminal_place(incarnation, sequence), detail)


def files(path: Path) -> list[Path]:
    return [path, path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")]


def test_the_needles_are_found_where_nothing_is_sealed(tmp_path: Path) -> None:
    with EvidenceStore(tmp_path / "e", BYTES) as store:
        store.add(batch())
        found = {text.rsplit(" in ", 1)[0] for text in found_in(files(tmp_path / "e"))}
    plain = {name for name in needles() if name.endswith(("as text", "in 32 bits"))}
    assert plain <= found  # else the test below would look for what is never there


def test_a_leaked_file_shows_no_content_without_the_key(tmp_path: Path) -> None:
    with EvidenceStore(tmp_path / "e", BYTES, keys=KEYS) as store:
        for number in range(1, 40):
            store.add(batch(f"c-{number}", number))
        assert found_in(files(tmp_path / "e")) == []
    assert found_in(files(tmp_path / "e")) == []


def test_with_the_key_everything_is_what_it_was(tmp_path: Path) -> None:
    one = batch()
    with (
        EvidenceStore(tmp_path / "plain", BYTES) as plain,
        EvidenceStore(tmp_path / "e", BYTES, keys=KEYS) as sealed,
    ):
        plain.add(one)
        sealed.add(one)
        assert all_of(sealed) == all_of(plain)
        assert sealed.comparison("c") == one.comparisons[0].comparison
    with EvidenceReader(tmp_path / "e", KEYS) as reader, EvidenceReader(tmp_path / "plain") as plain:
        assert all_of(reader) == all_of(plain)


def test_a_reader_without_the_key_is_told_which_one_is_missing(tmp_path: Path) -> None:
    with EvidenceStore(tmp_path / "e", BYTES, keys=KEYS) as store:
        store.add(batch())
    for keys in (NO_KEYS, Keyring(current=key(9))):
        with EvidenceReader(tmp_path / "e", keys) as reader:
            with pytest.raises(
                EvidenceLocked, match=f"sealed with key {key(1).id}, and that key is not given"
            ):
                reader.show("c")
            status = reader.status()  # numbers alone
            assert (status.pairs, status.sealed_with, status.key_ids) == (1, key(1).id, (key(1).id,))


def test_a_store_opened_without_its_key_still_takes_new_evidence_and_tells_what_it_cannot_read(
    tmp_path: Path,
) -> None:
    with EvidenceStore(tmp_path / "e", BYTES, keys=KEYS) as store:
        store.add(batch())
    with EvidenceStore(tmp_path / "e", BYTES) as store:
        store.add(batch("d", 2))
        assert store.comparison("d").pairs[0].fork is not None
        with pytest.raises(EvidenceLocked):
            store.comparison("c")


@pytest.mark.parametrize(
    ("table", "column", "where"),
    [
        ("content", "blob", "id"),
        ("exchange", "settings", "id"),
        ("comparison", "cluster", "id"),
        ("verdict", "reason", "id"),
        ("journal", "body", "id"),
        ("score", "error", "id"),
        ("terminal", "detail", "id"),
    ],
)
def test_a_value_in_another_row_is_refused(tmp_path: Path, table: str, column: str, where: str) -> None:
    path = tmp_path / "e"
    with EvidenceStore(path, BYTES, keys=KEYS) as store:
        store.add(batch("c", 1))
        store.add(batch("d", 2))
    db = sqlite3.connect(path)
    values = db.execute(f"SELECT {where}, {column} FROM {table} ORDER BY {where}").fetchall()
    sealed = [row for row in values if is_sealed(row[1])]
    assert len(sealed) >= 2
    first, last = sealed[0], sealed[-1]
    db.execute(f"UPDATE {table} SET {column} = ? WHERE {where} = ?", (last[1], first[0]))
    db.commit()
    db.close()
    with EvidenceReader(path, KEYS) as reader, pytest.raises(EvidenceDamaged, match="moved from elsewhere"):
        read_all(reader)


def test_a_value_in_another_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e"
    with EvidenceStore(path, BYTES, keys=KEYS) as store:
        store.add(batch())
        store._db.execute("UPDATE verdict SET reason = state")
        with pytest.raises(EvidenceDamaged, match=r"verdict\.reason"):
            store.verdicts()


def test_a_value_of_another_store_with_the_same_key_is_refused(tmp_path: Path) -> None:
    one = batch()
    for name in ("a", "b"):
        with EvidenceStore(tmp_path / name, BYTES, keys=KEYS) as store:
            store.add(one)
    db = sqlite3.connect(tmp_path / "b")
    db.execute("ATTACH ? AS other", (str(tmp_path / "a"),))
    db.execute("UPDATE content SET blob = (SELECT blob FROM other.content o WHERE o.id = content.id)")
    db.execute(
        "UPDATE data_key SET wrapped = (SELECT wrapped FROM other.data_key o WHERE o.id = data_key.id)"
    )
    db.commit()
    db.close()
    with EvidenceReader(tmp_path / "b", KEYS) as reader, pytest.raises(EvidenceDamaged):
        reader.comparison("c")


def test_every_bit_of_a_sealed_value_counts(tmp_path: Path) -> None:
    path = tmp_path / "e"
    with EvidenceStore(path, BYTES, keys=KEYS) as store:
        store.add(batch())
        blob = store._db.execute("SELECT blob FROM content WHERE id = 1").fetchone()[0]
        for at in range(6, len(blob), 17):
            changed = bytearray(blob)
            changed[at] ^= 1
            store._db.execute("UPDATE content SET blob = ? WHERE id = 1", (bytes(changed),))
            with pytest.raises(EvidenceDamaged):
                store.show("c")


def test_no_nonce_comes_twice_and_each_life_has_a_data_key_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "e"
    for life in range(3):
        with EvidenceStore(path, BYTES, keys=KEYS) as store:
            for number in range(30):
                store.add(batch(f"{life}-{number}", life * 100 + number + 1))
    db = sqlite3.connect(path)
    heads = [
        bytes(row[0])[2:18]
        for column, table in (
            ("blob", "content"),
            ("settings", "exchange"),
            ("detail", "fork"),
            ("body", "journal"),
        )
        for row in db.execute(f"SELECT {column} FROM {table}")
    ]
    data_keys = [row[0] for row in db.execute("SELECT id FROM data_key")]
    db.close()
    assert len(heads) == len(set(heads)) > 500
    assert len({head[:4] for head in heads}) == len(data_keys) == 3


def test_a_worn_data_key_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORN", 20)
    with EvidenceStore(tmp_path / "e", BYTES, keys=KEYS) as store:
        for number in range(1, 10):
            store.add(batch(f"c-{number}", number))
        assert store._db.execute("SELECT count(*) FROM data_key").fetchone()[0] > 3
        assert len(list(store.export())) == 10


def test_a_key_is_text_in_two_forms_and_never_shows_itself() -> None:
    hexadecimal = "01" * 32
    assert key_of(hexadecimal).id == key_of(f" {hexadecimal}\n").id == key(1).id
    assert key_of(b"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=\n").id == key(1).id
    assert repr(key(1)) == f"Key({key(1).id})"
    for text in ("", "correct horse battery staple", "01" * 31, "zz" * 32, "AQEB"):
        with pytest.raises(KeyTextError, match="openssl rand -base64 32") as caught:
            key_of(text)
        assert not text or text not in str(caught.value)
    with pytest.raises(KeyTextError):
        Key(b"short")


def test_keys_of_different_purposes_have_nothing_in_common() -> None:
    derived = {key(1).derive(purpose) for purpose in (b"wrap", b"file", b"token sequences", b"key id")}
    assert len(derived) == 4
    assert not any(key(1).id in one.hex() for one in derived - {key(1).derive(b"key id")})


def test_a_whole_file_is_sealed_for_its_purpose() -> None:
    content = WORDS[0].encode() * 100
    one, other = (seal_file(key(1), "rollout states", content) for _ in range(2))
    assert one != other
    assert WORDS[0].encode() not in one
    assert open_file(KEYS, "rollout states", one) == content
    assert open_file(NO_KEYS, "rollout states", content) == content  # one that was never sealed
    with pytest.raises(SealedFileError, match=f"sealed with key {key(1).id}, which is not among those given"):
        open_file(Keyring(current=key(2)), "rollout states", one)
    for changed in (one[:-1], one[:60] + bytes([one[60] ^ 1]) + one[61:], one[:40]):
        with pytest.raises(SealedFileError):
            open_file(KEYS, "rollout states", changed)
    with pytest.raises(SealedFileError, match="changed since"):
        open_file(KEYS, "something else", one)


def test_nothing_of_it_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), EvidenceStore(tmp_path / "e", BYTES, keys=KEYS) as store:
        store.add(batch())
    assert caplog.text == ""
