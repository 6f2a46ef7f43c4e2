"""What outlives a process, in ``state_dir``: where each file is, and how it is written so that it survives.

``lock`` keeps a second ``serve`` out, ``table_file`` keeps the last route table, ``latch`` keeps rollbacks.
"""

from forkgate.state.latch import Latch, LatchCorrupt, Latched, LatchFile
from forkgate.state.lock import Locked, StateLock
from forkgate.state.paths import StatePaths
from forkgate.state.table_file import read_table, write_table

__all__ = [
    "Latch",
    "LatchCorrupt",
    "LatchFile",
    "Latched",
    "Locked",
    "StateLock",
    "StatePaths",
    "read_table",
    "write_table",
]
