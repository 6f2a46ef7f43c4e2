"""Every reader, fed in any pieces, with anything behind: same bytes out, same end, same rest."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.edge.framing import BodyReader, ChunkedBody, CloseBody, FramingError, LengthBody

CONTENT = st.binary(min_size=1, max_size=40)
EXTENSION = st.sampled_from((b"", b";a", b";a=b", b' ; a="b c"', b"\t;x;y"))
TRAILERS = st.sampled_from((b"", b"X-Sum: 1\r\n", b"X-Sum: 1\r\nY:\r\n", b"Server-Timing: a;dur=1\r\n"))


@st.composite
def chunked(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A chunked body and its content."""
    contents = draw(st.lists(CONTENT, max_size=5))
    wire = b""
    for content in contents:
        size = b"%x" % len(content)
        size = draw(st.sampled_from((size, size.upper(), b"00" + size)))
        wire += size + draw(EXTENSION) + b"\r\n" + content + b"\r\n"
    wire += draw(st.sampled_from((b"0", b"000"))) + draw(EXTENSION) + b"\r\n" + draw(TRAILERS) + b"\r\n"
    return wire, b"".join(contents)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(places)]


def feed(reader: BodyReader, parts: list[bytes]) -> tuple[bytes, bytes]:
    """What was forwarded, and what was left over."""
    out = b""
    rest = b""
    for part in parts:
        if reader.done:
            rest += part
            continue
        out += reader.feed(part)
        if reader.done:
            rest += reader.rest
    return out, rest


CUTS = st.lists(st.integers(0, 10_000), max_size=12)
BEHIND = st.sampled_from((b"", b"\r\n", b"0\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x00"))


@given(body=chunked(), behind=BEHIND, cuts=CUTS)
@settings(max_examples=300, deadline=None)
def test_chunked_body_cut_anywhere(body: tuple[bytes, bytes], behind: bytes, cuts: list[int]) -> None:
    wire, content = body
    reader = ChunkedBody()
    reader.keep = []
    out, rest = feed(reader, pieces(wire + behind, cuts))
    assert reader.done
    assert (out, rest) == (wire, behind)
    assert b"".join(reader.keep) == content
    assert reader.payload_bytes == len(content)


@given(body=chunked(), behind=BEHIND)
@settings(max_examples=100, deadline=None)
def test_chunked_body_byte_by_byte(body: tuple[bytes, bytes], behind: bytes) -> None:
    wire, content = body
    reader = ChunkedBody()
    reader.keep = []
    whole = wire + behind
    out, rest = feed(reader, [whole[at : at + 1] for at in range(len(whole))])
    assert (out, rest) == (wire, behind)
    assert b"".join(reader.keep) == content


@given(body=chunked(), length=st.integers(0, 1000), cuts=CUTS)
@settings(max_examples=200, deadline=None)
def test_a_chunked_body_that_stops_early_is_not_done_and_forwards_only_its_own_bytes(
    body: tuple[bytes, bytes], length: int, cuts: list[int]
) -> None:
    wire, _ = body
    part = wire[: length % len(wire)]
    reader = ChunkedBody()
    out, _ = feed(reader, pieces(part, cuts))
    assert not reader.done
    assert part.startswith(out)


@given(data=st.binary(max_size=120), cuts=CUTS)
@settings(max_examples=500, deadline=None)
def test_any_bytes_read_as_chunks_come_to_the_same_end_however_they_are_cut(
    data: bytes, cuts: list[int]
) -> None:
    def outcome(parts: list[bytes]) -> tuple[object, ...]:
        reader = ChunkedBody()
        try:
            out, rest = feed(reader, parts)
        except FramingError:
            return ("refused",)
        return (reader.done, out if reader.done else None, rest)

    whole = outcome([data] if data else [])
    cut = outcome(pieces(data, cuts))
    if whole != cut:
        # Cut in two, a malformed line may still wait for its end where the whole one was seen to be
        # malformed.
        assert cut == (False, None, b"")
        assert whole == ("refused",)


@given(content=st.binary(min_size=1, max_size=100), behind=st.binary(max_size=20), cuts=CUTS)
@settings(max_examples=200, deadline=None)
def test_length_body_cut_anywhere(content: bytes, behind: bytes, cuts: list[int]) -> None:
    reader = LengthBody(len(content))
    reader.keep = []
    out, rest = feed(reader, pieces(content + behind, cuts))
    assert reader.done
    assert (out, rest, b"".join(reader.keep)) == (content, behind, content)
    assert reader.payload_bytes == len(content)


@given(content=st.binary(max_size=100), cuts=CUTS)
def test_close_body_forwards_all_and_never_ends_by_itself(content: bytes, cuts: list[int]) -> None:
    reader = CloseBody()
    assert feed(reader, pieces(content, cuts)) == (content, b"")
    assert not reader.done


def test_a_chunk_that_is_whole_leaves_whole_whatever_held_it_up() -> None:
    reader = ChunkedBody()
    assert reader.feed(b"5") == b""
    assert reader.feed(b"\r") == b""
    assert reader.feed(b"\nhel") == b"5\r\nhel"
    assert reader.feed(b"lo") == b"lo"
    assert reader.feed(b"\r\n0\r\n\r\n") == b"\r\n0\r\n\r\n"
    assert reader.done


@pytest.mark.parametrize("line", [b"0x5", b"+5", b"5_0", b"", b" 5", b"5 ", b"G", b"1" * 16])
def test_what_python_or_c_would_read_as_a_number_is_no_chunk_size(line: bytes) -> None:
    with pytest.raises(FramingError):
        ChunkedBody().feed(line + b"\r\nx\r\n")
