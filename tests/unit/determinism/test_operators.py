"""Every operator without a deterministic implementation is found, with its place and count.

``put_`` without accumulation and ``max_unpool2d`` have none on any device, so a CPU shows the real mechanism.
"""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from engines.determinism import operators, strict
from engines.determinism.operators import ENGINE, Alert, Operators


class Puts(nn.Module):
    """Writes by ``put_``, ``times`` times."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        for _ in range(self.times):
            x.put_(torch.tensor([1, 1]), torch.tensor([1.0, 2.0]))
        return x


class Unpools(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.zeros(1, 1, 2, 2, dtype=torch.long)
        nn.functional.max_unpool2d(x[:4].reshape(1, 1, 2, 2), places, 2)
        return x


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed: torch.Tensor = self.linear(x)
        return mixed.softmax(-1).cumsum(-1)


def network(**parts: nn.Module) -> nn.Module:
    whole = nn.Sequential()
    for name, part in parts.items():
        whole.add_module(name, part)
    return whole


def collect(model: nn.Module, runs: int = 1) -> Operators:
    def run() -> None:
        with torch.inference_mode():
            for _ in range(runs):
                model(torch.ones(8))

    return operators.collect(model, run, seed=0)


def places(met: tuple[Alert, ...]) -> list[tuple[str, str, int]]:
    return [(one.operator, one.module, one.count) for one in met]


def test_it_lists_all_of_them_and_not_the_first_alone() -> None:
    met = collect(network(one=Puts(2), two=Unpools(), three=Plain(), four=Puts(1)), runs=3)
    assert places(met.alerts) == [
        ("aten::max_unpool2d", "two", 3),
        ("aten::put_", "four", 3),
        ("aten::put_", "one", 6),
    ]
    assert all("does not have a deterministic implementation" in one.says for one in met.alerts)


def test_a_module_inside_a_module_is_named_by_its_path() -> None:
    met = collect(network(outer=network(inner=Puts(1))))
    assert places(met.alerts) == [("aten::put_", "outer.inner", 1)]


def test_what_runs_outside_every_module_is_the_engines() -> None:
    def run() -> None:
        torch.zeros(4).put_(torch.tensor([0]), torch.ones(1))

    met = operators.collect(Plain(), run, seed=0)
    assert places(met.alerts) == [("aten::put_", ENGINE, 1)]


def test_a_model_without_any_meets_none() -> None:
    met = collect(network(one=Plain()))
    assert met.alerts == ()
    assert met.unvouched == ()
    assert met.seen > 2
    assert met.calls >= met.seen


def test_a_custom_operator_is_listed_with_the_alert_inside_it() -> None:
    @torch.library.custom_op("forkgate_test::puts", mutates_args=())
    def puts(x: torch.Tensor) -> torch.Tensor:
        return x.clone().put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))

    class Custom(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            told: torch.Tensor = puts(x)
            return told

    met = collect(network(kernel=Custom()))
    assert places(met.alerts) == [("forkgate_test::puts", "kernel", 1)]
    assert places(met.unvouched) == [("forkgate_test::puts", "kernel", 1)]


def test_a_custom_operator_that_alerts_nobody_is_not_vouched_for() -> None:
    @torch.library.custom_op("forkgate_test::doubles", mutates_args=())
    def doubles(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def run() -> None:
        doubles(torch.ones(2))

    met = operators.collect(Plain(), run, seed=0)
    assert met.alerts == ()
    assert places(met.unvouched) == [("forkgate_test::doubles", ENGINE, 1)]


def test_an_alert_in_words_of_its_own_is_kept_though_it_cannot_be_placed() -> None:
    def run() -> None:
        warnings.warn("Some attention defaults to a non-deterministic algorithm.", UserWarning, stacklevel=1)

    met = operators.collect(Plain(), run, seed=0)
    assert [(one.module, one.count) for one in met.alerts] == [("", 1)]
    assert "non-deterministic algorithm" in met.alerts[0].says


def test_other_errors_and_warnings_go_through() -> None:
    def fails() -> None:
        torch.ones(2) @ torch.ones(3)

    with pytest.raises(RuntimeError, match="size"):
        operators.collect(Plain(), fails, seed=0)

    def warns() -> None:
        warnings.warn("something else", UserWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="something else"):
        operators.collect(Plain(), warns, seed=0)


def test_hooks_and_settings_are_gone_afterwards() -> None:
    model = network(one=Puts(1))
    collect(model)
    assert not model.one._forward_hooks
    assert not model.one._forward_pre_hooks
    with strict.settings(0, strict=True), pytest.raises(RuntimeError, match="put_ does not have"):
        model(torch.ones(8))
