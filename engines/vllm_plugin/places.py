"""Who is marked in an engine's running batch, and where each stands: told when it changes, and only then.

Both of vLLM's model runners are followed. The older one (``BatchRows``) tells each change of its batch, in
an order that its interface fixes: removed, added, moved (``vllm/v1/sample/logits_processor/interface.py``).
The newer one (``BatchSlots``) tells who gets which slot, and at each step which slots stand in which order
(``vllm/v1/worker/gpu/sample/logits_processor/interface.py``).

A *position* is the index of the output token that the coming forward pass gives; passes that only read a
piece of the prompt have position 0, as the one that gives the first token. So of several tellings for one
position the last holds. While nobody joins, leaves or moves, nothing is told: what was told still holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from engines.vllm_plugin.channel import CLASH, CROWD
from engines.vllm_plugin.marks import mark_of

MOST_MARKED = 256
"""Marked requests that one engine watches at a time: what bounds the work of a step."""


class Tell(Protocol):
    """Where the tellings go: :meth:`engines.vllm_plugin.channel.Writer.write`."""

    def __call__(self, key: bytes, position: int, batch_size: int, place: int, flags: int = 0) -> None: ...


class _Marked:
    __slots__ = ("key", "output", "told")

    def __init__(self, key: bytes, output: Sequence[int]) -> None:
        self.key = key
        self.output = output
        self.told = (0, 0)


class _Keys:
    """Which keys are watched now, and the refusal of one too many."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._running: dict[bytes, int] = {}

    def admit(self, key: bytes) -> bool:
        """Whether to watch a request that joins; if not, its key's reader is told why."""
        if key in self._running:
            self._running[key] += 1
            self._tell(key, 0, 0, 0, CLASH)
        elif len(self._running) >= MOST_MARKED:
            self._tell(key, 0, 0, 0, CROWD)
            return False
        else:
            self._running[key] = 1
        return True

    def leave(self, key: bytes) -> None:
        left = self._running[key] - 1
        if left:
            self._running[key] = left
        else:
            del self._running[key]


class BatchRows:
    """The older runner's batch: rows by their index, followed by each ``BatchUpdate``."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._keys = _Keys(tell)
        self._rows: dict[int, _Marked] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def update(self, update: Any) -> None:
        """Follow one change. ``update`` has batch_size, removed, added and moved, as vLLM's BatchUpdate."""
        rows = self._rows
        if rows:
            for index in update.removed:
                self._forget(index)
        for index, params, _prompt, output in update.added:
            if rows:
                self._forget(index)  # whoever stood there was replaced
            key = mark_of(params.extra_args)
            if key is not None and self._keys.admit(key):
                rows[index] = _Marked(key, output)
        if rows:
            self._move(update.moved)
            self._tell_changes(update.batch_size)

    def _move(self, moved: Iterable[tuple[int, int, Any]]) -> None:
        rows = self._rows
        for source, target, how in moved:
            mover, other = rows.pop(source, None), rows.pop(target, None)
            if mover is not None:
                rows[target] = mover
            if other is not None:
                if how.name == "SWAP":
                    rows[source] = other
                else:
                    self._keys.leave(other.key)

    def _tell_changes(self, size: int) -> None:
        for index, row in self._rows.items():
            if row.told != (size, index):
                row.told = (size, index)
                self._tell(row.key, len(row.output), size, index)

    def _forget(self, index: int) -> None:
        row = self._rows.pop(index, None)
        if row is not None:
            self._keys.leave(row.key)


class BatchSlots:
    """The newer runner's batch: requests keep their slot, and stand in another order at each step.

    A slot is not given back to us, only given anew: who held it is forgotten then, and seen in no order
    meanwhile. So two requests of one mark cannot be told from one after the other: the later one is told.
    """

    def __init__(self, tell: Tell, prompt_tokens: Sequence[int]) -> None:
        """``prompt_tokens``: of each slot, as vLLM keeps it up to date."""
        self._tell = tell
        self._prompt_tokens = prompt_tokens
        self._slots: dict[int, _Marked] = {}

    def __len__(self) -> int:
        return len(self._slots)

    def add(self, slot: int, extra_args: Mapping[str, Any] | None) -> bool:
        """A request gets this slot. Whether it is watched."""
        self._slots.pop(slot, None)
        key = mark_of(extra_args)
        if key is None:
            return False
        for held in [held for held, row in self._slots.items() if row.key == key]:
            del self._slots[held]
        self._slots[slot] = _Marked(key, ())
        return True

    def step(self, order: Sequence[int], visible_tokens: Sequence[int]) -> None:
        """The coming pass: slots in batch order, and how many tokens of each are known to it."""
        size = len(order)
        for place, slot in enumerate(order):
            row = self._slots.get(slot)
            if row is not None and row.told != (size, place):
                row.told = (size, place)
                position = max(0, int(visible_tokens[place]) - int(self._prompt_tokens[slot]))
                self._tell(row.key, position, size, place)
