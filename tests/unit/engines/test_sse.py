"""The event parser, cut everywhere."""

from __future__ import annotations

import pytest

from engines import sse
from engines.sse import EventParser, EventTooLong

TRANSCRIPTS = {
    "plain": (b'data: {"a":1}\n\ndata: {"b":2}\n\ndata: [DONE]\n\n', [b'{"a":1}', b'{"b":2}', b"[DONE]"]),
    "no space": (b"data:x\n\ndata:  y\n\n", [b"x", b" y"]),
    "comment": (b": keep-alive\n\ndata: x\n: inside\n\n:\n\n", [b"x"]),
    "lines": (b"data: one\ndata: two\ndata:\n\n", [b"one\ntwo\n"]),
    "fields": (b"event: error\nid: 7\nretry: 10\ndata: x\n\nevent: ping\n\n", [b"x"]),
    "no colon": (b"data\n\nother\n\ndata: y\n\n", [b"", b"y"]),
    "unfinished": (b"data: x\n\ndata: never ended\n", [b"x"]),
    "utf-8": ("data: é漢🙂\n\n".encode(), ["é漢🙂".encode()]),
    "data in a value": (b'data: {"t":"data: \\n\\ndata: x"}\n\n', [b'{"t":"data: \\n\\ndata: x"}']),
    "blank lines": (b"\n\n\ndata: x\n\n\n\n\ndata: y\n\n", [b"x", b"y"]),
}


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_events_are_the_same_wherever_reads_cut_them(name: str, line_end: bytes) -> None:
    stream, expected = TRANSCRIPTS[name]
    stream = stream.replace(b"\n", line_end)
    for first in range(len(stream) + 1):
        for second in range(first, len(stream) + 1):
            parser = EventParser()
            pieces = (stream[:first], stream[first:second], stream[second:])
            assert [one for piece in pieces for one in parser.feed(piece)] == expected, (first, second)


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_events_are_the_same_byte_by_byte(name: str, line_end: bytes) -> None:
    stream, expected = TRANSCRIPTS[name]
    parser = EventParser()
    bytewise = [
        stream.replace(b"\n", line_end)[at : at + 1] for at in range(len(stream.replace(b"\n", line_end)))
    ]
    assert [one for piece in bytewise for one in parser.feed(piece)] == expected


def test_mixed_line_ends_in_one_stream() -> None:
    parser = EventParser()
    assert parser.feed(b"data: a\r\n\ndata: b\n\r\ndata: c\r\rdata: d\n\n") == [b"a", b"b", b"c", b"d"]


def test_an_event_is_given_the_moment_its_blank_line_is_there() -> None:
    parser = EventParser()
    assert parser.feed(b"data: a\n") == []
    assert parser.feed(b"\n") == [b"a"]
    assert parser.feed(b"data: b\r\n\r") == [b"b"]
    assert parser.feed(b"\n") == []


@pytest.mark.parametrize("line_end", [b"", b"\n", b"\r\n"])
def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch, line_end: bytes) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1000)
    parser = EventParser()
    line = b"data: " + b"x" * 50 + line_end
    fed = 0
    while fed < 900:
        parser.feed(line)
        fed += len(line)
    with pytest.raises(EventTooLong, match="1000 bytes"):
        parser.feed(line * 5)
