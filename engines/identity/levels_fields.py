"""What a field's difference means for token equality, beyond how likely it moves tokens: a table, as values.

:mod:`engines.identity.environment` says how likely each field moves tokens. Here stands what kind of cause it
is: numbers that are other numbers by themselves, shapes that only a batch makes, parts that are not in use.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Any

from engines.identity.environment import LIKELY, row_of
from engines.identity.record import UnknownField

_BY_NATURE = ("precision.*", "engine.model_overrides")
"""Other numbers are computed with, at every step: no setting makes them round alike."""
_OF_BATCHES = (
    "batch.max_sequences",
    "batch.max_tokens",
    "batch.scheduling",
    "batch.async",
    "prefill.*",
    "cache.*",
    "attention.cascade",
    "graphs.cuda",
    "parallel.data",
)
"""They change which shapes a request is computed in; batch-invariant kernels give each shape the
same sums."""
_ON_GPU = (
    "gpu.*",
    "cuda.*",
    "cublas.*",
    "cudnn.*",
    "nccl.*",
    "topology.*",
    "graphs.cuda",
    "precision.tf32",
    "parallel.custom_all_reduce",
)
_BETWEEN_DEVICES = ("nccl.*", "topology.links", "gpu.*.nvlink", "parallel.custom_all_reduce")
_OF_A_CPU_ENGINE = ("cpu.model", "cpu.instruction_sets", "cpu.capability", "cpu.threads")
_ONE_DEVICE: Mapping[str, tuple[Any, ...]] = {
    "parallel.tensor": (1,),
    "parallel.pipeline": (1,),
    "parallel.context": (1,),
    "parallel.expert": (False, 1),
}

_ADVICE: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("precision.*",),
        "start both with one precision, quantization and KV-cache type, or ask for the statistical level",
    ),
    (("engine.model_overrides", "engine.load_format"), "start both without it, or with the same"),
    (
        ("engine.name", "engine.version", "engine.commit", "engine.build", "torch.*", "compiler.*"),
        "run one build of one engine on both, or ask for the statistical level",
    ),
    (
        ("gpu.count", "gpu.*.name", "gpu.*.compute_capability", "gpu.*.mig", "gpu.*.cores", "engine.device",
         "cpu.architecture", "cpu.model", "cpu.instruction_sets", "cpu.capability"),
        "compare on equal hardware to rule out all else; across hardware ask for the statistical level",
    ),
    (
        ("gpu.driver", "cuda.*", "cublas.*", "cudnn.*", "nccl.*", "python.*", "os.libc", "container.image"),
        "run one image and one driver on both",
    ),
    (
        ("parallel.*", "topology.*", "gpu.*.nvlink"),
        "split the model in the same way over equally connected devices",
    ),
    (("cpu.threads*", "cpu.allowed"), "start both with the same number of threads"),
    (
        ("determinism*", "deterministic", *_OF_BATCHES, "batch.*", "graphs.*", "attention.*", "sampler.*",
         "speculative", "engine.flag.*", "engine.flags_unlisted", "variable*"),
        "start both with the settings that `forkgate settings ENGINE --level token` prints",
    ),
)  # fmt: skip


def by_nature(field: str) -> bool:
    """Whether a difference here makes other numbers at every step, whatever else is equal."""
    return _any(field, _BY_NATURE)


def of_batches(field: str) -> bool:
    """Whether it moves tokens only by the shapes that batches have."""
    return _any(field, _OF_BATCHES)


def idle(field: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether nothing of either engine uses what the field describes: a GPU's libraries where none computes,
    what connects devices where there is one. Only what both records know rules anything out."""
    if field in ("gpu.count", "engine.device"):
        return False
    if all(_on_cpu(side) for side in (a, b)) and _any(field, _ON_GPU):
        return True
    return all(_one_device(side) for side in (a, b)) and _any(field, _BETWEEN_DEVICES)


def moves(field: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """How likely a difference moves tokens here: the table's word, but on a CPU engine the CPU computes."""
    if _any(field, _OF_A_CPU_ENGINE) and any(_on_cpu(side) for side in (a, b)):
        return LIKELY
    return row_of(field)[1].moves


def batch_invariant(fields: Mapping[str, Any]) -> bool:
    """Whether the engine says that a request's neighbours do not move it."""
    return (
        fields.get("determinism.batch_invariant") is True
        or fields.get("deterministic") is True
        or (fields.get("batch.max_sequences") == 1 and fields.get("batch.max_sequences") is not True)
    )


def advice(field: str) -> str:
    """What to do about a difference."""
    for patterns, text in _ADVICE:
        if _any(field, patterns):
            return text
    return "make it the same on both sides"


def _on_cpu(fields: Mapping[str, Any]) -> bool:
    device = fields.get("engine.device")
    if isinstance(device, str):
        return device == "cpu"
    return fields.get("gpu.count") == 0 and isinstance(device, UnknownField)


def _one_device(fields: Mapping[str, Any]) -> bool:
    return all(fields.get(name) in values for name, values in _ONE_DEVICE.items())


def _any(field: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(field, pattern) for pattern in patterns)
