"""How much memory the engine holds, as a number for its metrics."""

from __future__ import annotations

import os

import torch


def held_bytes(device: str) -> int | None:
    """Bytes that PyTorch's allocator has taken of ``device``; on a CPU, those of the whole process.

    On an accelerator this counts what the allocator keeps for reuse as well: no other process can have it.
    On a CPU it is the resident set of Linux's ``/proc/self/statm``; None where there is none.
    """
    if device.startswith("cuda"):
        return int(torch.cuda.memory_reserved(device))
    try:
        with open("/proc/self/statm", encoding="ascii") as told:
            return int(told.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None
