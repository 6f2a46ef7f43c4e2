"""One module a question. Each offers ``KEYS``, the figures it answers, and ``run``, which measures them."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable

import msgspec

from bench.machine import Cores
from bench.report import Figure


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """What every case is given."""

    cores: Cores
    quick: bool
    """Short windows and few blocks: shows that everything works, says nothing about speed."""
    wanted: frozenset[str]
    started_s: float

    def say(self, text: str) -> None:
        """Progress, for people."""
        sys.stderr.write(f"[{time.monotonic() - self.started_s:6.1f} s] {text}\n")
        sys.stderr.flush()


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A question, and who answers it."""

    name: str
    keys: tuple[str, ...]
    run: Callable[[Run], Awaitable[list[Figure]]]


def all_cases() -> list[Case]:
    """In the order in which they run: the short and noisy-neighbour-proof ones first."""
    from bench.cases import chunks, cpu, endless, flips, judge, latency, memory, stalled

    modules = (cpu, chunks, latency, memory, flips, judge, endless, stalled)
    return [
        Case(name=module.__name__.rsplit(".", 1)[1], keys=module.KEYS, run=module.run) for module in modules
    ]
