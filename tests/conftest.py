"""Puts the repository's root on ``sys.path``, so that tests can import ``tests.support``.

Property tests are held to no time an example: on a busy machine that is a test of the machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

settings.register_profile("forkgate", deadline=None)
settings.load_profile("forkgate")
