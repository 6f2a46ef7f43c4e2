"""What token evidence shows of two environments: how many prompts were answered equally, and what forked.

A comparison counts where it is proved that the two environments answered it: each exchange carries the
digest of the environment that produced it, and these must be those of the two records, either way round. A
comparison of one of them with itself (a control) says whether it repeats itself at all. One prompt is one
observation, however often it was asked and in how many replicates; it is equal when nothing of it forked.
"""

from __future__ import annotations

import math

import msgspec

from comparator.comparison import Comparison
from comparator.pair import Pair
from comparator.records import Arm, Outcome
from comparator.sequential.counts import Counts
from comparator.sequential.interval import mean_interval
from forkgate.judge.forks import Classifier, ForkTally

ANSWERS = "answers"
"""What may be vouched for: that the two environments gave the answers that no engine signed."""


class Prompts(msgspec.Struct, frozen=True, kw_only=True):
    """Distinct prompts that were asked of two sides, and how many of them forked."""

    equal: int = 0
    forked: int = 0

    @property
    def n(self) -> int:
        """All of them."""
        return self.equal + self.forked

    def unseen(self, alpha: float) -> float:
        """Where nothing forked: one-sided bound on the share of prompts like these that fork all the same, at
        confidence 1 - alpha; 1 where something did, or nothing was asked.

        While no prompt forks, E = (1 - p)^-n is a test martingale of "the share is p" that starts at 1 and
        falls to 0 with the first fork; so with probability 1 - alpha it stays under 1/alpha at every n
        (Ville), and one may look as often as one likes. Assumption: a prompt forks with the same probability
        whatever was asked before it, and the prompts are like those that it is said of.
        """
        return 1.0 if self.forked or not self.equal else float(1.0 - alpha ** (1.0 / self.equal))

    def most_forks(self, alpha: float) -> float:
        """The same for any number of forks: half of alpha goes to :meth:`unseen`, half to a confidence
        sequence (:func:`comparator.sequential.interval.mean_interval`), for which of them speaks is not known
        beforehand."""
        if not self.forked:
            return self.unseen(alpha / 2.0)
        counts = Counts(values=(1.0,), counts=(self.forked,))
        if self.equal:
            counts = Counts(values=(0.0, 1.0), counts=(self.equal, self.forked))
        # Of the interval's alpha, half lies on either side.
        high = mean_interval(counts, alpha, lower=0.0, upper=1.0).high
        return 1.0 if high is None else high


def needed(at_most: float, alpha: float) -> int:
    """Equal prompts, none forked, that bound the share of forks at ``at_most``."""
    return math.ceil(math.log(alpha) / math.log1p(-at_most))


