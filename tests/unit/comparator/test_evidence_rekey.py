"""Rotation: everything stored comes to the key of today, in bounded steps that a kill only delays."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from comparator.evidence import (
    NO_KEYS,
    EvidenceLocked,
    EvidenceReader,
    EvidenceStore,
    Keyring,
    Rekeyed,
)
from comparator.evidence import rekey as module
from tests.support.at_rest import KEYS, found_in, key
from tests.unit.comparator.test_evidence_erasure import files, killed
from tests.unit.comparator.test_evidence_seal import BYTES, all_of, batch

NEW = Keyring(current=key(2), old=(key(1),))


def fill(path: Path, keys: Keyring, count: int = 12) -> None:
    with EvidenceStore(path, BYTES, keys=keys) as store:
        store.add(batch("c", 1))
        for number in range(2, count):
            store.add(batch(f"c-{number}", number))


def rekey(path: Path, keys: Keyring) -> Rekeyed:
    with EvidenceStore(path, BYTES, keys=keys) as store:
        while not (done := store.rekey_step()).done:
            pass
    return done


def test_old_values_are_read_with_a_listed_key_and_new_ones_sealed_with_the_new(tmp_path: Path) -> None:
    path = tmp_path / "e"
    fill(path, KEYS)
    with EvidenceReader(path, KEYS) as reader:
        before = all_of(reader)
    with EvidenceStore(path, BYTES, keys=NEW) as store:
        assert all_of(store) == before
        store.add(batch("later", 99))
        assert store.status().key_ids == (key(1).id, key(2).id)
    with EvidenceReader(path, Keyring(current=key(2))) as reader:
        assert reader.comparison("later").pairs
        with pytest.raises(EvidenceLocked):
            reader.comparison("c")


def test_after_a_rekey_the_old_key_opens_nothing_and_the_new_one_everything(tmp_path: Path) -> None:
    path = tmp_path / "e"
    fill(path, KEYS)
    with EvidenceReader(path, KEYS) as reader:
        before = all_of(reader)
    done = rekey(path, NEW)
    assert (done.key_id, done.retired) == (key(2).id, (key(1).id,))
    assert done.rows > 100
    with EvidenceReader(path, Keyring(current=key(2))) as reader:
        assert all_of(reader) == before
        assert reader.status().key_ids == (key(2).id,)
    with EvidenceReader(path, KEYS) as reader, pytest.raises(EvidenceLocked):
        reader.comparison("c")
    assert rekey(path, NEW).rows == 0  # nothing is written twice


def test_a_plain_store_is_sealed_down_to_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "e"
    fill(path, NO_KEYS)
    with EvidenceReader(path) as reader:
        before = all_of(reader)
    assert found_in(files(path))
    rekey(path, KEYS)
    assert found_in(files(path)) == []
    with EvidenceReader(path, KEYS) as reader:
        assert all_of(reader) == before


def test_a_sealed_store_is_opened_again_for_good(tmp_path: Path) -> None:
    path = tmp_path / "e"
    fill(path, KEYS)
    with EvidenceReader(path, KEYS) as reader:
        before = all_of(reader)
    done = rekey(path, Keyring(old=(key(1),)))
    assert (done.key_id, done.retired) == (None, (key(1).id,))
    with EvidenceReader(path) as reader:
        assert all_of(reader) == before


def test_without_the_old_key_nothing_is_lost_and_the_missing_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "e"
    fill(path, KEYS)
    other = Keyring(current=key(3))
    with EvidenceStore(path, BYTES, keys=other) as store, pytest.raises(EvidenceLocked, match=key(1).id):
        store.rekey_step()
    with EvidenceReader(path, KEYS) as reader:
        assert reader.comparison("c").pairs


def test_a_second_rotation_in_the_middle_of_the_first_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "e"
    monkeypatch.setattr(module, "AT_ONCE", 5)
    fill(path, KEYS)
    with EvidenceReader(path, KEYS) as reader:
        before = all_of(reader)
    with EvidenceStore(path, BYTES, keys=NEW) as store:
        for _ in range(4):
            assert not store.rekey_step().done
    done = rekey(path, Keyring(current=key(3), old=(key(1), key(2))))
    assert set(done.retired) == {key(1).id, key(2).id}
    with EvidenceReader(path, Keyring(current=key(3))) as reader:
        assert all_of(reader) == before


@pytest.mark.parametrize("steps", [1, 2, 4, 7, 12, 20, 33, 54, 88, 142])
def test_a_kill_at_any_statement_is_gone_on_from(tmp_path: Path, steps: int) -> None:
    path = tmp_path / "e"
    fill(path, KEYS)
    with EvidenceReader(path, KEYS) as reader:
        before = all_of(reader)
    killed(path, "rekey", steps)
    with EvidenceReader(path, NEW) as reader:
        assert all_of(reader) == before  # half of it under each key, and all of it there
    db = sqlite3.connect(path)
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()
    rekey(path, NEW)
    with EvidenceReader(path, Keyring(current=key(2))) as reader:
        assert all_of(reader) == before


def test_it_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "e"
    monkeypatch.setattr(module, "AT_ONCE", 5)
    fill(path, KEYS)
    with EvidenceStore(path, BYTES, keys=NEW) as store:
        first = [store.rekey_step() for _ in range(6)][-1]
    with EvidenceStore(path, BYTES, keys=NEW) as store:
        assert store.rekey_step().looked_at > first.looked_at > 0
