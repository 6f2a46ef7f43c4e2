"""What gates about a frozen suite can decide: it is all observed, so only run-to-run noise is left."""

from __future__ import annotations

import math

from policies.gates import Accuracy, Length, Refusal, RuleCases, StructuredOutput
from policies.gates.base import Alpha
from policies.gates.passes import LEAST_PASSES
from policies.gates.repeated import Difference
from policies.lint.expected import Expected, SuiteSize
from policies.lint.reach import Reach, count, made

SuiteGate = Accuracy | StructuredOutput


def rule_cases(gate: RuleCases, expected: Expected, alpha: Alpha) -> Reach:
    """One failing case is enough; what passes bounds the rest."""
    says = [
        "fails at the first case that the candidate breaks and the baseline keeps twice",
    ]
    size, cases = _size(gate.suite, expected, "rules")
    if size is None:
        says.append(f"how many cases suite {gate.suite!r} has is not known here")
    elif not cases:
        return made(gate, None, says, refused=f"suite {gate.suite!r} has no sample with rules: never decides")
    else:
        n = cases * size.passes
        bound = (
            f"the share of answers that break one is then under {3 / n:.2%} (95 %, if passes are independent)"
            if n > 3
            else "too few to bound the share of answers that break one"
        )
        says.append(
            f"a pass is {cases} cases kept in {size.passes} passes each: {bound}, and nothing is said of "
            "prompts outside the suite"
        )
        says.append(
            "no alpha bounds it: were each rule broken in 1 of 10,000 runs on either environment, it would "
            f"send home {1.0 - math.pow(1.0 - 1e-4, n):.1%} of equal candidates a stage"
        )
    return made(gate, None, says)


def share_of_suite(gate: SuiteGate, question: str, margin: float, expected: Expected, alpha: Alpha) -> Reach:
    """Accuracy or structured output over a suite."""
    size, asked = _size(gate.suite, expected, question)
    says = ["says nothing of prompts outside the suite; put your own evaluation set in its place"]
    if size is None:
        says.insert(0, f"how many samples of suite {gate.suite!r} ask this is not known here")
        return made(gate, alpha.rollback, says)
    if not asked:
        return made(
            gate,
            alpha.rollback,
            says,
            refused=f"suite {gate.suite!r} has no sample that asks this question: never decides",
        )
    if (too_few := _too_few_passes(gate.suite, size)) is not None:
        return made(gate, alpha.rollback, says, refused=too_few)
    n = asked * size.passes
    best = _width(0.0, n, alpha.promotion)
    if best >= margin:
        fewest = math.ceil(n * best / margin)
        return made(
            gate,
            alpha.rollback,
            says,
            refused=(
                f"margin {margin:g} can never be decided: {asked} samples x {size.passes} passes leave a "
                "bound "
                f"of {best:.4f} even if no answer ever differs; {math.ceil(fewest / size.passes)} samples, "
                f"{math.ceil(fewest / asked)} passes or a margin of {_up(best):g} would do"
            ),
        )
    half = _width(expected.discordance, n, alpha.promotion)
    found = _width(expected.discordance, n, alpha.rollback)
    says.insert(
        0,
        f"{asked} samples x {size.passes} passes, judged once a stage: equal arms pass while under "
        f"{_most_noise(margin, n, alpha.promotion):.1%} of scores change from run to run; at the expected "
        f"{expected.discordance:.1%} the bound is {half:.4f} against the margin {margin:g}",
    )
    drop = 2 * found
    says.insert(
        1,
        f"fails nearly always from a drop of about {drop:.4f} beyond the margin on"
        if margin + drop <= 1.0
        else "may miss any drop, even to 0: with so few answers and this noise no drop is sure to fail",
    )
    return made(gate, alpha.rollback, says)


def steady(gate: Length | Refusal, expected: Expected, alpha: Alpha) -> Reach:
    """Length or refusal: the interval holds, the core rolls back."""
    size, asked = _size(gate.suite, expected, "refusal")
    what = "mean length" if isinstance(gate, Length) else "refusal rate"
    says = [
        (
            f"holds the step when the {what} leaves the {gate.coverage:.0%} interval of the old "
            "environment's runs; "
            f"equal arms leave it in at most {1 - gate.coverage:.0%} of stages"
        ),
        f"rolls back only on evidence that samples differ by more than {gate.margin:g} on average",
    ]
    if size is not None and asked:
        says.append(f"judged once a stage, on {count(asked * size.passes)} answers an arm")
    too_few = None if size is None else _too_few_passes(gate.suite, size)
    return made(gate, alpha.rollback, says, refused=too_few)


def _too_few_passes(suite: str, size: SuiteSize) -> str | None:
    if size.passes >= LEAST_PASSES:
        return None
    return (
        f"suite {suite!r} is asked {size.passes} times an arm, and run-to-run noise shows from "
        f"{LEAST_PASSES} on: never decides; set suites.{suite}.passes"
    )


def _width(discordance: float, answers: int, alpha: float) -> float:
    """The gate's own bound for samples whose passes differ in this share, half up and half down."""
    difference = Difference(
        mean=0.0,
        candidate=0.5,
        baseline=0.5,
        variance=discordance / answers,
        degrees=math.inf if not discordance else max(1.0, discordance * answers),
        answers=answers,
        unmeasured=0.0,
        reach_up=1.0,
        reach_down=1.0,
    )
    return -difference.at_least(alpha)


def _most_noise(margin: float, answers: int, alpha: float) -> float:
    """The share of scores that may change from run to run before equal arms no longer pass."""
    low, high = 0.0, 1.0
    while high - low > 1e-4:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _width(middle, answers, alpha) < margin else (low, middle)
    return low


def _size(suite: str, expected: Expected, question: str) -> tuple[SuiteSize | None, int]:
    size = expected.suites.get(suite)
    return size, 0 if size is None else size.questions.get(question, 0)


def _up(value: float) -> float:
    """A little larger, with two digits."""
    scale = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.ceil(value / scale + 0.5) * scale
