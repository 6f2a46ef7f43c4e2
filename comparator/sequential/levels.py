"""Error levels: from α to a bar in nats, and one α over many questions.

A test here is a nonnegative process E that starts at 1 and is expected not to grow while its null holds.
Ville's inequality (1939): P(E_n ≥ 1/α for any n) ≤ α. So one may look after every observation, stop, go on,
and look again. All of this package speaks of log E, in nats.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from comparator.sequential.elementary import exp, log
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


def anytime_p(highest_log_e: float) -> float:
    """min(1, 1/max E): a p-value that stays valid under any stopping rule.

    Args:
        highest_log_e: the largest log E seen so far; the present one gives a valid, larger p.
    """
    if math.isnan(highest_log_e):
        raise SequentialError("highest_log_e: NaN")
    return min(1.0, exp(-highest_log_e))


def split_alpha(alpha: float, shares: Mapping[str, float]) -> dict[str, float]:
    """One α over questions of which any may act (rollback): Bonferroni, which needs no independence.

    Not e-BH: a procedure that may take back a discovery must not be latched (Tavyrikov et al. 2025).
    Promotion, which needs every gate, is an intersection: each gate keeps the full α there.

    Args:
        shares: positive weights by question; only their ratios matter.

    Raises:
        SequentialError: α outside (0, 1), no question, or a weight that is not positive and finite.
    """
    check_alpha(alpha)
    if not shares:
        raise SequentialError("shares: empty; name at least one question to give alpha to")
    for name, share in shares.items():
        if not 0.0 < share < math.inf:
            raise SequentialError(f"shares[{name!r}]: {share} is not a positive finite weight")
    total = math.fsum(shares.values())
    return {name: alpha * share / total for name, share in shares.items()}
