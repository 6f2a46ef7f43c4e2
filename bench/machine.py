"""The two cores, who runs on which, and what a process has spent on them.

The proxy under test has one core for itself; the load, the stub upstream and everything else of the bench
share another. CPU is read from the kernel's per-process clock (``clock_getcpuclockid(3)``): user plus system
time of all threads, dead ones included, in nanoseconds. ``/proc/PID/stat`` holds the same sum in 10 ms ticks,
too coarse for a window in which a proxy spends 300 ms.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

CPUCLOCK_SCHED = 2
"""From linux/posix-timers.h: the clock of a whole thread group, as the scheduler counts it."""


class BenchError(Exception):
    """The bench cannot measure what it was asked to. The message says what is missing and what to do."""


@dataclass(frozen=True, kw_only=True)
class Cores:
    """Which core the proxy is pinned to, and which the rest."""

    proxy: int
    load: int

    @classmethod
    def pick(cls) -> Cores:
        """Two of the cores we may use; the last one for the proxy, as core 0 takes most interrupts."""
        allowed = sorted(os.sched_getaffinity(0))
        if len(allowed) < 2:
            raise BenchError(
                f"needs two cores, may use {allowed}: with one, proxy and load only hinder each other"
            )
        return cls(proxy=allowed[-1], load=allowed[-2])


@contextlib.contextmanager
def pinned(core: int | Iterable[int]) -> Iterator[None]:
    """Children started inside inherit the pin, all their threads included; ours is restored afterwards."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core} if isinstance(core, int) else set(core))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def pin(pid: int, core: int) -> None:
    """Move a running process, every thread of it, to one core."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), {core})


def cpu_s(pids: Iterable[int]) -> float:
    """User plus system seconds that these processes have spent since they started."""
    return sum(time.clock_gettime_ns((~pid << 3) | CPUCLOCK_SCHED) for pid in pids) / 1e9


def private_kib(pids: Iterable[int]) -> float:
    """Memory that would be freed if these processes ended (Private_* of smaps_rollup), in KiB.

    Steadier than RSS, which also counts pages of shared libraries that happen to have been touched.
    """
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith(("Private_Clean:", "Private_Dirty:")):
                total += int(line.split()[1])
    return float(total)


def children(pid: int) -> list[int]:
    """Process ids of a process's direct children."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(word) for word in (task / "children").read_text().split()]
    return found


def description() -> dict[str, object]:
    """What the numbers were measured on, so that nobody compares them with another machine's."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "kernel": os.uname().release,
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }
