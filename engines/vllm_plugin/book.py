"""The steps of marked requests, kept until whoever marked them asks, or for a minute. Bounded in all.

One entry a request: runs of (first output token, batch size, place), each true until the next one begins.
Standard library only, and no event loop: the clock is an argument.
"""

from __future__ import annotations

import array
import enum
from collections.abc import Callable
from typing import Any

from engines.vllm_plugin.channel import CLASH
from engines.vllm_plugin.marks import key_of

RECORD = "batch/1"
MOST_REQUESTS = 2048
"""Entries at a time, running and ended."""
MOST_RUNS = 4096
"""Of one request."""
MOST_RUNS_IN_ALL = 262_144
"""12 bytes each."""
EXPIRY_S = 60.0
"""How long the steps of a request that has ended wait to be asked for."""


class Trouble(enum.StrEnum):
    """Why a request's steps are not known."""

    CLASH = "two requests had this ID at a time"
    CROWD = "more requests were marked at a time than the engine watches"
    LOST = "the channel was overrun: more changed in the batch than its reader kept up with"
    LONG = f"its batch changed more than {MOST_RUNS} times, or too many requests' did"
    DEAF = "the engine core has no channel to this server"


class Missing(LookupError):  # noqa: N818
    """Nothing is kept under this ID."""


class _Entry:
    __slots__ = ("ended_s", "key", "request_id", "runs", "trouble")

    def __init__(self, key: bytes, request_id: str, trouble: Trouble | None) -> None:
        self.key = key
        self.request_id = request_id
        self.runs = array.array("I")
        self.ended_s: float | None = None
        self.trouble = trouble


class Book:
    """Not safe for several threads; one event loop owns it."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self._entries: dict[bytes, _Entry] = {}
        self._runs = 0
        self.open_requests = 0
        """Marked requests under way."""

    def __len__(self) -> int:
        return len(self._entries)

    def open(self, request_id: str, trouble: Trouble | None = None) -> bytes | None:
        """A marked request begins; ``trouble`` where its steps cannot come. Its key, to end it by; None where
        it is not followed: no sound ID, or no place for it."""
        key = key_of(request_id)
        if key is None:
            return None
        before = self._entries.get(key)
        if before is not None and before.ended_s is None:
            before.trouble = Trouble.CLASH
            return None  # the first one ends the entry
        if before is not None:
            self._drop(key)
        self.expire()
        if len(self._entries) >= MOST_REQUESTS and not self._make_room():
            return None
        self._entries[key] = _Entry(key, request_id, trouble)
        self.open_requests += 1
        return key

    def end(self, key: bytes) -> None:
        """It has ended, however. From now on its steps wait for :data:`EXPIRY_S`."""
        entry = self._entries.pop(key, None)
        if entry is not None and entry.ended_s is None:
            self.open_requests -= 1
            entry.ended_s = self._clock_s()
        if entry is not None:
            self._entries[key] = entry  # behind all that ended before

    def note(self, key: bytes, position: int, batch_size: int, place: int, flags: int = 0) -> None:
        """From output token ``position`` on, it stood there. Keys that nobody opened are passed over."""
        entry = self._entries.get(key)
        if entry is None or entry.trouble is not None:
            return
        if flags:
            self._spoil(entry, Trouble.CLASH if flags == CLASH else Trouble.CROWD)
            return
        runs = entry.runs
        # A token that is computed once more (the request was preempted, or moved before its first one).
        while runs and runs[-3] >= position:
            del runs[-3:]
            self._runs -= 1
        if runs and (runs[-2], runs[-1]) == (batch_size, place):
            return
        if len(runs) >= 3 * MOST_RUNS or self._runs >= MOST_RUNS_IN_ALL:
            self._spoil(entry, Trouble.LONG)
            return
        runs.extend((position, batch_size, place))
        self._runs += 1

    def lose(self) -> None:
        """Records were lost: what is under way has holes."""
        for entry in self._entries.values():
            if entry.ended_s is None and entry.trouble is None:
                self._spoil(entry, Trouble.LOST)

    def take(self, request_id: str) -> dict[str, Any]:
        """What is known of a request, once; it is forgotten with this.

        Raises:
            Missing: nothing is kept: no marked request had this ID, it was told before, or too long ago.
        """
        self.expire()
        key = key_of(request_id)
        entry = None if key is None else self._entries.get(key)
        if entry is None:
            raise Missing(
                "no marked request of this ID, or its steps were told before, or it ended over "
                f"{EXPIRY_S:.0f} s ago"
            )
        self._drop(entry.key)
        told: dict[str, Any] = {"record": RECORD, "request_id": entry.request_id}
        if entry.trouble is not None:
            return {**told, "unknown": entry.trouble.value}
        runs = entry.runs
        return {**told, "runs": [list(runs[at : at + 3]) for at in range(0, len(runs), 3)]}

    def expire(self) -> None:
        """Forget what nobody asked for in time."""
        oldest_s = self._clock_s() - EXPIRY_S
        late = []
        for key, entry in self._entries.items():
            if entry.ended_s is None:
                continue
            if entry.ended_s >= oldest_s:
                break  # those that ended stand in the order of their ends
            late.append(key)
        for key in late:
            self._drop(key)

    def _make_room(self) -> bool:
        for key, entry in self._entries.items():
            if entry.ended_s is not None:
                self._drop(key)
                return True
        return False

    def _spoil(self, entry: _Entry, trouble: Trouble) -> None:
        self._runs -= len(entry.runs) // 3
        entry.runs = array.array("I")
        entry.trouble = trouble

    def _drop(self, key: bytes) -> None:
        entry = self._entries.pop(key)
        self._runs -= len(entry.runs) // 3
        self.open_requests -= entry.ended_s is None
