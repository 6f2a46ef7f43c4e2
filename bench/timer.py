"""A timer with microseconds in it. libuv's own (and so uvloop's ``call_later``) counts whole milliseconds.

``timerfd`` by way of libc: the standard library has it from Python 3.13 on.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Callable

_libc = ctypes.CDLL(None, use_errno=True)
_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK = os.O_NONBLOCK
_TFD_CLOEXEC = os.O_CLOEXEC
_TFD_TIMER_ABSTIME = 1


class _Timespec(ctypes.Structure):
    _fields_ = [("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long)]


class _Itimerspec(ctypes.Structure):
    _fields_ = [("it_interval", _Timespec), ("it_value", _Timespec)]


class Timer:
    """Calls back once, on the running loop, at an absolute ``time.monotonic()`` instant."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._fd = _libc.timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop.add_reader(self._fd, self._fire)

    def at(self, monotonic_s: float) -> None:
        """Arm, replacing what was armed; an instant in the past fires at once."""
        nanoseconds = max(int(monotonic_s * 1e9), 1)
        spec = _Itimerspec(
            _Timespec(0, 0), _Timespec(nanoseconds // 1_000_000_000, nanoseconds % 1_000_000_000)
        )
        if _libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None) != 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def close(self) -> None:
        """Disarm and free the descriptor."""
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _fire(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # armed again since the descriptor became readable
            return
        self._callback()
