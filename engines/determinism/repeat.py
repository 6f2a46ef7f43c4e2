"""The same request again: bit-equal logits and equal tokens, alone and beside changing neighbours.

Two different things can fail. *Alone*: the request is all that runs, and still its bits differ from one run
to the next: an operator is not deterministic, whatever PyTorch says of it. *In a changed batch*: the request
repeats itself alone, and its bits depend on who else is running: kernels choose other shapes. The second is
the ordinary state of dynamic batching, and no strict setting of PyTorch changes it.

Equality is of bits (as 32-bit integers, so that NaN equals NaN and -0 differs from 0). N equal runs prove no
more than that a difference is seldom: with no difference in N runs its rate is below about 3/N (95 %).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from engines.determinism import strict, workload
from engines.determinism.workload import Ask, How, Run
from engines.reference.model import LoadedModel


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first step at which a run's bits left those of the first run."""

    request: int
    """Which of the requests, from 0."""
    run: str
    step: int
    """Output position, from 0."""
    largest_logit_difference: float | None
    """Largest difference of a logit at that step; None where one is not finite."""
    tokens_equal: bool
    """Of the whole answer: bits may move and no token with them."""


class Repeat(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of repetition."""

    name: str
    runs: int
    """Runs of each request that were compared with its first."""
    steps: int
    logits_equal: bool
    tokens_equal: bool
    first: Difference | None


class NothingToCompare(RuntimeError):  # noqa: N818
    """The runs say nothing: no logit is finite, or no pass was shared."""


def alone(model: LoadedModel, asks: Sequence[Ask], *, runs: int, seed: int, how: How) -> Repeat:
    """Each request by itself, ``runs`` times and once to compare with. Kernel state, memory and generators
    are used anew each time.

    Raises:
        NothingToCompare: the model's logits are all NaN or infinite.
    """
    return _compare(
        "alone",
        [
            (
                str(place),
                first(model, ask, seed=seed, how=how),
                [_one(model, ask, seed, how) for _ in range(runs)],
            )
            for place, ask in enumerate(asks)
        ],
        [f"run {number + 2}" for number in range(runs)],
    )


def changed_batch(
    model: LoadedModel, asks: Sequence[Ask], *, neighbours: Sequence[Ask], seed: int, how: How, shared: bool
) -> Repeat:
    """Each request alone, then beside 1, 2, 4, ... neighbours that come before or after it.

    Args:
        shared: they share forward passes; else each has its own.

    Raises:
        NothingToCompare: no logit is finite, or the requests never met.
        ValueError: a batch of one.
    """
    name = "in a changed batch, passes shared" if shared else "in a changed batch, a pass for each"
    counts = [count for count in (1, 2, 4, 8, 16, 32) if count <= min(len(neighbours), how.max_batch - 1)]
    if not counts:
        raise ValueError("--max-batch 1: nothing can run beside a request, so no batch can change")
    found, labels = [], []
    for place, ask in enumerate(asks):
        told = first(model, ask, seed=seed, how=how, own=not shared)
        others = []
        for count in counts:
            beside = neighbours[:count]
            for before in (True, False):
                with strict.settings(seed, strict=True):
                    if before:
                        ran = workload.run(
                            model, [ask], how, before=beside, alone=not shared, keep_logits=True
                        )[-1]
                    else:
                        ran = workload.run(model, [ask, *beside], how, alone=not shared, keep_logits=True)[0]
                others.append(ran)
                if place == 0:
                    labels.append(f"{count} {'before' if before else 'after'}")
        if shared and not any(size > 1 for ran in others for size in ran.batch_sizes):
            raise NothingToCompare("no pass was shared: give --tokens or --prefill-chunk a larger number")
        found.append((str(place), told, others))
    return _compare(name, found, labels)


def first(model: LoadedModel, ask: Ask, *, seed: int, how: How, own: bool = True) -> Run:
    """The run that others are compared with: the request with nobody beside it."""
    told = _one(model, ask, seed, how, own=own)
    if not any(bool(torch.isfinite(step).any()) for step in told.logits):
        raise NothingToCompare("not one logit of this model is finite: nothing can be compared")
    return told


def _one(model: LoadedModel, ask: Ask, seed: int, how: How, *, own: bool = True) -> Run:
    with strict.settings(seed, strict=True):
        return workload.run(model, [ask], how, alone=own, keep_logits=True)[0]


def _compare(name: str, found: list[tuple[str, Run, list[Run]]], labels: list[str]) -> Repeat:
    differences = [
        difference
        for place, told, others in found
        for label, other in zip(labels, others, strict=True)
        if (difference := difference_of(told, other, request=int(place), label=label)) is not None
    ]
    return Repeat(
        name=name,
        runs=len(labels),
        steps=sum(len(told.tokens) for _, told, _ in found),
        logits_equal=not differences,
        tokens_equal=all(told.tokens == other.tokens for _, told, others in found for other in others),
        # A changed token says more than changed bits.
        first=min(differences, key=lambda one: (one.tokens_equal, one.step), default=None),
    )


def difference_of(told: Run, other: Run, *, request: int, label: str) -> Difference | None:
    """Where ``other`` first leaves ``told``, or None where every bit and token is equal."""
    for step, (a_V, b_V) in enumerate(zip(told.logits, other.logits, strict=False)):
        if torch.equal(a_V.view(torch.int32), b_V.view(torch.int32)):
            continue
        largest = float((a_V - b_V).abs().max())
        return Difference(
            request=request,
            run=label,
            step=step,
            largest_logit_difference=largest if largest < float("inf") else None,
            tokens_equal=told.tokens == other.tokens,
        )
    if told.tokens == other.tokens:
        return None
    # Equal logits and other tokens: the draw itself is not repeated.
    step = next(
        (at for at, (a, b) in enumerate(zip(told.tokens, other.tokens, strict=False)) if a != b),
        min(len(told.tokens), len(other.tokens)),
    )
    return Difference(request=request, run=label, step=step, largest_logit_difference=0.0, tokens_equal=False)
