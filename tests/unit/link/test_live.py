"""Packing and unpacking of live records."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.live import (
    ABORTED_BY,
    FIRST_RECORD_BYTES,
    MAX_ENVIRONMENTS,
    MAX_NAME_CHARS,
    MAX_NAMES,
    ODD_ENVIRONMENT,
    RECORD_BYTES,
    SECOND_RECORD_BYTES,
    LivePacker,
    unpack,
)

seconds = st.floats(allow_nan=True, width=64)
counts = st.integers(0, 2**64 - 1)
names = st.text(max_size=20)


@given(
    st.lists(
        st.tuples(
            seconds,
            names,
            names,
            names,
            st.integers(0, 65_535),
            seconds,
            seconds,
            counts,
            counts,
            st.integers(0, len(ABORTED_BY) - 1),
            st.integers(0, 255),
            names,
            st.floats(allow_nan=True, width=32),
        ),
        max_size=20,
    )
)
def test_records_come_back_as_they_went(rows: list[tuple]) -> None:  # type: ignore[type-arg]
    packer = LivePacker(20)
    for row in rows:
        packer.add(*row)
    raws = list(unpack(*packer.take()))
    assert [raw.sequence for raw in raws] == list(range(1, len(rows) + 1))
    back = [
        (
            raw.started_unix_s,
            raw.tenant,
            raw.pool,
            raw.endpoint,
            raw.status,
            raw.first_byte_s,
            raw.total_s,
            raw.request_bytes,
            raw.response_bytes,
            raw.aborted_by,
            raw.flags,
            raw.environment,
            raw.overhead_s,
        )
        for raw in raws
    ]
    assert repr(back) == repr(rows)  # repr, since NaN differs from itself
    assert len(packer) == 0


def add(packer: LivePacker, tenant: str = "t", status: int = 200) -> None:
    packer.add(1.0, tenant, "p", "e", status, math.nan, 0.5, 1, 2, 0, 0)


def test_what_does_not_fit_is_lost_and_leaves_a_gap() -> None:
    packer = LivePacker(2)
    for _ in range(3):
        add(packer)
    packer.take()
    add(packer)
    assert packer.lost == 1
    assert [raw.sequence for raw in unpack(*packer.take())] == [4]


def test_names_are_bounded_in_length_and_number() -> None:
    packer = LivePacker(MAX_NAMES + 10)
    add(packer, "x" * (MAX_NAME_CHARS + 1))
    assert packer.lost == 1
    for number in range(MAX_NAMES - 2):  # "p" and "e" are in it already
        add(packer, str(number))
    assert packer.lost == 1
    add(packer, "one too many")
    assert packer.lost == 2
    assert len(packer) == MAX_NAMES - 2


def test_a_number_that_no_request_can_have_is_lost_not_raised() -> None:
    packer = LivePacker(2)
    add(packer, status=70_000)
    add(packer, status=-1)
    assert (packer.lost, len(packer)) == (2, 0)


def test_broken_bytes_are_refused() -> None:
    packer = LivePacker(1)
    add(packer)
    packed, names = packer.take()
    with pytest.raises(ValueError, match=f"no multiple of {RECORD_BYTES}"):
        list(unpack(packed[:-1], names))
    with pytest.raises(ValueError, match="outside its table"):
        list(unpack(packed, names[:1]))


def test_an_engine_that_tells_ever_new_digests_costs_no_record() -> None:
    packer = LivePacker(20_000)
    for number in range(20_000):
        packer.add(1.0, str(number % 100), "p", "e", 200, 0.1, 0.2, 1, 2, 0, 0, f"sha256:{number:064x}")
    assert packer.lost == 0
    told = [raw.environment for raw in unpack(*packer.take())]
    assert told[:MAX_ENVIRONMENTS] == [f"sha256:{number:064x}" for number in range(MAX_ENVIRONMENTS)]
    assert set(told[MAX_ENVIRONMENTS:]) == {ODD_ENVIRONMENT}
    packer.add(1.0, "t", "p", "e", 200, 0.1, 0.2, 1, 2, 0, 0, "sha256:new")
    assert [raw.environment for raw in unpack(*packer.take())] == ["sha256:new"]


def test_records_of_an_edge_that_knows_no_environments_are_read() -> None:
    packer = LivePacker(3)
    for status in (200, 201, 202):
        add(packer, status=status)
    packed, names = packer.take()
    old = b"".join(packed[at : at + FIRST_RECORD_BYTES] for at in range(0, len(packed), RECORD_BYTES))
    assert [(raw.status, raw.environment) for raw in unpack(old, names, FIRST_RECORD_BYTES)] == [
        (200, ""),
        (201, ""),
        (202, ""),
    ]


def test_records_of_an_edge_that_measures_no_overhead_are_read() -> None:
    packer = LivePacker(2)
    packer.add(1.0, "t", "p", "e", 200, 0.1, 0.2, 1, 2, 0, 0, "sha256:a", 0.25)
    packed, names = packer.take()
    (now,) = unpack(packed, names)
    assert now.overhead_s == 0.25
    (then,) = unpack(packed[:SECOND_RECORD_BYTES], names, SECOND_RECORD_BYTES)
    assert (then.status, then.environment) == (200, "sha256:a")
    assert math.isnan(then.overhead_s)


def test_what_a_newer_edge_packs_behind_is_left_alone() -> None:
    packer = LivePacker(2)
    packer.add(1.0, "t", "p", "e", 200, 0.1, 0.2, 1, 2, 0, 0, "sha256:a")
    add(packer, status=500)
    packed, names = packer.take()
    new = b"".join(packed[at : at + RECORD_BYTES] + b"more" for at in range(0, len(packed), RECORD_BYTES))
    raws = list(unpack(new, names, RECORD_BYTES + 4))
    assert [(raw.status, raw.environment) for raw in raws] == [(200, "sha256:a"), (500, "")]
    with pytest.raises(ValueError, match="which no edge packs"):
        list(unpack(packed, names, FIRST_RECORD_BYTES + 1))
