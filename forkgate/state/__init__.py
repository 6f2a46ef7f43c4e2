"""What outlives a process, in ``state_dir``: where each file is, and how it is written so that it survives.

``lock`` keeps a second ``serve`` out, ``table_file`` keeps the last route table, ``latch`` keeps rollbacks.
"""

from forkgate.state.latch import Latch, LatchCorrupt, Latched, LatchFile
from forkgate.state.lock import Locked, StateLock
from forkgate.state.paths import StatePaths
from forkgate.state.table_file import read_table, write_table
from forkgate.state.unreadable import all_latched

__all__ = [
    "Latch",
    "LatchCorrupt",
    "LatchFile",
    "Latched",
    "Locked",
    "StateLock",
    "StatePaths",
    "all_latched",
    "read_table",
    "write_table",
]
