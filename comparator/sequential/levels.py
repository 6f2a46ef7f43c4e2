"""Error levels: from α to a bar in nats.

A test here is a nonnegative process E that starts at 1 and is expected not to grow while its null holds.
Ville's inequality (1939): P(E_n ≥ 1/α for any n) ≤ α. So one may look after every observation, stop, go on,
and look again. All of this package speaks of log E, in nats.
"""

from __future__ import annotations

import math

from comparator.sequential.elementary import log
from comparator.sequential.errors import SequentialError


def check_alpha(alpha: float, name: str = "alpha") -> float:
    """α itself if 0 < α < 1.

    Raises:
        SequentialError: 0, 1, beyond, or NaN.
    """
    if not 0.0 < alpha < 1.0:
        raise SequentialError(f"{name}: {alpha} is outside (0, 1); 0.05 allows one false alarm in twenty")
    return alpha


def threshold_nats(alpha: float) -> float:
    """log(1/α): the bar for log E."""
    return -log(check_alpha(alpha))


def rejects(log_e: float, alpha: float) -> bool:
    """Whether an e-process at ``log_e`` rejects its null at level α (Ville).

    Raises:
        SequentialError: α outside (0, 1), or a ``log_e`` that is NaN.
    """
    if math.isnan(log_e):
        raise SequentialError("log_e: NaN; an e-process is never undefined, so its state is damaged")
    return log_e >= threshold_nats(alpha)
