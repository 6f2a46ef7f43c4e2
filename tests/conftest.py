"""Puts the repository's root on ``sys.path``, so that tests can import ``tests.support``.

Property tests are held to no time, neither for an example nor for drawing one: on a busy machine that is a
test of the machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

settings.register_profile("forkgate", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("forkgate")
