"""Comparator: what two arms of one captured request said, and where they first differ. Pure.

No socket, clock, environment variable or event loop in here; time arrives as an argument. The one leaf that
touches a disk is ``comparator.evidence``, which nothing else in this package imports.

==============  =====================================================================================
``records``     steps, sampling, timing, exchanges, live records
``pair``        two exchanges and what their comparison found
``comparison``  all pairs of one captured request: one observation
``align``       two token streams aligned as they arrive; the fork at its deciding token
``fork``        the arithmetic of one step: sorted top-k, margin, largest logprob error
``compare``     two finished exchanges → a pair: is it evidence, and what does it say
``outcomes``    how two exchanges ended
``taxonomy``    what kind of fork it is: tie, drift, another sampler, another distribution...
``precision``   how finely an arm can tell two logprobs apart, declared or seen
``distribution`` next-token distributions from top-k lists, and how far apart they are
``floor``       how much an environment differs from itself, by engine path and band
``sequential``  tests that one may look at after every observation, and act on at any
``misfit``      where decoded data does not fit its struct, for errors in words of one's own
``evidence``    the store, and its explanations
==============  =====================================================================================

A token's road: an adapter yields ``Step`` values, the mirror pushes them into a ``PairAligner`` arm by arm as
they come, a ``Fork`` comes back the moment it is decided, and when both arms have ended ``compare`` makes the
``Pair`` that gates fold and the store keeps. ``compare`` alone gives the same pair from stored exchanges, so
that every verdict can be computed again.
"""

from comparator.align import Alignment, PairAligner
from comparator.compare import COMPARED_DIGEST, DECLARED_DIGEST, align_exchanges, compare
from comparator.comparison import CONCURRENCY, Comparison, SampleRef, Score, Triple, band_of, path_of
from comparator.errors import AlignmentError, ComparatorError
from comparator.floor import Floor, Floors, FloorTally, Found, floor_of
from comparator.outcomes import OutcomeDifference, compare_outcomes, failed
from comparator.pair import Fork, ForkSeen, ForkSide, Pair, SetAside
from comparator.records import (
    Arm,
    CaptureId,
    Digest,
    EngineSample,
    Exchange,
    ExchangeId,
    Fact,
    LiveRecord,
    Outcome,
    Sampling,
    Step,
    Timing,
)
from comparator.taxonomy import Allowance, Attribution, ForkClass, classify, classify_fork

__all__ = [
    "COMPARED_DIGEST",
    "CONCURRENCY",
    "DECLARED_DIGEST",
    "Alignment",
    "AlignmentError",
    "Allowance",
    "Arm",
    "Attribution",
    "CaptureId",
    "ComparatorError",
    "Comparison",
    "Digest",
    "EngineSample",
    "Exchange",
    "ExchangeId",
    "Fact",
    "Floor",
    "FloorTally",
    "Floors",
    "Fork",
    "ForkClass",
    "ForkSeen",
    "ForkSide",
    "Found",
    "LiveRecord",
    "Outcome",
    "OutcomeDifference",
    "Pair",
    "PairAligner",
    "SampleRef",
    "Sampling",
    "Score",
    "SetAside",
    "Step",
    "Timing",
    "Triple",
    "align_exchanges",
    "band_of",
    "classify",
    "classify_fork",
    "compare",
    "compare_outcomes",
    "failed",
    "floor_of",
    "path_of",
]
