"""What gates over drawn answers share: which replicates count, and how soon same-seed answers part.

Read are comparisons of live traffic at a temperature above 0, one observation each, their replicates averaged
inside. A replicate counts where both arms completed: a failed arm, a cut one (token-only copies) or a pair
that was set aside has no whole answer. Comparisons of a prompt that has been seen before are left out, and so
are a suite's: its prompts come again at every stage.

An answer is its first ``tokens`` tokens, and its end where the model ended it before.

*Coupling.* All arms of a replicate share a seed. The total variation of the next token is at most the rate at
which same-seed answers part, whatever ties them together (:mod:`comparator.sequential.parting`), so the bound
always holds; it can only be small where both arms sample alike. Whether they do is tested as well: two arms
that run one exponential race on one seed part at a step whose distributions are within ``SAME_TV`` of each
other with probability at most 2·TV/(1 + TV). Forks that the taxonomy calls *sampling stream* are counted
against all tokens up to the fork; more of them than that rejects "same sampler, same seed".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from comparator.comparison import Comparison
from comparator.pair import Pair
from comparator.records import Exchange, Outcome
from comparator.sequential import (
    END,
    Mixture,
    PartingState,
    PartingTest,
    Tally,
    exceedance,
    race_bound,
    rejects,
    run_together,
)
from comparator.taxonomy import SAME_TV, drawn_by_another

_STREAM_ALPHA = 0.001
"""Of calling two like samplers unlike; it costs a pass, never a rollback."""
_STREAM = exceedance(race_bound(SAME_TV), Mixture.geometric(0.01, 0.9, 6))

Answers = list[tuple[int, ...]]


class Agreement(msgspec.Struct, frozen=True, kw_only=True):
    """How soon same-seed answers part, and whether seeds tie the arms together at all."""

    candidate: PartingState = PartingState()
    """Baseline and candidate."""
    control: PartingState = PartingState()
    replicates: int = 0
    """Of baseline and candidate, over all comparisons."""
    stream: Tally = Tally()
    """Ones: forks between equal distributions. Zeros: all other tokens up to a fork or the end."""
    unlike: str | None = None
    """Why seeds do not tie the arms together, where that is known from what the arms say of themselves."""

    @property
    def n(self) -> int:
        """Comparisons of baseline and candidate."""
        return self.candidate.n

    @property
    def rate(self) -> float | None:
        """Tokens at which same-seed answers part, of all tokens run together; None before the first."""
        return self.candidate.rate

    def add(self, test: PartingTest, pairs: Sequence[Pair], answers: Answers, other: Answers) -> Agreement:
        """With one comparison of baseline and candidate."""
        stream, unlike = self.stream, self.unlike
        ends = [run_together(*both) for both in zip(answers, other, strict=True)]
        for pair, (together, parted) in zip(pairs, ends, strict=True):
            same = parted and _same_distribution(pair)
            stream = Tally(ones=stream.ones + same, zeros=stream.zeros + together - same)
            unlike = unlike or _unlike(pair.left, pair.right)
        return msgspec.structs.replace(
            self,
            candidate=_step(test, self.candidate, ends),
            replicates=self.replicates + len(pairs),
            stream=stream,
            unlike=unlike,
        )

    def add_control(self, test: PartingTest, answers: Answers, other: Answers) -> Agreement:
        """With one comparison of baseline and control."""
        ends = [run_together(*both) for both in zip(answers, other, strict=True)]
        return msgspec.structs.replace(self, control=_step(test, self.control, ends))

    @property
    def uncoupled(self) -> str | None:
        """Why seeds do not tie the arms together; None while nothing speaks against it."""
        if self.unlike is not None:
            return self.unlike
        if self.stream.ones and rejects(_STREAM.log_e(self.stream), _STREAM_ALPHA):
            return (
                f"{self.stream.ones} forks between equal next-token distributions in "
                f"{self.stream.ones + self.stream.zeros} tokens (class sampling_stream): another seed, "
                "generator or sampling setting is at work on one arm"
            )
        return None

    def said(self, bound: float) -> str:
        """The bound and what it rests on, for the end of a reason."""
        if self.rate is None:
            return "total variation is at most 1: nothing has been compared"
        text = (
            f"total variation is at most {bound:.3g} a token (same-seed answers part at {self.rate:.2%} of "
            f"tokens, {self.candidate.partings} of {self.replicates} answers in all"
        )
        if self.control.rate is not None:
            text += f"; the control's at {self.control.rate:.2%}"
        return text + ")"


def usable(pairs: Iterable[Pair]) -> tuple[Pair, ...]:
    """Replicates with two whole answers, drawn at a temperature above 0."""
    return tuple(
        pair
        for pair in pairs
        if pair.valid
        and pair.left.sampling.temperature > 0
        and not (pair.left.token_only or pair.right.token_only)
        and pair.left.outcome is Outcome.COMPLETED
        and pair.right.outcome is Outcome.COMPLETED
    )


def reads(evidence: object) -> bool:
    """Is it a comparison of live traffic whose prompt is new?"""
    return isinstance(evidence, Comparison) and not evidence.repeat and evidence.sample is None


def answers_of(pairs: Sequence[Pair], tokens: int) -> tuple[Answers, Answers]:
    """The baseline's answers and the other arm's, by replicate."""
    return [answer_of(pair.left, tokens) for pair in pairs], [answer_of(pair.right, tokens) for pair in pairs]


def answer_of(exchange: Exchange, tokens: int) -> tuple[int, ...]:
    """The first ``tokens`` token IDs, and the end where the model ended before them."""
    ids = exchange.token_ids
    if len(ids) >= tokens or exchange.finish_reason == "length":
        return ids[:tokens]
    return (*ids, END)


def _step(test: PartingTest, state: PartingState, ends: Sequence[tuple[int, bool]]) -> PartingState:
    return test.step(state, [together for together, _ in ends], [parted for _, parted in ends])


def _same_distribution(pair: Pair) -> bool:
    return pair.fork is not None and drawn_by_another(pair.fork, pair.left.sampling)


def _unlike(left: Exchange, right: Exchange) -> str | None:
    if left.engine != right.engine:
        return f"the arms' engines differ ({left.engine} and {right.engine}), and with them their samplers"
    for exchange in (left, right):
        seed = exchange.facts.get("seed")
        if seed is not None and seed.value is not None and seed.value != exchange.sampling.seed:
            return f"{exchange.arm} drew with seed {seed.value}, not with {exchange.sampling.seed} as asked"
    return None
