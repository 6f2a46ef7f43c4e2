"""The latch survives torn writes, refuses to guess, and opens only when a person opens it."""

from __future__ import annotations

import errno
import os
import struct
import zlib
from pathlib import Path

import pytest

from forkgate.state.latch import (
    MAX_BODY_BYTES,
    MAX_LIFTED,
    SHORT_REASON_CHARS,
    SLOT_BYTES,
    SLOTS,
    VERSION,
    Latch,
    LatchCorrupt,
    LatchFile,
    Moved,
    read_latch,
)
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


# -- tenants, and a home that moved ---------------------------------------------------------------------

HOME = Moved(rollout="a-to-b", pool="b", epoch=9, unix_s=2.0)

VERSION_1 = (
    b'{"epoch":7,"latched":{"a-to-b":{"rollback":{"rollout":"a-to-b","verdict":{"gate":"token_equality",'
    b'"answer":"fail","value":1.0,"limit":0.0,"n":1,"reason":"forked","alpha":null,"deciding_id":"c",'
    b'"estimand":"traffic","rollback_nats":null,"promotion_nats":null,"interval":null,"hold":false},'
    b'"policy_digest":"sha256:00","from_stage":"canary","unix_s":1.0,"durable":true},"epoch":7}},"lifted":[]}'
)
"""As the first version wrote it."""


def in_slot(path: Path, slot: int, sequence: int, body: bytes) -> None:
    raw = bytearray(path.read_bytes() if path.exists() else bytes(SLOTS * SLOT_BYTES))
    head = struct.pack("<8sQII", b"fglatch1", sequence, len(body), zlib.crc32(body))
    raw[slot * SLOT_BYTES : slot * SLOT_BYTES + len(head) + len(body)] = head + body
    path.write_bytes(raw)


def test_a_file_of_the_first_version_is_read_and_written_on(tmp_path: Path) -> None:
    path = tmp_path / "latch"
    in_slot(path, 1, 1, VERSION_1)
    file = LatchFile(path)
    latch = file.open()
    assert latch.latched["a-to-b"].rollback.verdict == rolled_back().verdict
    assert (latch.epoch, latch.tenants, latch.moved) == (7, {}, None)
    file.write(latch.with_tenant("acme", rolled_back(), 8))
    file.close()
    assert read_latch(path).tenants["a-to-b"]["acme"].epoch == 8
    assert "a-to-b" in read_latch(path).latched


def test_a_file_of_a_version_to_come_is_no_empty_latch_and_no_older_one(tmp_path: Path) -> None:
    path = tmp_path / "latch"
    in_slot(path, 1, 1, VERSION_1)
    in_slot(path, 0, 2, VERSION_1.replace(b'{"epoch"', b'{"version":%d,"epoch"' % (VERSION + 1), 1))
    with pytest.raises(LatchCorrupt, match="a newer forkgate wrote it"):
        read_latch(path)


def test_a_tenant_is_latched_and_lifted_alone(tmp_path: Path) -> None:
    file = LatchFile(tmp_path / "latch")
    latch = file.open().with_tenant("acme", rolled_back(), 7).with_tenant("globex", rolled_back(), 8)
    latch = latch.with_tenant("acme", rolled_back(reason="later"), 9)
    assert latch.tenants["a-to-b"]["acme"].rollback.verdict.reason == "forked", "the first reason stands"
    assert latch.latched == {}
    file.write(latch)
    file.close()
    latch = read_latch(tmp_path / "latch").with_lifted("a-to-b", "fixed", 3.0, "acme")
    assert list(latch.tenants["a-to-b"]) == ["globex"]
    assert (latch.lifted[-1].tenant, latch.lifted[-1].latched.epoch, latch.epoch) == ("acme", 7, 9)
    with pytest.raises(KeyError):
        latch.with_lifted("a-to-b", "fixed", 3.0, "acme")
    with pytest.raises(KeyError):
        latch.with_lifted("a-to-b", "fixed", 3.0)
    assert latch.with_lifted("a-to-b", "fixed", 3.0, "globex").tenants == {}


def test_a_lift_of_the_rollout_leaves_its_tenants_at_home() -> None:
    latch = Latch().with_tenant("acme", rolled_back(), 7).with_latched(rolled_back(), 8)
    assert list(latch.with_lifted("a-to-b", "fixed", 3.0).tenants["a-to-b"]) == ["acme"]


def test_one_write_latches_a_promoted_rollout_and_takes_its_home_back(tmp_path: Path) -> None:
    file = LatchFile(tmp_path / "latch")
    file.write(file.open().with_home(HOME))
    assert read_latch(tmp_path / "latch").moved == HOME
    assert read_latch(tmp_path / "latch").with_latched(rolled_back("other"), 10).moved == HOME
    file.write(read_latch(tmp_path / "latch").with_latched(rolled_back(), 10))
    file.close()
    after = read_latch(tmp_path / "latch")
    assert (after.moved, list(after.latched), after.epoch) == (None, ["a-to-b"], 10)


def test_a_hundred_tenants_with_long_reasons_fit_by_shortening_them(tmp_path: Path) -> None:
    file = LatchFile(tmp_path / "latch")
    latch = file.open().with_latched(rolled_back(reason="whole" * 50), 1)
    for number in range(100):
        latch = latch.with_tenant(f"tenant-{number}", rolled_back(reason="long " * 200), number)
    file.write(latch)
    file.close()
    after = read_latch(tmp_path / "latch")
    assert list(after.tenants["a-to-b"]) == [f"tenant-{number}" for number in range(100)]
    reasons = {one.rollback.verdict.reason for one in after.tenants["a-to-b"].values()}
    assert reasons == {("long " * 200)[:SHORT_REASON_CHARS]}
    assert after.latched["a-to-b"].rollback.verdict.reason == "whole" * 50


@pytest.mark.parametrize("count", [500, 850])
def test_of_many_tenants_the_names_fit_where_reasons_do_not(tmp_path: Path, count: int) -> None:
    names = [f"{number:03d}-{'n' * 59}" for number in range(count)]  # as long as a name may be
    file = LatchFile(tmp_path / "latch")
    latch = file.open().with_latched(rolled_back("other"), 3).with_home(HOME)
    for number, name in enumerate(names):
        latch = latch.with_tenant(name, rolled_back(reason="long " * 200), number)
    file.write(latch)
    file.close()
    after = read_latch(tmp_path / "latch")
    assert {name: one.epoch for name, one in after.tenants["a-to-b"].items()} == {
        name: number for number, name in enumerate(names)
    }
    assert "names alone" in after.tenants["a-to-b"][names[0]].rollback.verdict.reason
    assert (list(after.latched), after.moved, after.names) == (["other"], HOME, {})
    assert after.with_lifted("a-to-b", "fixed", 3.0, names[0]).tenants["a-to-b"].keys() == set(names[1:])


def test_where_not_even_the_names_fit_the_whole_rollout_is_home(tmp_path: Path) -> None:
    file = LatchFile(tmp_path / "latch")
    file.write(file.open().with_tenant("acme", rolled_back(), 1))
    latch = read_latch(tmp_path / "latch").with_tenant("acme", rolled_back("other"), 2)
    for number in range(MAX_BODY_BYTES // 10):
        latch = latch.with_tenant(f"tenant-{number}", rolled_back(), number)
    file.write(latch)
    file.close()
    after = read_latch(tmp_path / "latch")
    assert list(after.latched) == ["a-to-b"], "a rollback is never refused for its size"
    assert "more than the latch's file can name" in after.latched["a-to-b"].rollback.verdict.reason
    assert list(after.tenants) == ["other"]
