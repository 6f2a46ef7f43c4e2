"""The latch survives torn writes, refuses to guess, and opens only when a person opens it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from forkgate.state.latch import MAX_LIFTED, SLOT_BYTES, SLOTS, Latch, LatchCorrupt, LatchFile, read_latch
from policies.rollout import Latch as Rollback
from policies.rollout import Stage
from policies.routes import RolloutName
from policies.verdict import Answer, Verdict


def rolled_back(rollout: str = "a-to-b", reason: str = "forked") -> Rollback:
    return Rollback(
        rollout=RolloutName(rollout),
        verdict=Verdict(
            gate="token_equality",
            answer=Answer.FAIL,
            value=1.0,
            limit=0.0,
            n=1,
            reason=reason,
            deciding_id="c",
        ),
        policy_digest="sha256:00",
        from_stage=Stage.CANARY,
        unix_s=1.0,
    )


def test_no_file_is_an_empty_latch(tmp_path: Path) -> None:
    assert read_latch(tmp_path / "latch") == Latch()


def test_space_is_taken_when_the_file_is_made(tmp_path: Path) -> None:
    file = LatchFile(tmp_path / "latch")
    assert file.open() == Latch()
    assert (tmp_path / "latch").stat().st_size == SLOTS * SLOT_BYTES
    assert (tmp_path / "latch").stat().st_blocks * 512 >= SLOTS * SLOT_BYTES
    file.close()


def test_what_was_written_is_read_by_the_next_life(tmp_path: Path) -> None:
    file = LatchFile(tmp_path / "latch")
    latch = file.open().with_latched(rolled_back(), 7)
    file.write(latch)
    file.close()
    assert read_latch(tmp_path / "latch") == latch
    assert LatchFile(tmp_path / "latch").open() == latch


@pytest.mark.parametrize("cut", [0, 1, 23, 24, 25, 100])
def test_write_torn_at_any_byte_leaves_the_latch_before_it(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "latch"
    file = LatchFile(path)
    first = file.open().with_latched(rolled_back("one"), 3)
    file.write(first)
    before = path.read_bytes()
    file.write(first.with_latched(rolled_back("two"), 4))
    file.close()
    after = path.read_bytes()
    slot = next(
        index
        for index in range(SLOTS)
        if after[index * SLOT_BYTES :][:SLOT_BYTES] != before[index * SLOT_BYTES :][:SLOT_BYTES]
    )
    torn = bytearray(before)
    torn[slot * SLOT_BYTES : slot * SLOT_BYTES + cut] = after[slot * SLOT_BYTES : slot * SLOT_BYTES + cut]
    path.write_bytes(torn)
    assert read_latch(path) == first


def test_neither_slot_whole_is_an_error_and_no_empty_latch(tmp_path: Path) -> None:
    path = tmp_path / "latch"
    file = LatchFile(path)
    file.write(file.open().with_latched(rolled_back(), 7))
    file.close()
    path.write_bytes(b"\x01" * SLOTS * SLOT_BYTES)
    with pytest.raises(LatchCorrupt, match="neither slot is whole"):
        read_latch(path)


def test_first_write_torn_is_an_error_because_a_rollback_was_under_way(tmp_path: Path) -> None:
    path = tmp_path / "latch"
    file = LatchFile(path)
    file.write(file.open().with_latched(rolled_back(), 7))
    file.close()
    raw = bytearray(path.read_bytes())
    raw[SLOT_BYTES + 40] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(LatchCorrupt):
        read_latch(path)


def test_failed_sync_is_raised_and_the_latch_before_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = LatchFile(tmp_path / "latch")
    first = file.open().with_latched(rolled_back("one"), 7)
    file.write(first)

    def full(_fd: int, _data: bytes, _at: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        file.write(first.with_latched(rolled_back("two"), 7))
    monkeypatch.undo()
    assert read_latch(tmp_path / "latch") == first
    second = first.with_latched(rolled_back("three"), 7)
    file.write(second)
    assert read_latch(tmp_path / "latch") == second
    file.close()


def test_first_reason_stands_when_a_rollout_breaches_twice() -> None:
    latch = Latch().with_latched(rolled_back(reason="first"), 7).with_latched(rolled_back(reason="second"), 9)
    assert latch.latched["a-to-b"].rollback.verdict.reason == "first"
    assert latch.epoch == 9


def test_lifting_keeps_who_was_latched_and_why_it_was_lifted() -> None:
    latch = Latch().with_latched(rolled_back(), 7).with_lifted("a-to-b", "kernel fixed", 2.0)
    assert latch.latched == {}
    assert latch.lifted[0].reason == "kernel fixed"
    assert latch.epoch == 7


def test_lifting_what_is_not_latched_is_an_error() -> None:
    with pytest.raises(KeyError):
        Latch().with_lifted("a-to-b", "why not", 2.0)


def test_history_is_bounded_and_never_costs_a_latch_its_place(tmp_path: Path) -> None:
    latch = Latch()
    for number in range(MAX_LIFTED + 5):
        latch = latch.with_latched(rolled_back(reason="r" * 4_000), 7).with_lifted(
            "a-to-b", "l" * 4_000, float(number)
        )
    assert len(latch.lifted) == MAX_LIFTED
    latch = latch.with_latched(rolled_back(), 7)
    file = LatchFile(tmp_path / "latch")
    file.open()
    file.write(latch)
    file.close()
    assert read_latch(tmp_path / "latch").latched == latch.latched
