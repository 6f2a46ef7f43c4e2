"""Tests that one may look at after every observation, and act on at any.

================  ==================================================================================
``levels``        what α may be, and α to a bar in nats
``counts``        what a test remembers: how often each value came
``mixture``       several bets at once
``mean``          is a bounded mean within a margin: promotion, rollback, two-sided
``bernoulli``     is an event more likely than tolerated: exceedance, shortfall
``sign``          which arm's outcome is the larger, by order alone
``hazard``        does the candidate fork earlier than the control
``ratio``         do samples arrive in the configured shares
``interval``      a confidence sequence for a mean, to be read beside a verdict
``quantile``      the same for a quantile
``coupling``      an upper bound on total variation from same-seed mismatches
``parting``       the same for the next token, from how soon same-seed answers part
``answers``       sampled answers as hashed counts
``mmd``           do two arms draw their answers from one distribution
``positions``     which output position's tokens have moved
``detector``      has something broken lately: the observation window
``elementary``    log and exp with the same bits on every machine
================  ==================================================================================

A test is a frozen value (its limits come from a policy file); its state is another frozen value, small and
serialisable, that a gate grows by ``add`` and hands back. ``test.log_e(state)`` is the whole verdict: a pure
function of integer counts, computed anew each time, bit for bit the same on every machine; compare it with
``threshold_nats(alpha)``. States of counts (``Counts``, ``Tally``, ``RatioState``) merge exactly, in any
order; the states of ``detector``, ``parting``, ``mmd`` and ``positions`` depend on order and do not merge.

What no test here can see: whether two observations are one cluster twice, whether arms are exchangeable given
the past, and whether a threshold was frozen before the first look. Those are the gates' to keep.
"""

from comparator.sequential.answers import END
from comparator.sequential.bernoulli import (
    BernoulliTest,
    Tally,
    TwoSidedBernoulliTest,
    exceedance,
    shortfall,
)
from comparator.sequential.counts import Counts, on_grid
from comparator.sequential.coupling import mismatch_bound, race_bound
from comparator.sequential.detector import Detector, DetectorState
from comparator.sequential.errors import SequentialError
from comparator.sequential.hazard import fork_hazard
from comparator.sequential.interval import Interval, mean_interval
from comparator.sequential.levels import check_alpha, rejects, threshold_nats
from comparator.sequential.mean import MeanTest, Side, TwoSidedTest, promotion, rollback, two_sided
from comparator.sequential.mixture import Mixture
from comparator.sequential.mmd import MmdState, MmdTest
from comparator.sequential.parting import PartingState, PartingTest, run_together
from comparator.sequential.positions import PositionsState, PositionsTest
from comparator.sequential.quantile import quantile_interval
from comparator.sequential.ratio import RatioState, SampleRatioTest
from comparator.sequential.sign import candidate_larger, either_larger, sign_of

__all__ = [
    "END",
    "BernoulliTest",
    "Counts",
    "Detector",
    "DetectorState",
    "Interval",
    "MeanTest",
    "Mixture",
    "MmdState",
    "MmdTest",
    "PartingState",
    "PartingTest",
    "PositionsState",
    "PositionsTest",
    "RatioState",
    "SampleRatioTest",
    "SequentialError",
    "Side",
    "Tally",
    "TwoSidedBernoulliTest",
    "TwoSidedTest",
    "candidate_larger",
    "check_alpha",
    "either_larger",
    "exceedance",
    "fork_hazard",
    "mean_interval",
    "mismatch_bound",
    "on_grid",
    "promotion",
    "quantile_interval",
    "race_bound",
    "rejects",
    "rollback",
    "run_together",
    "shortfall",
    "sign_of",
    "threshold_nats",
    "two_sided",
]
