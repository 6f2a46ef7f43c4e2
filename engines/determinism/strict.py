"""PyTorch's strict settings: what they are, putting them on, and reading them back.

Sources: PyTorch's notes on reproducibility (docs/source/notes/randomness.rst) and on CUDA's TF32
(docs/source/notes/cuda.rst); cuBLAS library, "Results reproducibility", for CUBLAS_WORKSPACE_CONFIG.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy
import torch

CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
CUBLAS_VALUES = (":4096:8", ":16:8")
"""The two values with which cuBLAS repeats itself; the first is faster and takes 24 MiB."""


class NotStrict(RuntimeError):  # noqa: N818
    """A setting could not be put on, or did not stay on; the message says which."""


def variables(seed: int) -> dict[str, str]:
    """What must stand in the environment before the interpreter and CUDA start."""
    return {CUBLAS: CUBLAS_VALUES[0], "PYTHONHASHSEED": str(seed)}


def put_on(seed: int, *, warn_only: bool = False) -> dict[str, Any]:
    """Every setting on, every generator seeded, all of it read back.

    Args:
        warn_only: operators without a deterministic implementation warn instead of failing. For counting them
            only: what is served never runs so.

    Returns:
        The settings as they are now, by the names they have in PyTorch.

    Raises:
        NotStrict: cuBLAS has no fixed workspace, or a setting does not read back as it was set.
    """
    _check_cublas()
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    seed_all(seed)
    told = read()
    wanted = {
        "use_deterministic_algorithms": True,
        "warn_only": warn_only,
        "cudnn.benchmark": False,
        "cudnn.deterministic": True,
        "cuda.matmul.allow_tf32": False,
        "cudnn.allow_tf32": False,
        "float32_matmul_precision": "highest",
    }
    for name, value in wanted.items():
        if told[name] != value:
            raise NotStrict(f"{name} was set to {value!r} and reads {told[name]!r}: this PyTorch ignores it")
    return {**told, "seed": seed}


def seed_all(seed: int) -> None:
    """Python's, numpy's and torch's own generators (all devices). Requests have generators of their own."""
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def read() -> dict[str, Any]:
    """The settings as PyTorch tells them."""
    return {
        "use_deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill_uninitialized_memory": bool(torch.utils.deterministic.fill_uninitialized_memory),
        "cudnn.benchmark": bool(torch.backends.cudnn.benchmark),
        "cudnn.deterministic": bool(torch.backends.cudnn.deterministic),
        "cuda.matmul.allow_tf32": bool(torch.backends.cuda.matmul.allow_tf32),
        "cudnn.allow_tf32": bool(torch.backends.cudnn.allow_tf32),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        CUBLAS: os.environ.get(CUBLAS),
        "PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED"),
    }


@contextlib.contextmanager
def settings(seed: int, *, strict: bool, warn_only: bool = False) -> Iterator[None]:
    """The settings on, or PyTorch's own as they were before, for the length of a block.

    cuBLAS reads its workspace once, so its variable stays as it is in both.
    """
    before = read()
    try:
        if strict:
            put_on(seed, warn_only=warn_only)
        else:
            torch.use_deterministic_algorithms(False)
            torch.backends.cudnn.deterministic = False
            seed_all(seed)
        yield
    finally:
        put_back(before)


def put_back(told: Mapping[str, Any]) -> None:
    """What :func:`read` told, as it was. Seeds are not put back."""
    torch.use_deterministic_algorithms(told["use_deterministic_algorithms"], warn_only=told["warn_only"])
    torch.backends.cudnn.benchmark = told["cudnn.benchmark"]
    torch.backends.cudnn.deterministic = told["cudnn.deterministic"]
    torch.set_float32_matmul_precision(told["float32_matmul_precision"])
    torch.backends.cuda.matmul.allow_tf32 = told["cuda.matmul.allow_tf32"]
    torch.backends.cudnn.allow_tf32 = told["cudnn.allow_tf32"]


def _check_cublas() -> None:
    value = os.environ.get(CUBLAS)
    if value not in CUBLAS_VALUES:
        raise NotStrict(
            f"{CUBLAS} is {value!r}: set it to {' or '.join(CUBLAS_VALUES)} before the process starts; later "
            "is too late, cuBLAS reads it once"
        )
