"""Suites: frozen samples, asked of all arms through the mirror at the start of each stage, and scored.

::

    run           one suite: every sample, every pass; pauses for live work, tells what it could not ask
    runs          all suites of a judge
    scores        a comparison with a score for every arm and question
    scorer        scores answers in a process of its own, with time limits
    child         that process, as its owner sees it
    scorer_child  that process, as it sees itself

What a suite's file holds is read by ``forkgate.config.suites``; what its scores mean is for the gates.
"""

from forkgate.suites.run import SampleMirror, SuiteProgress, SuiteReport, SuiteRun, call_of
from forkgate.suites.runs import SuiteRuns
from forkgate.suites.scorer import Scorer, ScorerLimits
from forkgate.suites.scores import AnswerScorer, with_scores

__all__ = [
    "AnswerScorer",
    "SampleMirror",
    "Scorer",
    "ScorerLimits",
    "SuiteProgress",
    "SuiteReport",
    "SuiteRun",
    "SuiteRuns",
    "call_of",
    "with_scores",
]
