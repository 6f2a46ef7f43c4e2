"""Every operator without a deterministic implementation that a run meets, with its place and its count.

PyTorch itself knows them: such an operator calls ``alertNotDeterministic``, which fails under
``use_deterministic_algorithms(True)`` and only warns with ``warn_only``. A failure ends the run at the first
one, and a warning tells no more than the kernel's name, so the run is made twice:

1. with warnings, which gathers every alert and changes nothing about the run;
2. with failures, each caught around its own operator, which is then run again with a warning. That tells the
   operator as the dispatcher sees it and the module that called it.

An alert of the first run that the second cannot place is listed without a place, never left out.

Blind spots, told in the report: an operator that PyTorch does not know (another namespace: a custom kernel)
is listed as ``unvouched``, since nobody checked it; kernels that bypass the dispatcher (Triton or numpy
called directly) are not seen at all. Those only the repeated runs of :mod:`engines.determinism.repeat` catch.
"""

from __future__ import annotations

import collections
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from engines.determinism import strict

ENGINE = "(engine)"
"""Module path of what the engine runs itself: memory, masks, sampling."""
# Of alertNotDeterministic, of its cuBLAS twin, and of attention kernels with words of their own.
_ALERT = re.compile(
    r"does not have a deterministic implementation|not deterministic|non-?deterministic", re.I
)
_KERNEL = re.compile(r"^(\S+) does not have a deterministic implementation")
_OF_PYTORCH = frozenset(
    {"aten", "prim", "prims", "quantized", "quantized_decomposed", "mkldnn", "onednn", "inductor"}
    | {"_c10d_functional", "c10d", "profiler", "rngprims", "higher_order"}
)
_LONGEST = 300


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One operator at one place of the model."""

    operator: str
    """As the dispatcher names it (``aten::put_``); the kernel's own name where it could not be placed."""
    module: str
    """Path in the model (``model.layers.0.mlp``), :data:`ENGINE`, or "" where it could not be placed."""
    count: int
    says: str
    """PyTorch's words, cut."""


class Operators(msgspec.Struct, frozen=True, kw_only=True):
    """What one workload met."""

    alerts: tuple[Alert, ...]
    unvouched: tuple[Alert, ...]
    """Operators of another namespace than PyTorch's: nothing is known of them."""
    seen: int
    """Different operators that ran."""
    calls: int


def collect(network: nn.Module, run: Callable[[], None], *, seed: int) -> Operators:
    """Run ``run`` twice and list what has no deterministic implementation.

    Args:
        network: its modules give the places.
        run: the workload, on this thread; it must do the same each time.

    Raises:
        NotStrict: the settings cannot be put on.
        Exception: whatever ``run`` raises; nothing is said about a run that did not end.
    """
    with _warned() as said, strict.settings(seed, strict=True, warn_only=True):
        run()
    told = collections.Counter(said)
    watch = _Watch()
    with _warned() as leftover, strict.settings(seed, strict=True), _places(network, watch), watch:
        run()
    # What the second run let pass as a warning came from an operator that was caught and run again.
    return _sum_up(told, watch, collections.Counter(leftover))


def _sum_up(told: collections.Counter[str], watch: _Watch, leftover: collections.Counter[str]) -> Operators:
    placed = [
        Alert(operator=operator, module=module, count=count, says=says)
        for (operator, module, says), count in watch.alerts.items()
    ]
    kernels = {_kernel(one.says) for one in placed}
    unplaced = [
        Alert(operator=_kernel(says), module="", count=count, says=says)
        for says, count in (told | leftover).items()
        if _kernel(says) not in kernels
    ]
    unvouched = [
        Alert(
            operator=operator,
            module=module,
            count=count,
            says="no operator of PyTorch: nobody vouches for it",
        )
        for (operator, module), count in watch.foreign.items()
    ]
    return Operators(
        alerts=tuple(sorted([*placed, *unplaced], key=_order)),
        unvouched=tuple(sorted(unvouched, key=_order)),
        seen=len(watch.seen),
        calls=sum(watch.seen.values()),
    )


def _order(alert: Alert) -> tuple[str, str, str]:
    return alert.operator, alert.module, alert.says


def _kernel(says: str) -> str:
    found = _KERNEL.match(says)
    return found[1] if found else says


def _cut(words: str) -> str:
    line = " ".join(words.split("\n", 1)[0].split())
    # The advice after the first sentence is about switches that are ours to set.
    return line.split(", but you set ", 1)[0].split(" because you set ", 1)[0][:_LONGEST]


@contextmanager
def _warned() -> Iterator[list[str]]:
    """The alerts of a block, in order; every other warning goes where it would have gone."""
    said: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            yield said
        finally:
            others: list[warnings.WarningMessage] = []
            for one in caught:
                if issubclass(one.category, UserWarning) and _ALERT.search(str(one.message)):
                    said.append(_cut(str(one.message)))
                else:
                    others.append(one)
    for one in others:
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


class _Watch(TorchDispatchMode):
    """Sees each operator that the dispatcher runs on this thread."""

    def __init__(self) -> None:
        super().__init__()
        self.alerts: collections.Counter[tuple[str, str, str]] = collections.Counter()
        self.foreign: collections.Counter[tuple[str, str]] = collections.Counter()
        self.seen: collections.Counter[str] = collections.Counter()
        self.path: list[str] = []

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name()
        self.seen[name] += 1
        module = self.path[-1] if self.path else ENGINE
        if func.namespace not in _OF_PYTORCH:
            self.foreign[name, module] += 1
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError as error:
            if not _ALERT.search(str(error)):
                raise
            self.alerts[name, module, _cut(str(error))] += 1
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            return func(*args, **(kwargs or {}))
        finally:
            torch.use_deterministic_algorithms(True)


@contextmanager
def _places(network: nn.Module, watch: _Watch) -> Iterator[None]:
    """``watch.path`` follows the module that is running."""
    hooks = []
    for name, module in network.named_modules():

        def enter(_module: Any, _args: Any, name: str = name) -> None:
            watch.path.append(name or "(model)")

        def leave(_module: Any, _args: Any, _output: Any) -> None:
            watch.path.pop()

        hooks.append(module.register_forward_pre_hook(enter))
        hooks.append(module.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
