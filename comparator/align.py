"""Two token streams, aligned by position while they arrive.

Theory of operation. Position i is compared once both arms have said something about it. Steps of the arm
that is ahead wait in a queue, no longer than that arm's own output. The state is

    compared ─┬─ tokens equal ──▶ compared (i + 1)
              ├─ tokens differ ─▶ forked           reported once, by the call that brought the deciding token
              ├─ one arm ended, the other went on ─▶ forked (proper prefix)
              └─ a step is no legal answer ─▶ invalid   nothing is reported, the pair will be set aside

``forked`` and ``invalid`` are final: tokens after the first fork are never compared by position, because the
arms no longer share a prefix. The largest logprob error runs over all compared positions *including* the fork
step, whose prefix both arms still share. All of it depends on positions alone, never on the order in which
the two arms' pieces came.

This is the judge's hot path (every token of every pair): when both top-k lists are well formed and in the
same order, one step costs a few microseconds and allocates next to nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from comparator.errors import AlignmentError
from comparator.fork import fork_side, make_fork, quick_error_nats, step_error_nats, step_fault
from comparator.pair import Fork
from comparator.records import Arm, Step


class Alignment(msgspec.Struct, frozen=True, kw_only=True):
    """What two streams came to."""

    fork: Fork | None
    max_error_nats: float | None
    """Over positions up to and including the fork step; None when no position had logprobs on both arms."""
    max_error_index: int | None
    compared_tokens: int
    """Positions where both arms had a token, the fork step included."""
    fault: str | None
    """Why the pair is invalid: which arm, which step, what was wrong."""


class PairAligner:
    """Aligns two arms of one capture. Not thread-safe; one instance a pair."""

    __slots__ = (
        "_ahead",
        "_ahead_is_left",
        "_compared",
        "_ended",
        "_error",
        "_error_index",
        "_fault",
        "_fork",
        "_left",
        "_right",
    )

    def __init__(self, left: Arm = Arm.BASELINE, right: Arm = Arm.CANDIDATE) -> None:
        if left == right:
            raise AlignmentError(f"both sides are {left}; a pair needs two arms")
        self._left = left
        self._right = right
        self._ahead: deque[Step] = deque()
        self._ahead_is_left = True
        self._compared = 0
        # arm → did the engine itself end the stream (True) or was it broken off (False)
        self._ended: dict[Arm, bool] = {}
        self._error: float | None = None
        self._error_index: int | None = None
        self._fork: Fork | None = None
        self._fault: str | None = None

    @property
    def fork(self) -> Fork | None:
        """The fork, once it is decided."""
        return self._fork

    def push(self, arm: Arm, steps: Iterable[Step]) -> Fork | None:
        """More tokens of ``arm``. Returns the fork exactly once: from the call that decided it.

        Raises:
            AlignmentError: ``arm`` is not of this pair, or it has already ended.
        """
        is_left = self._side(arm)
        if arm in self._ended:
            raise AlignmentError(f"{arm}: tokens after the end of its stream")
        if self._fork is not None or self._fault is not None:
            return None
        ahead = self._ahead
        for step in steps:
            if not ahead or self._ahead_is_left == is_left:
                ended = self._ended.get(self._right if is_left else self._left)
                if ended is not None:
                    return self._prefix(is_left, step) if ended else None
                self._ahead_is_left = is_left
                ahead.append(step)
                continue
            other = ahead.popleft()
            if self._compare(step, other) if is_left else self._compare(other, step):
                return self._fork
        return None

    def finish(self, arm: Arm, completed: bool = True) -> Fork | None:
        """``arm`` says no more.

        Args:
            arm: which one.
            completed: True when the engine itself ended the stream. An arm that was cut, aborted, or broke
                off has no end to compare: where the other goes on, that is no fork.

        Returns:
            The fork, when this end decided it: the other arm had already gone on.

        Raises:
            AlignmentError: ``arm`` is not of this pair, or it has already ended.
        """
        is_left = self._side(arm)
        if arm in self._ended:
            raise AlignmentError(f"{arm}: ended twice")
        self._ended[arm] = completed
        if self._fork is not None or self._fault is not None:
            return None
        if completed and self._ahead and self._ahead_is_left != is_left:
            return self._prefix(not is_left, self._ahead[0])
        return None

    def alignment(self) -> Alignment:
        """What is known so far; the final word once there is a fork or a fault, or both arms have ended."""
        return Alignment(
            fork=self._fork,
            max_error_nats=self._error,
            max_error_index=self._error_index,
            compared_tokens=self._compared,
            fault=self._fault,
        )

    def _side(self, arm: Arm) -> bool:
        if arm == self._left:
            return True
        if arm == self._right:
            return False
        raise AlignmentError(f"{arm} is not of this pair ({self._left} and {self._right})")

    def _compare(self, left: Step, right: Step) -> bool:
        """Compare the next position. True when the streams are decided by it."""
        error = quick_error_nats(left, right)
        if error is None:
            for arm, step in ((self._left, left), (self._right, right)):
                fault = step_fault(step)
                if fault is not None:
                    self._fault = f"{arm} step {self._compared}: {fault}"
                    self._ahead.clear()
                    return True
            error = step_error_nats(left, right)
        index = self._compared
        self._compared = index + 1
        if error is not None and (self._error is None or error > self._error):
            self._error = error
            self._error_index = index
        if left.token_id == right.token_id:
            return False
        self._fork = make_fork(
            index, fork_side(self._left, left), fork_side(self._right, right), self._error, self._error_index
        )
        self._ahead.clear()
        return True

    def _prefix(self, longer_is_left: bool, step: Step) -> Fork | None:
        """The other arm ended where ``step`` goes on."""
        longer = self._left if longer_is_left else self._right
        self._ahead.clear()
        fault = step_fault(step)
        if fault is not None:
            self._fault = f"{longer} step {self._compared}: {fault}"
            return None
        self._fork = make_fork(
            self._compared,
            fork_side(self._left, step if longer_is_left else None),
            fork_side(self._right, None if longer_is_left else step),
            self._error,
            self._error_index,
        )
        return self._fork
