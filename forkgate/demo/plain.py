"""Progress where no terminal is: a line when a stage begins, and one when it has ended under another name."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import TaskID


class PlainStages:
    """The part of :class:`rich.progress.Progress` that the demo uses, as lines that a log can hold."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started_s = time.monotonic()
        self._said: list[str] = []
        """What was said last of each stage."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def add_task(self, description: str, total: float | None = 100.0) -> TaskID:
        self._said.append(description)
        self._print(description)
        return TaskID(len(self._said) - 1)

    def advance(self, task_id: TaskID, advance: float = 1.0) -> None:
        """Within a stage: no line."""
        return

    def update(
        self,
        task_id: TaskID,
        *,
        description: str | None = None,
        completed: float | None = None,
        total: float | None = None,
    ) -> None:
        """A line once the stage is told to be complete; what happens within it is not worth one."""
        ended = total is not None or (completed is not None and completed >= 1.0)
        if ended and description is not None and description != self._said[task_id]:
            self._said[task_id] = description
            self._print(description)

    def _print(self, description: str) -> None:
        since_s = time.monotonic() - self._started_s
        self._console.print(f"demo: {since_s:4.0f} s  {description}", markup=False, soft_wrap=True)
