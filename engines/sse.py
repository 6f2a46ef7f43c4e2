"""Server-sent events, parsed as the bytes come (WHATWG HTML, section 9.2.6).

Only the ``data`` of an event matters to us; comments, ``event``, ``id`` and ``retry`` are skipped. A read may
end anywhere: inside a line end, a UTF-8 character, a field name. LF, CRLF and CR all end a line.
"""

from __future__ import annotations

DONE = b"[DONE]"
"""The payload with which OpenAI-style streams end."""
MAX_EVENT_BYTES = 16 << 20


class EventTooLong(ValueError):  # noqa: N818
    """One event is over :data:`MAX_EVENT_BYTES`; nothing sane sends that."""


class EventParser:
    """``feed(bytes)`` gives the data of every event completed by these bytes."""

    __slots__ = ("_data", "_held", "_skip_lf")

    def __init__(self) -> None:
        self._held = b""
        """Bytes after the last complete line (the general path) or event (the fast one)."""
        self._data: list[bytes] = []
        self._skip_lf = False

    def feed(self, received: bytes) -> list[bytes]:
        """Raises :class:`EventTooLong`."""
        held = self._held + received if self._held else received
        # What engines send: LF only, one `data: ` line an event. The rest takes the road by the book.
        if b"\r" not in held and not self._data and not self._skip_lf:
            return self._plain(held)
        return self._by_lines(held)

    def _plain(self, held: bytes) -> list[bytes]:
        *blocks, rest = held.split(b"\n\n")
        payloads = []
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block:
                payloads.append(block[6:])
            else:
                for line in block.split(b"\n"):
                    self._line(line)
                self._dispatch(payloads)
        self._hold(rest)
        return payloads

    def _by_lines(self, held: bytes) -> list[bytes]:
        payloads: list[bytes] = []
        if self._skip_lf and held:
            held = held.removeprefix(b"\n")
            self._skip_lf = False
        start, end = 0, len(held)
        while start < end:
            lf, cr = held.find(b"\n", start), held.find(b"\r", start)
            at = min(lf, cr) if lf >= 0 and cr >= 0 else max(lf, cr)
            if at < 0:
                break
            line, start = held[start:at], at + 1
            if at == cr:
                if start == end:
                    self._skip_lf = True  # its LF may come with the next read
                elif held[start] == 0x0A:
                    start += 1
            if line:
                self._line(line)
            else:
                self._dispatch(payloads)
        self._hold(held[start:])
        return payloads

    def _line(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))

    def _dispatch(self, payloads: list[bytes]) -> None:
        if self._data:
            payloads.append(b"\n".join(self._data))
            self._data = []

    def _hold(self, rest: bytes) -> None:
        if len(rest) + sum(map(len, self._data)) > MAX_EVENT_BYTES:
            raise EventTooLong(f"an event of more than {MAX_EVENT_BYTES} bytes has not ended")
        self._held = rest
