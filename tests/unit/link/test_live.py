"""Packing and unpacking of live records."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.live import ABORTED_BY, MAX_NAME_CHARS, MAX_NAMES, RECORD_BYTES, LivePacker, unpack

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