class FirstFork(msgspec.Struct, frozen=True, kw_only=True):
    """Where to look first."""

    capture_id: str
    fork_index: int
    fork_class: str | None
    reason: str


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What comparisons showed of two environments, and what was left out."""

    between: Prompts = Prompts()
    """One environment against the other."""
    within: Prompts = Prompts()
    """One of them against itself: controls."""
    first: FirstFork | None = None
    classes: dict[str, int] = {}
    """Forks between the two, by class (:mod:`comparator.taxonomy`)."""
    greedy: int = 0
    """Of the comparisons that counted: asked at temperature 0."""
    drawn: int = 0
    """And above it, arms of a replicate sharing a seed."""
    vouched: int = 0
    """Of the comparisons that counted: unsigned, taken because whoever asked vouched for them."""
    unproved: int = 0
    """Left out: an engine signed no answer, so that who answered is not known."""
    foreign: dict[str, int] = {}
    """Left out: other environments answered, by their digest; ``swapped``: ours, but not one against the
    other."""
    set_aside: dict[str, int] = {}
    """Left out: pairs that say nothing about numbers, by reason."""
    unfinished: int = 0
    """Left out: equal as far as they went, but an answer was empty or cut short."""
    pruned: int = 0
    """Left out: their steps had made room in the store."""
    hashed: int = 0
    """Not left out: kept with hashes for token IDs, which differ exactly where the IDs did."""

    @property
    def comparisons(self) -> int:
        """Of the comparisons that counted: all."""
        return self.greedy + self.drawn

    @property
    def only_ours(self) -> bool:
        """Everything that was compared was answered by these two environments, so verdicts on it are."""
        return bool(self.comparisons) and not self.foreign and not self.unproved


class Tally:
    """Comparisons as they come; memory grows by one short name a prompt."""

    def __init__(self, a: str | None, b: str | None, *, vouched: bool = False) -> None:
        """``a`` and ``b`` are digests of the two environments; None where there is no record."""
        self._wanted = (a, b)
        self._vouched = vouched
        self._between: dict[str, bool] = {}
        self._within: dict[str, bool] = {}
        self._classifier = Classifier()
        self._forks = ForkTally()
        self._first: FirstFork | None = None
        self._foreign: dict[str, int] = {}
        self._set_aside: dict[str, int] = {}
        self._counts = dict.fromkeys(
            ("greedy", "drawn", "vouched", "unproved", "unfinished", "pruned", "hashed"), 0
        )

    def pruned(self, line: int) -> None:
        """A comparison whose steps are gone (``on_pruned`` of a reader)."""
        self._counts["pruned"] += 1

    def hashed(self, line: int, comparison: Comparison) -> None:
        """A comparison that comes with hashes for token IDs (``on_hashed`` of a reader)."""
        self._counts["hashed"] += 1

    def add(self, comparison: Comparison) -> Comparison | None:
        """Take in one comparison. What of it counts; None where nothing does."""
        ours: list[Pair] = []
        proved = True
        for pair in comparison.candidates + comparison.controls:
            who = self._who(pair)
            if who is None:
                continue
            proved = proved and who
            ours.append(pair)
        if not ours:
            return None
        self._counts["greedy" if ours[0].left.sampling.temperature == 0 else "drawn"] += 1
        self._counts["vouched"] += not proved
        comparison = msgspec.structs.replace(comparison, pairs=tuple(ours))
        for pair in comparison.controls:
            self._observe(self._within, comparison.cluster, pair)
        for pair in comparison.candidates:
            self._observe(self._between, comparison.cluster, pair)
        classified = self._classifier.look(comparison, self._forks)
        for pair in comparison.candidates:
            if self._first is None and pair.valid and pair.fork is not None:
                its = next((one for one in classified if one.fork_index == pair.fork.fork_index), None)
                self._first = FirstFork(
                    capture_id=pair.capture_id,
                    fork_index=pair.fork.fork_index,
                    fork_class=None if its is None else its.attribution.fork_class.value,
                    reason="" if its is None else its.attribution.reason,
                )
        return comparison

    def seen(self) -> Seen:
        """All that was taken in."""
        return Seen(
            between=_prompts(self._between),
            within=_prompts(self._within),
            first=self._first,
            classes=dict(self._forks.classes.get("candidate", {})),
            foreign=dict(self._foreign),
            set_aside=dict(self._set_aside),
            **self._counts,
        )

    def _who(self, pair: Pair) -> bool | None:
        """True: our environments answered it; False: somebody vouches for that; None: it does not count."""
        told = (pair.left.environment_digest.value, pair.right.environment_digest.value)
        a, b = self._wanted
        either_way = ((a, a), (b, b)) if pair.right.arm is Arm.CONTROL else ((a, b), (b, a))
        if None not in told and told in either_way:
            return True
        if any(_may_be(told, wanted) for wanted in either_way):
            self._counts["unproved"] += not self._vouched
            return False if self._vouched else None
        for digest in {one for one in told if one is not None and one not in self._wanted} or {"swapped"}:
            self._foreign[digest] = self._foreign.get(digest, 0) + 1
        return None

    def _observe(self, prompts: dict[str, bool], cluster: str, pair: Pair) -> None:
        if pair.set_aside is not None:
            name = pair.set_aside.value
            self._set_aside[name] = self._set_aside.get(name, 0) + 1
            return
        if pair.fork is not None:
            prompts[cluster] = True
        elif pair.right.outcome is Outcome.COMPLETED and pair.right.steps:
            prompts.setdefault(cluster, False)
        else:
            self._counts["unfinished"] += 1


def _may_be(told: tuple[object, object], wanted: tuple[str | None, str | None]) -> bool:
    """Nothing known speaks against it."""
    pairs = zip(told, wanted, strict=True)
    return all(one is None or other is None or one == other for one, other in pairs)


def _prompts(found: dict[str, bool]) -> Prompts:
    forked = sum(found.values())
    return Prompts(equal=len(found) - forked, forked=forked)
