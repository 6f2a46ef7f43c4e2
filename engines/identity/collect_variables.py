"""The environment variables that move numbers: a list of names, so that nothing else is ever recorded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from engines.identity.collect_values import number_or_text, secret_name, text_value
from engines.identity.record import UnknownField

# Whole families. Their members that are places or names of machines are taken out below.
_FAMILIES = re.compile(
    r"(?:NCCL|VLLM|SGLANG|SGL|TRTLLM|TLLM|TORCHINDUCTOR|TORCH_NCCL|CUBLAS|CUBLASLT|CUDNN|KMP|MKL|OMP|OPENBLAS"
    r"|DNNL|ONEDNN|GGML|LLAMA_ARG|FLASHINFER|TRITON|XLA|AITER|HIPBLASLT|ROCBLAS|MIOPEN)_[A-Z0-9_]{1,100}"
)
_SINGLE = frozenset(
    {"ATEN_CPU_CAPABILITY", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_ORDER", "CUDA_DEVICE_MAX_CONNECTIONS"}
    | {"CUDA_MODULE_LOADING", "NVIDIA_TF32_OVERRIDE", "PYTHONHASHSEED", "PYTORCH_CUDA_ALLOC_CONF"}
    | {"PYTORCH_ALLOC_CONF", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_BLAS_PREFER_CUBLASLT"}
    | {"TORCH_CUDNN_V8_API_DISABLED", "TORCH_LINALG_PREFER_CUSOLVER", "TORCH_COMPILE_DISABLE"}
    | {"TORCHDYNAMO_DISABLE", "PYTORCH_NO_CUDA_MEMORY_CACHING", "GOTO_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"}
    | {"NUMEXPR_NUM_THREADS", "GLIBC_TUNABLES", "TOKENIZERS_PARALLELISM", "ENABLE_INTRA_NODE_COMM"}
    | {"HIP_FORCE_DEV_KERNARG", "TF32_OVERRIDE", "MALLOC_ARENA_MAX"}
)
# Places, addresses, logs, limits of time and of what a client may send: none of them reaches the numbers.
_NOT_NUMBERS = re.compile(
    r".*(?:_|^)(?:PORT|HOST|IP|URL|PATH|DIR|FILE|ROOT|LOG|LOGGING|LOGS|DEBUG|TIMEOUT|NAME|PREFIX|HOSTID|IFNAME"
    r"|ADDR|ADDRESS|FOLDER|DUMP|TRACE|PROFILE|VERBOSE|STATS|USAGE|UUID|RANK|INDICES|PLUGINS|HCA|COMM_ID|MEDIA"
    r"|FETCH|IMAGE|AUDIO|VIDEO|ASSETS|API|DEV_MODE|TRACK|HTTP|SSL|ALIAS|BUILD|DOCKER|RAY|NIXL|MOONCAKE|SIDE"
    r"|KEEP|REGISTRY|IDENT|ARG_MODEL|ARG_HF)(?:_.*|$)"
)


def variables(told: Mapping[str, str] | UnknownField) -> dict[str, Any]:
    """``variable.NAME`` for each of the list that is set, and what is read from them under other names."""
    if isinstance(told, UnknownField):
        return {
            "variables": told,
            "nccl.algorithm": told,
            "nccl.protocol": told,
            "cpu.threads_mkl": told,
        }
    fields: dict[str, Any] = {
        f"variable.{name}": text_value(value) if value.strip() else ""
        for name, value in told.items()
        if _moves_numbers(name)
    }
    fields["variables"] = "seen"
    for name, variable in (
        ("nccl.algorithm", "NCCL_ALGO"),
        ("nccl.protocol", "NCCL_PROTO"),
        ("cpu.threads", "OMP_NUM_THREADS"),
        ("cpu.threads_mkl", "MKL_NUM_THREADS"),
        ("determinism.batch_invariant", "VLLM_BATCH_INVARIANT"),
    ):
        if told.get(variable, "").strip():
            fields[name] = number_or_text(told[variable])
    if "determinism.batch_invariant" in fields:
        fields["determinism.batch_invariant"] = fields["determinism.batch_invariant"] in (1, True)
    if told.get("NVIDIA_TF32_OVERRIDE", "").strip() == "0":
        fields["precision.tf32"] = False
    return fields


def _moves_numbers(name: str) -> bool:
    if secret_name(name):
        return False
    return name in _SINGLE or (_FAMILIES.fullmatch(name) is not None and not _NOT_NUMBERS.fullmatch(name))
