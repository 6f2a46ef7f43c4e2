"""What is looked at before anything is compared: does the baseline agree with itself, do the arms fit at all.

::

    prompts      what is asked: sixteen prompts over the categories of sample suites
    ask          one prompt on one endpoint, beside the mirror and its budgets
    self_check   the same machine several times: forks, their classes, the noise floor
    quick_check  both arms, ten prompts of twenty tokens: what is wrong at once
    progress     how far one is that runs
    report       what a check found, for a person, a program and a rollout
    runs         the same for the judge, which makes them as a rollout's first steps

``forkgate check self`` and ``forkgate check quick`` make them without a judge (``forkgate.cli.check``).
"""

from forkgate.checks.progress import CheckProgress
from forkgate.checks.prompts import PROMPTS, CheckPrompt
from forkgate.checks.quick_check import dominates, quick_check
from forkgate.checks.report import CheckReport, ForkFound, PromptFound
from forkgate.checks.runs import CheckRuns
from forkgate.checks.self_check import self_check

__all__ = [
    "PROMPTS",
    "CheckProgress",
    "CheckPrompt",
    "CheckReport",
    "CheckRuns",
    "ForkFound",
    "PromptFound",
    "dominates",
    "quick_check",
    "self_check",
]
