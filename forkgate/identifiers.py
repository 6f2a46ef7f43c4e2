"""UUIDv7 (RFC 9562, section 5.7), which Python 3.11 has none of."""

from __future__ import annotations

import os
import time
import uuid


def uuid7() -> str:
    """48 bits of Unix milliseconds, then random: sorts by age, guessed by nobody."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds & (1 << 48) - 1) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 0x7 << 76  # version
    value = value & ~(0x3 << 62) | 0x2 << 62  # variant
    return str(uuid.UUID(int=value))
