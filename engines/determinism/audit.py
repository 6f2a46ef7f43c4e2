"""One report on one model: settings, operators, repetition, cost; and the verdict over them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import torch

from engines.determinism import cost, operators, repeat, strict, workload
from engines.determinism.cost import Cost
from engines.determinism.operators import Operators
from engines.determinism.repeat import Repeat
from engines.determinism.workload import How
from engines.reference.model import LoadedModel


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How thoroughly.

    Raises:
        ValueError: a number outside its range; the message names the option.
    """

    runs: int = 5
    tokens: int = 24
    """Of each answer that is compared or timed."""
    rounds: int = 6
    """Of timing; 0 leaves the cost out."""
    concurrency: int = 4
    seed: int = 0
    shared_batch: bool = False
    """Hold the verdict to batches that share passes as well."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("runs", 1, 10_000),
            ("tokens", 2, 4096),
            ("rounds", 0, 1000),
            ("concurrency", 2, 64),
            ("seed", 0, 2**31 - 1),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"--{name}: {value} is outside {low}-{high}")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """``verdict`` is ``pass``, ``fail`` or ``inconclusive``; ``reasons`` say why it is not ``pass``."""

    verdict: str
    reasons: tuple[str, ...]
    torch: str
    device: str
    dtype: str
    threads: int
    settings: dict[str, Any]
    operators: Operators
    repeats: tuple[Repeat, ...]
    cost: Cost | None
    notes: tuple[str, ...]


def audit(
    model: LoadedModel,
    plan: Plan,
    *,
    how: How,
    shared: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> Report:
    """Everything that ``forkgate determinism audit`` tells.

    Args:
        shared: look at batches that share passes too.

    Raises:
        NotStrict: the settings cannot be put on here.
        NothingToCompare: the model gives no finite logit.
        RuntimeError: the model does not run.
    """
    before = strict.read()
    try:
        told = strict.put_on(plan.seed)
    finally:
        strict.put_back(before)
    say("looking for operators without a deterministic implementation")
    met = meet(model, how=how, seed=plan.seed)
    repeats: tuple[Repeat, ...] = ()
    if not met.alerts:
        say("running requests again, alone and in changed batches")
        repeats = repeated(model, plan, how=how, shared=shared or plan.shared_batch)
    measured = None
    if plan.rounds:
        asks = workload.greedy(model, count=plan.concurrency, max_tokens=plan.tokens)
        with _quiet():
            measured = cost.measure(
                model,
                asks,
                rounds=plan.rounds,
                seed=plan.seed,
                how=how,
                warn_only=bool(met.alerts),
                progress=lambda number: say(f"timing: round {number} of {plan.rounds}"),
            )
    verdict, reasons = judge(met, repeats, shared_batch=plan.shared_batch)
    return Report(
        verdict=verdict,
        reasons=reasons,
        torch=str(torch.__version__),
        device=model.device,
        dtype=str(next(iter(model.network.parameters())).dtype).removeprefix("torch."),
        threads=torch.get_num_threads(),
        settings=told,
        operators=met,
        repeats=repeats,
        cost=measured,
        notes=_notes(met, repeats, model.device),
    )


def meet(model: LoadedModel, *, how: How, seed: int, max_tokens: int = 6) -> Operators:
    """The operators of every path that a request can take through the engine."""
    asks = [
        *workload.greedy(model, count=3, max_tokens=max_tokens),
        *workload.sampled(model, max_tokens=max_tokens),
    ]

    def everything() -> None:
        workload.run(model, asks, how, alone=False)
        workload.run(model, asks, how, alone=True)

    return operators.collect(model.network, everything, seed=seed)


def repeated(model: LoadedModel, plan: Plan, *, how: How, shared: bool) -> tuple[Repeat, ...]:
    """Alone, then in changed batches, with passes of their own and (``shared``) shared."""
    asks = [
        workload.greedy(model, count=1, max_tokens=plan.tokens)[0],
        workload.sampled(model, max_tokens=plan.tokens)[1],
    ]
    beside = workload.neighbours(model, asks, how, count=plan.concurrency)
    told = [repeat.alone(model, asks, runs=plan.runs, seed=plan.seed, how=how)]
    if how.max_batch > 1:
        for one in (False, True) if shared else (False,):
            told.append(
                repeat.changed_batch(model, asks, neighbours=beside, seed=plan.seed, how=how, shared=one)
            )
    return tuple(told)


def judge(met: Operators, repeats: Sequence[Repeat], *, shared_batch: bool) -> tuple[str, tuple[str, ...]]:
    """The verdict and its reasons."""
    failed = []
    if met.alerts:
        failed.append(
            f"{len(met.alerts)} operators without a deterministic implementation; nothing was compared, "
            "since a strict run stops at the first of them"
        )
    for one in repeats:
        held = shared_batch or not one.name.endswith("passes shared")
        if held and not one.logits_equal:
            tokens = "tokens too" if not one.tokens_equal else "no token moved"
            failed.append(f"{one.name}: logits differ from one run to another ({tokens})")
    if failed:
        return "fail", tuple(failed)
    if met.unvouched:
        names = ", ".join(sorted({one.operator for one in met.unvouched}))
        return "inconclusive", (
            f"{names}: not PyTorch's, so its list says nothing of them; they repeated themselves here",
        )
    return "pass", ()


def _notes(met: Operators, repeats: Sequence[Repeat], device: str) -> tuple[str, ...]:
    kind = torch.device(device).type
    notes = [f"PyTorch's list of operators is per device: this says nothing of devices other than {kind}"]
    if not device.startswith("cuda"):
        notes.append("the cuDNN, cuBLAS and TF32 settings are on and have nothing to act on here")
    for one in repeats:
        if one.name.endswith("passes shared") and not one.logits_equal:
            moved = "no token moved in these runs" if one.tokens_equal else "and tokens moved"
            notes.append(
                f"when requests share passes, their logits depend on their neighbours ({moved}): "
                "`forkgate engine --deterministic` gives each request passes of its own"
            )
    if met.alerts:
        notes.append("the cost was timed with warnings only: the operators above ran all the same")
    return tuple(notes)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Alerts were counted already; timing does not print them a thousand times."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield
