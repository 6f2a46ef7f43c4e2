"""A causal language model from a local folder, ready for one forward pass after another.

Whatever transformers can load as a decoder with plain full attention is served; everything else is
refused at start, because the row memory would give it wrong logits in silence.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import inspect
import pathlib
from typing import Any

import torch
import transformers
from torch import nn

from engines.identity import Identity, UnknownField, cpu_flags
from engines.identity.artifact import record_artifact
from engines.identity.collect import capture
from engines.identity.hash_cache import HashCache
from engines.identity.trouble import ArtifactError
from engines.reference.options import DType, EngineServerOptions, Matmul
from engines.reference.rows import KeyValueRows
from engines.reference.sampling import LOGPROBS_MODE, PROCESSOR_ORDER

_TORCH_DTYPE = {
    DType.FLOAT32: torch.float32,
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT16: torch.float16,
}
# The instruction that makes torch's own half-precision product fast on a CPU.
_NATIVE_FLAGS = {
    DType.BFLOAT16: ("avx512_bf16", "amx_bf16", "bf16", "svebf16"),
    DType.FLOAT16: ("avx512_fp16", "amx_fp16", "asimdhp"),
}


class UnsupportedModel(ValueError):  # noqa: N818
    """This model cannot be served faithfully here; the message says why."""


class WideLinear(nn.Module):
    """``nn.Linear`` on half-precision values with float32 kernels.

    Input and weight are values of the half type, products and sums are float32, the result is rounded to the
    half type once: the arithmetic of a matrix unit, on a CPU that has none.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.register_buffer("weight", linear.weight.detach().float(), persistent=False)
        self.register_buffer(
            "bias", None if linear.bias is None else linear.bias.detach().float(), persistent=False
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide: torch.Tensor = nn.functional.linear(x.float(), self.weight, self.bias)
        return wide.to(x.dtype)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model, its tokenizer, and what they are.

    ``sampling_defaults`` are those of ``generation_config.json``, by the OpenAI-style names.
    """

    network: Any
    tokenizer: Any
    device: str
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    sampling_defaults: dict[str, float]
    chat_template: str | None
    identity: Identity
    artifact: dict[str, Any]
    """The artifact record of the folder, as its JSON document."""
    cache_argument: str

    def new_rows(self, max_rows: int) -> KeyValueRows:
        return KeyValueRows(
            layers=self.network.config.num_hidden_layers,
            max_rows=max_rows,
            max_columns=self.max_model_len,
            device=self.device,
        )

    @torch.inference_mode()
    def forward(self, tokens_BQ: torch.Tensor, rows: KeyValueRows) -> torch.Tensor:
        """Run Q more tokens of every row in use; the logits after the last, ``[B, V]`` float32."""
        new_tokens = tokens_BQ.shape[1]
        positions_BQ, mask_B1QT = rows.begin(new_tokens)
        output = self.network(
            input_ids=tokens_BQ,
            attention_mask=mask_B1QT,
            position_ids=positions_BQ,
            use_cache=True,
            logits_to_keep=1,
            **{self.cache_argument: rows},
        )
        rows.end(new_tokens)
        logits: torch.Tensor = output.logits[:, -1].float()
        return logits


def load(options: EngineServerOptions) -> LoadedModel:
    """Load ``options.model_dir`` with nothing fetched from anywhere.

    Raises:
        UnsupportedModel: the folder holds no such model, or one with another kind of attention.
    """
    folder = pathlib.Path(options.model_dir)
    cache = HashCache.default()
    artifact = _artifact(folder, cache)
    torch.set_num_threads(options.threads)
    transformers.utils.logging.disable_progress_bar()
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    _refuse_other_attention(folder, config)
    network = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=_TORCH_DTYPE[options.dtype], attn_implementation="sdpa", local_files_only=True
    )
    network = network.eval().to(options.device)
    matmul = _matmul(options)
    if matmul is Matmul.WIDEN:
        _widen(network)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    parameters = inspect.signature(network.forward).parameters
    # All sums are known by now, so a second look costs a stat of each file.
    if cache is not None and _artifact(folder, cache)["digest"] != artifact["digest"]:
        raise UnsupportedModel(f"--model {folder}: its files changed while they were loaded: start again")
    return LoadedModel(
        network=network,
        tokenizer=tokenizer,
        device=options.device,
        vocab_size=config.vocab_size,
        max_model_len=min(options.max_model_len, config.max_position_embeddings),
        eos_token_ids=_eos_token_ids(network, tokenizer),
        sampling_defaults=_sampling_defaults(network.generation_config),
        chat_template=tokenizer.chat_template if isinstance(tokenizer.chat_template, str) else None,
        identity=_identity(options, artifact["digest"], matmul, network),
        artifact=artifact,
        cache_argument="cache" if "cache" in parameters else "past_key_values",
    )


def _refuse_other_attention(folder: pathlib.Path, config: Any) -> None:
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    if kinds != {"full_attention"} or windowed:
        raise UnsupportedModel(
            f"--model {folder}: model type {config.model_type!r} has {sorted(kinds)} attention, window "
            f"{getattr(config, 'sliding_window', None)}; the reference engine serves full attention only"
        )


def _matmul(options: EngineServerOptions) -> Matmul:
    if options.dtype is DType.FLOAT32 or options.device != "cpu":
        return Matmul.NATIVE
    if options.matmul is not Matmul.AUTO:
        return options.matmul
    flags = cpu_flags()
    native = isinstance(flags, list) and bool(set(flags).intersection(_NATIVE_FLAGS[options.dtype]))
    return Matmul.NATIVE if native else Matmul.WIDEN


def _widen(network: nn.Module) -> None:
    for module in list(network.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, WideLinear(child))


def _eos_token_ids(network: Any, tokenizer: Any) -> tuple[int, ...]:
    configured = network.generation_config.eos_token_id
    listed = configured if isinstance(configured, list) else [configured]
    return tuple(sorted({int(one) for one in (*listed, tokenizer.eos_token_id) if one is not None}))


def _sampling_defaults(generation: Any) -> dict[str, float]:
    """What ``generation_config.json`` itself sets (vLLM's rule: only what differs from transformers' own)."""
    told = generation.to_diff_dict()
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    return {name: told[name] for name in names if told.get(name) is not None}


def _artifact(folder: pathlib.Path, cache: HashCache | None) -> dict[str, Any]:
    """The record of what is loaded; sums of files that have not changed since they were hashed are known."""
    try:
        return record_artifact(folder, cache=cache).to_json()
    except ArtifactError as error:
        raise UnsupportedModel(f"--model {folder}: {error}") from error


def _identity(options: EngineServerOptions, artifact_digest: str, matmul: Matmul, network: Any) -> Identity:
    """What only this engine knows of itself; the collector finds the rest."""
    own = {
        "artifact.digest": artifact_digest,
        "engine.name": "forkgate-reference",
        "engine.version": importlib.metadata.version("forkgate"),
        "engine.device": torch.device(options.device).type,  # which one of several is a place
        "engine.build": UnknownField("Python alone: nothing was built for it"),
        "engine.load_format": "safetensors",
        "engine.model_overrides": {},
        "precision.dtype": options.dtype.value,
        "precision.matmul": matmul.value,
        "precision.quantization": "none",
        "precision.kv_cache_dtype": options.dtype.value,
        "attention.backend": network.config._attn_implementation,
        "attention.cascade": False,
        "speculative": False,
        "deterministic": False,
        "determinism.settings": "none",
        "determinism.batch_invariant": False,
        "parallel.tensor": 1,
        "parallel.pipeline": 1,
        "parallel.data": 1,
        "parallel.context": 1,
        "parallel.expert": False,
        "parallel.custom_all_reduce": False,
        "batch.max_sequences": options.max_batch,
        "batch.max_tokens": UnknownField("a step runs one token of every row, or one piece of a prompt"),
        "batch.max_model_len": options.max_model_len,
        "batch.scheduling": "priority, then arrival",
        "batch.async": False,
        "prefill.chunked": True,
        "prefill.chunk_tokens": options.prefill_chunk,
        "cache.prefix": False,
        "cache.block_size": UnknownField("keys and values lie in rows, not in blocks"),
        "graphs.cuda": False,
        "graphs.compilation": False,
        "sampler.order": list(PROCESSOR_ORDER),
        "sampler.backend": "one torch generator a request",
        "sampler.logprobs_mode": LOGPROBS_MODE,
        "sampler.defaults": _sampling_defaults(network.generation_config),
        "sampler.seed": UnknownField("drawn anew for each request that brings none"),
    }
    return capture(own=own, ask_torch=True)
