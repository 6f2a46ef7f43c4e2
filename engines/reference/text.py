"""Token IDs to text as they come: whole characters only, and nothing of a stop string.

A token may end inside a UTF-8 character, and its text may depend on the tokens before it, so text is
read as the difference of two decodings of a short window. Text that might be the beginning of a stop
string is held back until it is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_UNFINISHED = "\ufffd"
_WINDOW_TOKENS = 6


class TextOut:
    """Text of one generation. ``stops`` are tried in order; the earliest match in the text wins."""

    __slots__ = ("_held", "_ids", "_read", "_start", "_stops", "_tokenizer", "_waiting")

    def __init__(self, tokenizer: Any, prompt: Sequence[int], stops: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        # The prompt's tail gives the first token its context (a leading space, a joined character).
        self._ids = list(prompt[-_WINDOW_TOKENS:])
        self._start = 0
        self._read = len(self._ids)
        self._stops = [stop for stop in stops if stop]
        self._held = ""
        self._waiting = max((len(stop) for stop in self._stops), default=1) - 1

    def push(self, token_id: int, *, may_stop: bool) -> tuple[str, str | None]:
        """Add a token.

        Returns:
            The text now certain, and the stop string met, whose text and all after it are never given out.
        """
        new = self._decoded(token_id)
        if not self._stops:
            return new, None
        self._held += new
        if may_stop:
            met = self._first_stop()
            if met is not None:
                position, stop = met
                out, self._held = self._held[:position], ""
                return out, stop
        keep = self._kept()
        out, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return out, None

    def finish(self) -> str:
        """What was held back, once nothing more can come."""
        out, self._held = self._held, ""
        tail = self._text(self._start, len(self._ids))[len(self._text(self._start, self._read)) :]
        self._start = self._read = len(self._ids)
        return out + tail

    def _decoded(self, token_id: int) -> str:
        self._ids.append(token_id)
        before = self._text(self._start, self._read)
        now = self._text(self._start, len(self._ids))
        if now.endswith(_UNFINISHED) or len(now) <= len(before):
            return ""
        self._start, self._read = self._read, len(self._ids)
        return now[len(before) :]

    def _text(self, start: int, end: int) -> str:
        text: str = self._tokenizer.decode(self._ids[start:end], skip_special_tokens=True)
        return text

    def _first_stop(self) -> tuple[int, str] | None:
        met = [
            (at, order, stop) for order, stop in enumerate(self._stops) if (at := self._held.find(stop)) >= 0
        ]
        return (min(met)[0], min(met)[2]) if met else None

    def _kept(self) -> int:
        """Length of the longest tail that begins some stop string."""
        for length in range(min(self._waiting, len(self._held)), 0, -1):
            tail = self._held[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
