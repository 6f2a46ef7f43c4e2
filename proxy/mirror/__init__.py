"""The mirror: every captured request once more, on baseline and candidate side by side.

::

    Mirror.submit ─▶ Lane (one a rollout) ── queue, room (budget, lulls), places (endpoints)
                       └─▶ ComparisonRun (one a capture)
                             ├─ decode    body → call of a known API
                             ├─ encode    call → token IDs and explicit parameters, through both arms
                             └─ ReplicateRun (one a seed)
                                  ├─ run_arm   prompt → exchange, streamed; baseline and candidate side
                                  │            by side, a control beside them or after the baseline
                                  ├─ comparator.align, as the tokens arrive
                                  └─ pairing   exchanges → pairs, or the reason why there is none
                       └─▶ MirrorSink.comparison_finished | dropped, and the ledger

    Mirror.run_sample ─▶ the same from ComparisonRun on, for a suite's question; its comparison goes
                         back to whoever asked

What a capture is drawn for is a hash of its request ID, decided before any arm runs (``question``): a
control on the baseline, token-only arms that may be cut after a fork, timing without logprobs. All arms of a
replicate share a seed, each has a cache salt of its own, and each exchange says how many requests ran beside
it (``load``), because equal environments fork too, and more so in other batches.

``arm`` is usable alone: :func:`run_arm` with :func:`plan_again` runs a stored exchange once more.
"""

from proxy.mirror.arm import ArmControl, ArmLimits, Sources, run_arm
from proxy.mirror.asks import NO_TENANT, SampleAsk
from proxy.mirror.budget import Spent
from proxy.mirror.errors import Dropped
from proxy.mirror.mirror import Mirror
from proxy.mirror.pools import ShadowEndpoint, ShadowPool, ShadowRollout
from proxy.mirror.ports import MirrorSink, Tracer
from proxy.mirror.record import ArmPlan, plan_again
from proxy.mirror.seeds import derive_seed
from proxy.mirror.settings import MirrorSettings
from proxy.mirror.status import LaneState, LaneStatus

__all__ = [
    "NO_TENANT",
    "ArmControl",
    "ArmLimits",
    "ArmPlan",
    "Dropped",
    "LaneState",
    "LaneStatus",
    "Mirror",
    "MirrorSettings",
    "MirrorSink",
    "SampleAsk",
    "ShadowEndpoint",
    "ShadowPool",
    "ShadowRollout",
    "Sources",
    "Spent",
    "Tracer",
    "derive_seed",
    "plan_again",
    "run_arm",
]
