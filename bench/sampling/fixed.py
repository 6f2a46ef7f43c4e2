"""The peers, which look once at a number of comparisons that was chosen beforehand.

- :func:`equality_test`: Model Equality Testing (Gao, Liang & Guestrin, ICLR 2025) as published: the unbiased
  MMD² under the Hamming kernel on padded answers, 0 between prompts, p-value by permuting all answers over
  both samples. Written here for many permutations at once; :mod:`bench.sampling.equality` asks the package
  itself on the same samples, and both must agree.
- :func:`paired_test`: a plain permutation test that knows of the pairing: the squared length of the mean
  difference of one-hot (position, token) features, arms swapped comparison by comparison.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bench.sampling.resample import REPLICATES, Picks, Pool

Floats = npt.NDArray[np.float64]


class Kernel:
    """Hamming kernels of a pool's answers, padded to one length; the share of places that agree."""

    def __init__(self, pool: Pool) -> None:
        longest = max(len(one) for said in pool.answers for one in said)
        self.padded = np.full((pool.prompts, 2 * pool.seeds, longest), -1, dtype=np.int64)
        for prompt, said in enumerate(pool.answers):
            for index, answer in enumerate(said):
                self.padded[prompt, index, : len(answer)] = answer
        rows = self.padded.reshape(-1, longest)
        self._width = 2 * pool.seeds
        whole = np.zeros((len(rows), len(rows)), dtype=np.float32)
        for place in range(longest):
            whole += rows[:, None, place] == rows[None, :, place]
        self.whole = whole / np.float32(longest)

    def rows(self, order: npt.NDArray[np.int64], picks: Picks) -> npt.NDArray[np.int64]:
        """(comparisons, 2, REPLICATES) rows of :attr:`whole`."""
        return order[:, None, None] * self._width + picks


def equality_test(
    kernel: Kernel, order: npt.NDArray[np.int64], picks: Picks, permutations: int, rng: np.random.Generator
) -> tuple[float, float]:
    """p-value and statistic of the published test on these comparisons, pairing forgotten."""
    rows = kernel.rows(order, picks)
    flat = rows.reshape(-1)
    first = np.zeros(rows.shape, dtype=bool)
    first[:, 0] = True
    labels = np.empty((flat.size, permutations + 1), dtype=np.float32)
    labels[:, 0] = first.reshape(-1)
    for column in range(1, permutations + 1):
        labels[:, column] = labels[rng.permutation(flat.size), 0]
    prompts = np.repeat(order, 2 * REPLICATES)
    sums = np.zeros((3, permutations + 1))
    sizes = np.zeros((3, permutations + 1))
    for prompt in np.unique(prompts):
        mine = np.flatnonzero(prompts == prompt)
        block = kernel.whole[np.ix_(flat[mine], flat[mine])]
        x = labels[mine]
        y = 1.0 - x
        kx, ky = block @ x, block @ y
        for at, (left, right) in enumerate(((x, kx), (x, ky), (y, ky))):
            sums[at] += (left * right).sum(axis=0)
        nx, ny = x.sum(axis=0), y.sum(axis=0)
        for at, size in enumerate((nx * nx, nx * ny, ny * ny)):
            sizes[at] += size
    half = flat.size / 2  # an answer with itself: kernel 1, left out
    statistic = (
        (sums[0] - half) / (sizes[0] - half) - 2 * sums[1] / sizes[1] + (sums[2] - half) / (sizes[2] - half)
    )
    return float((statistic[1:] >= statistic[0]).mean()), float(statistic[0])


def gram(kernel: Kernel, order: npt.NDArray[np.int64], picks: Picks) -> Floats:
    """Inner products of the comparisons' mean feature differences, (comparisons, comparisons)."""
    rows = kernel.rows(order, picks).reshape(len(order), -1)
    signs = np.repeat([1.0, -1.0], REPLICATES) / REPLICATES
    found = np.zeros((len(rows), len(rows)))
    for left, mine in zip(signs, rows.T, strict=True):
        for right, other in zip(signs, rows.T, strict=True):
            found += left * right * kernel.whole[np.ix_(mine, other)]
    return found


def paired_test(products: Floats, permutations: int, rng: np.random.Generator) -> float:
    """p-value of the comparisons whose Gram matrix this is."""
    signs = rng.choice([-1.0, 1.0], size=(permutations, len(products)))
    moved = ((signs @ products) * signs).sum(axis=1)
    # the observed signs are one of the possible ones: counted in, or the level would not hold at small n
    return float((1 + (moved >= products.sum() - 1e-9).sum()) / (1 + permutations))
