"""PyTorch's strict settings: on, read back, and off again."""

from __future__ import annotations

import random

import numpy
import pytest
import torch

from engines.determinism import strict


def test_a_block_has_the_settings_and_leaves_none_behind() -> None:
    with strict.settings(3, strict=True):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.backends.cudnn.deterministic
        assert not torch.backends.cudnn.benchmark
        assert not torch.backends.cuda.matmul.allow_tf32
        assert not torch.backends.cudnn.allow_tf32
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_failing_block_leaves_none_behind_either() -> None:
    with pytest.raises(ZeroDivisionError), strict.settings(3, strict=True):
        raise ZeroDivisionError
    assert not torch.are_deterministic_algorithms_enabled()


def test_three_generators_start_from_the_seed() -> None:
    drawn = []
    for seed in (5, 5, 6):
        with strict.settings(seed, strict=True):
            drawn.append((random.random(), float(numpy.random.rand()), float(torch.rand(1))))
    assert drawn[0] == drawn[1]
    assert all(a != b for a, b in zip(drawn[0], drawn[2], strict=True))


@pytest.mark.parametrize("value", [None, ":0:0", ":4096:2"])
def test_a_cublas_without_fixed_workspace_is_refused(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    else:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", value)
    with pytest.raises(strict.NotStrict, match=r"CUBLAS_WORKSPACE_CONFIG is .*before the process starts"):
        strict.put_on(0)
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def test_a_setting_that_does_not_stay_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told = strict.read()
    with monkeypatch.context() as patch:
        patch.setattr(strict, "read", lambda: {**told, "use_deterministic_algorithms": False})
        with pytest.raises(strict.NotStrict, match="was set to True and reads False"):
            strict.put_on(0)
    strict.put_back(told)
