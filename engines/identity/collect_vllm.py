"""A vLLM configuration as fields: of the object inside the engine, or of what ``/server_info`` tells.

Names checked against vLLM 0.32 (``vllm/config``). A name that a version lacks leaves its field to others.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from engines.identity.collect_values import field_value, json_value
from engines.identity.record import UnknownField

_PLACES: tuple[tuple[str, str], ...] = (
    ("precision.dtype", "model_config.dtype"),
    ("precision.kv_cache_dtype", "cache_config.cache_dtype"),
    ("parallel.tensor", "parallel_config.tensor_parallel_size"),
    ("parallel.pipeline", "parallel_config.pipeline_parallel_size"),
    ("parallel.data", "parallel_config.data_parallel_size"),
    ("parallel.expert", "parallel_config.enable_expert_parallel"),
    ("parallel.context", "parallel_config.decode_context_parallel_size"),
    ("batch.max_sequences", "scheduler_config.max_num_seqs"),
    ("batch.max_tokens", "scheduler_config.max_num_batched_tokens"),
    ("batch.max_model_len", "model_config.max_model_len"),
    ("batch.scheduling", "scheduler_config.policy"),
    ("prefill.chunked", "scheduler_config.enable_chunked_prefill"),
    ("prefill.chunk_tokens", "scheduler_config.long_prefill_token_threshold"),
    ("cache.prefix", "cache_config.enable_prefix_caching"),
    ("cache.block_size", "cache_config.block_size"),
    ("sampler.logprobs_mode", "model_config.logprobs_mode"),
    ("sampler.seed", "model_config.seed"),
    ("engine.device", "device_config.device"),
    ("engine.load_format", "load_config.load_format"),
    ("engine.model_overrides", "model_config.hf_overrides"),
    ("batch.async", "scheduler_config.async_scheduling"),
)
_SPECULATIVE = ("method", "num_speculative_tokens", "model", "quantization", "draft_tensor_parallel_size")
_COMPILATION = ("mode", "backend", "custom_ops", "splitting_ops", "pass_config", "compile_sizes")
_MISSING = object()


def fields_of(config: Any) -> dict[str, Any]:
    """``config``: a ``VllmConfig``, or a mapping of the same shape. Never raises for what it lacks."""
    fields: dict[str, Any] = {}
    for field, place in _PLACES:
        value = _at(config, place)
        if value is not _MISSING and value is not None:
            fields[field] = _value(value)
    quantization = _at(config, "model_config.quantization")
    if quantization is not _MISSING:
        fields["precision.quantization"] = "none" if quantization is None else _value(quantization)
    backend = _at(config, "attention_config.backend")
    if backend is None:
        fields["attention.backend"] = UnknownField(
            "vLLM chooses one as it starts, and tells it in its log alone"
        )
    elif backend is not _MISSING:
        fields["attention.backend"] = _value(backend)
    speculative = _at(config, "speculative_config")
    if speculative is not _MISSING:
        fields["speculative"] = False if speculative is None else _some(speculative, _SPECULATIVE)
    for field, place in (
        ("parallel.custom_all_reduce", "parallel_config.disable_custom_all_reduce"),
        ("attention.cascade", "model_config.disable_cascade_attn"),
    ):
        disabled = _at(config, place)
        if isinstance(disabled, bool):
            fields[field] = not disabled
    if _at(config, "compilation_config") not in (_MISSING, None):
        fields["graphs.compilation"] = _some(_at(config, "compilation_config"), _COMPILATION)
        graphs = _some(_at(config, "compilation_config"), ("cudagraph_mode", "cudagraph_capture_sizes"))
        fields["graphs.cuda"] = False if graphs.get("cudagraph_mode") in (0, "NONE") else graphs
    defaults = _some(_at(config, "model_config"), ("generation_config", "override_generation_config"))
    if defaults:
        fields["sampler.defaults"] = defaults
    return fields


def _at(value: Any, place: str) -> Any:
    for name in place.split("."):
        value = value.get(name, _MISSING) if isinstance(value, Mapping) else getattr(value, name, _MISSING)
        if value is _MISSING:
            return _MISSING
    return value


def _some(value: Any, names: tuple[str, ...]) -> dict[str, Any]:
    found = ((name, _at(value, name)) for name in names)
    kept = ((name, _value(one)) for name, one in found if one is not _MISSING and one is not None)
    return {name: {"unknown": one.reason} if isinstance(one, UnknownField) else one for name, one in kept}


def _value(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, str):
        return field_value(value.removeprefix("torch."))
    if isinstance(value, (int, float, list, tuple, Mapping)):
        return json_value(value)
    if hasattr(value, "__dict__") and not isinstance(value, type):
        return _some(value, tuple(name for name in vars(value) if not name.startswith("_")))
    return field_value(str(value).removeprefix("torch."))  # a torch.dtype or torch.device
