"""Exit statuses, the same for every command."""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    PASS = 0
    FAIL = 1
    USAGE = 2  # what was typed, or a file that was named, is wrong
    INCONCLUSIVE = 3
    UNMEASURED = 4  # could not measure: nobody answered, an engine failed
