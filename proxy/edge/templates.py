"""Heads that come again, but for a few values.

Who keeps a connection alive sends nearly the same head each time: a length, a trace context, a date differ,
and every other line is the last one again. A connection remembers its last head as a ``Template``: fixed
bytes, with holes for the values that may differ. A head that fits costs a few comparisons of bytes; it is not
read line by line.

Why this is safe. A head fits only if its fixed bytes are those of a head that was read in full, and if what
is in the holes is printable text with its line's end right behind, which the grammar allows in any value. So
it has the same lines, all of them field lines, and none differs but in the value of a line with a hole. The
readers make holes only where a value cannot change what other lines mean, and where they can give the new
value its own meaning. What does not fit is read in full, and refused there if it must be.

Which of the possible holes are made is learned: the Content-Length, and what differed before. A wrong guess
costs time and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

_HEAD_BYTES: Final = 8_192
"""A longer head is not remembered; a template takes up to twice its head's bytes."""
_HOLES: Final = 16
# Making a template costs as much as reading a head. After 4 heads in a row that did not fit the one before
# them, a connection gives up; and tries again with 4 of every 64, for its clients may have changed.
_TRIES: Final = 4
_ROUND: Final = 64


class Template:
    """A head with holes, and with the same holes what is sent in its place."""

    __slots__ = ("_first", "_rest", "_slots", "_text", "holes")

    def __init__(self, start: bytes, lines: list[bytes], holes: list[int], out: list[bytes]) -> None:
        """``holes`` are numbers of ``lines``, rising. ``out`` are the lines sent instead; one that is passed
        on as it came is the same object in both."""
        self.holes = holes
        self._first, *self._rest = _around([start, *lines], [number + 1 for number in holes], b"\r\n\r\n")
        hole_of = {id(lines[number]): hole for hole, number in enumerate(holes)}
        kept = [number for number, line in enumerate(out) if id(line) in hole_of]
        self._slots = [(2 * at + 1, hole_of[id(out[number])]) for at, number in enumerate(kept)]
        """Where in the text what is in which hole goes."""
        self._text = [b""] * (2 * len(kept) + 1)
        self._text[::2] = _around(out, kept, b"\r\n")

    def fit(self, head: bytes) -> tuple[list[bytes], bytes] | None:
        """What is in the holes of ``head``, which ends with its first empty line, and what is sent in its
        place; None when it does not fit."""
        if not head.startswith(self._first):
            return None
        values = []
        at = len(self._first)
        for fixed in self._rest:
            end = head.find(b"\r", at)
            if not head.startswith(fixed, end):
                return None
            values.append(head[at:end])
            at = end + len(fixed)
        if not b"".join(values).decode("latin-1").isprintable():
            return None
        text = self._text
        for place, hole in self._slots:
            text[place] = values[hole]
        return values, b"".join(text)


class Head:
    """A head that was accepted. Good for one message, and then for the next one that fits its template."""

    __slots__ = ("block", "head", "novel", "template")

    head: bytes
    """As it came, with its empty line."""
    block: bytes
    """What is sent in its place: CRLF-ended lines, except for those that the two readers tell of."""
    template: Template | None
    novel: int
    """How many heads of the connection in a row, up to this one, did not fit."""

    def __init__(self, head: bytes, last: Head | None) -> None:
        """``last`` is the connection's head before this one."""
        self.head = head
        self.template = None
        self.novel = 0 if last is None else last.novel + 1

    @property
    def lines(self) -> list[bytes]:
        """The field lines as they came."""
        return self.head[:-4].split(b"\r\n")[1:]

    def remember(
        self,
        lines: list[bytes],
        out: list[bytes],
        last: Head | None,
        length_at: int | None,
        may_differ: Callable[[bytes], bool],
    ) -> None:
        """Make a template, if one is likely to be of use. ``length_at`` is the number of the Content-Length
        line; ``may_differ`` tells of a line whether it may have a hole."""
        if self.novel % _ROUND >= _TRIES or len(self.head) > _HEAD_BYTES:
            return
        likely: set[int] = set()
        if last is not None:
            likely.update(_differing(lines, last.lines))
            if last.template is not None:
                likely.update(number for number in last.template.holes if number < len(lines))
        holes = [number for number in sorted(likely) if may_differ(lines[number])][:_HOLES]
        if length_at is not None and length_at not in holes:
            holes = sorted((*holes[: _HOLES - 1], length_at))
        self.template = Template(self.head[: self.head.index(b"\r\n")], lines, holes, out)


def _around(lines: list[bytes], holes: list[int], end: bytes) -> list[bytes]:
    """The text of ``lines`` and ``end``, cut at the holes: one piece more than there are holes."""
    pieces = []
    piece: list[bytes] = []
    at = 0
    for number in holes:
        pieces.append(b"\r\n".join((*piece, *lines[at:number], _before_value(lines[number]))))
        piece, at = [b""], number + 1
    pieces.append(b"\r\n".join((*piece, *lines[at:])) + end)
    return pieces


def _before_value(line: bytes) -> bytes:
    """The name, the colon, and the one space that nearly everybody writes."""
    at = line.index(b":") + 1
    return line[: at + 1] if line[at : at + 1] == b" " else line[:at]


def _differing(lines: list[bytes], before: list[bytes]) -> Iterable[int]:
    """The numbers of lines that had the same name and another value before."""
    for number, (line, old) in enumerate(zip(lines, before, strict=False)):
        if line != old and old.startswith(line[: line.index(b":") + 1]):
            yield number
