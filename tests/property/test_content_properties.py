"""A content blob gives back every bit that it was given."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from comparator.evidence.codec import ContentError, decode_content, encode_content
from comparator.records import Step

ids = st.integers(0, 2**32 - 1) | st.integers(-(2**63), 2**63 - 1)
# every float, and floats that are exact in 32 bits, which are stored at half the size
floats = st.floats(allow_nan=True, allow_infinity=True) | st.floats(width=32)


@st.composite
def steps(draw: st.DrawFn) -> Step:
    k = draw(st.integers(0, 4))
    return Step(
        token_id=draw(ids),
        logprob=draw(st.none() | floats),
        top_ids=tuple(draw(st.lists(ids, min_size=k, max_size=k))),
        top_logprobs=tuple(draw(st.lists(floats, min_size=k, max_size=k + draw(st.integers(0, 1))))),
        received_s=draw(floats),
        text=draw(st.none() | st.text()),
    )


def bits(value: float | None) -> bytes | None:
    return None if value is None else struct.pack("<d", value)


def as_bits(step: Step) -> tuple[object, ...]:
    return (
        step.token_id,
        bits(step.logprob),
        step.top_ids,
        tuple(map(bits, step.top_logprobs)),
        bits(step.received_s),
        step.text,
    )


@settings(max_examples=300, deadline=None)
@given(st.lists(ids, max_size=5), st.lists(steps(), max_size=5))
@example([], [])
@example([1], [Step(1, -0.0, (1,), (-0.0,), 0.0)])
@example([1], [Step(1, struct.unpack("<d", b"\x01\0\0\0\0\0\xf8\x7f")[0], (), (), 0.0)])
@example([1], [Step(1, struct.unpack("<d", b"\0\0\0\x20\0\0\xf4\x7f")[0], (), (), 0.0)])
def test_content_comes_back_bit_for_bit(prompt, given_steps):
    content = decode_content(encode_content(prompt, given_steps))
    assert content.prompt_token_ids == tuple(prompt)
    assert [as_bits(s) for s in content.steps] == [as_bits(s) for s in given_steps]


def test_values_exact_in_32_bits_take_half_the_room():
    def blob(value: float) -> bytes:
        return encode_content([], [Step(1, None, (1,) * 20, (value,) * 20, 0.0)] * 64)

    assert len(blob(-0.1)) - len(blob(-0.5)) == 64 * 20 * 4


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80), st.integers(0, 400))
def test_a_broken_blob_is_told_and_never_misread(noise, cut):
    whole = encode_content([1, 2], [Step(1, -0.5, (1, 2), (-0.5, -1.0), 0.1, "a")] * 3)
    for blob in (noise, whole[: min(cut, len(whole) - 1)]):
        with pytest.raises(ContentError):
            decode_content(blob)


def test_a_newer_blob_is_refused():
    import msgspec

    fields = msgspec.msgpack.decode(encode_content([], []))
    fields[0] = 2
    with pytest.raises(ContentError, match="version 2; this forkgate reads 1"):
        decode_content(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize("bad", ["x", None, 2**64, 1.5])
def test_what_is_no_token_id_cannot_be_stored(bad):
    with pytest.raises(ContentError):
        encode_content([bad], [])
