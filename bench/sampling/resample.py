"""Streams of comparisons, drawn anew from the stored answers as often as one likes.

A comparison takes one prompt and :data:`REPLICATES` answers of either arm, none of them twice in a stream;
the prompts come in random order, all once before any comes again with other seeds. That a prompt comes again
is fair here, since its answers are drawn with fresh seeds; a gate leaves such comparisons out.

Equal arms come in two kinds. *Other seeds*: the baseline's answers and those of the same environment with
other seeds are shuffled together and dealt out to both arms. *Same seeds*: the baseline and the run with
other batches, arms swapped by a coin.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bench.sampling.data import Answers

REPLICATES = 4

Picks = npt.NDArray[np.int64]
"""(comparisons, 2, REPLICATES): indices into the answers of :attr:`Pool.answers` of the prompt."""


class Pool:
    """Two environments' answers, arm after arm: index ``i`` of the first, ``seeds + i`` of the second."""

    def __init__(self, first: Answers, second: Answers) -> None:
        self.prompts = len(first)
        self.seeds = len(first[0])
        self.answers = [[*mine, *other] for mine, other in zip(first, second, strict=True)]
        self.most = self.seeds // REPLICATES * self.prompts
        """Comparisons in a stream."""
        self.mean_tokens = float(np.mean([len(one) for said in self.answers for one in said]))

    def stream(
        self, rng: np.random.Generator, *, coupled: bool, equal: bool
    ) -> tuple[npt.NDArray[np.int64], Picks]:
        """Prompts (comparisons,) and picks of one stream."""
        rounds = self.seeds // REPLICATES
        decks = np.empty((self.prompts, 2, rounds * REPLICATES), dtype=np.int64)
        for prompt in range(self.prompts):
            if equal and not coupled:
                dealt = rng.permutation(2 * self.seeds)
                decks[prompt] = dealt[: 2 * rounds * REPLICATES].reshape(2, -1)
            else:
                first = rng.permutation(self.seeds)
                second = first if coupled else rng.permutation(self.seeds)
                decks[prompt] = np.stack([first, second + self.seeds])[:, : rounds * REPLICATES]
        order = np.concatenate([rng.permutation(self.prompts) for _ in range(rounds)])
        which = np.repeat(np.arange(rounds), self.prompts)
        picks = np.stack(
            [
                decks[prompt, :, turn * REPLICATES : (turn + 1) * REPLICATES]
                for prompt, turn in zip(order, which, strict=True)
            ]
        )
        if equal and coupled:
            swapped = rng.random(len(picks)) < 0.5
            picks[swapped] = picks[swapped][:, ::-1]
        return order, picks

    def arms(self, prompt: int, picks: Picks) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """The answers of one comparison."""
        said = self.answers[prompt]
        return [said[i] for i in picks[0]], [said[i] for i in picks[1]]
