"""The flags of each engine's command line that a record names, and those it knows to be no numbers.

Names checked against vLLM 0.32, SGLang's ``ServerArgs``, ``trtllm-serve`` and ``llama-server`` b11434.
"""

from __future__ import annotations

import re
from typing import Any

ON, OFF = object(), object()
"""A flag without a value that sets its field to true, or to false."""

_VLLM: dict[str, Any] = {
    "dtype": "precision.dtype",
    "quantization q": "precision.quantization",
    "kv-cache-dtype": "precision.kv_cache_dtype",
    "attention-backend": "attention.backend",
    "tensor-parallel-size tp": "parallel.tensor",
    "pipeline-parallel-size pp": "parallel.pipeline",
    "data-parallel-size dp": "parallel.data",
    "decode-context-parallel-size dcp": "parallel.context",
    "enable-expert-parallel ep": ("parallel.expert", ON),
    "disable-custom-all-reduce": ("parallel.custom_all_reduce", OFF),
    "max-num-seqs": "batch.max_sequences",
    "max-num-batched-tokens": "batch.max_tokens",
    "max-model-len": "batch.max_model_len",
    "scheduling-policy": "batch.scheduling",
    "async-scheduling": ("batch.async", ON),
    "disable-cascade-attn": ("attention.cascade", OFF),
    "enable-chunked-prefill": ("prefill.chunked", ON),
    "long-prefill-token-threshold": "prefill.chunk_tokens",
    "enable-prefix-caching": ("cache.prefix", ON),
    "block-size": "cache.block_size",
    "speculative-config sc": "speculative",
    "enforce-eager": ("graphs.cuda", OFF),
    "compilation-config cc": "graphs.compilation",
    "logprobs-mode": "sampler.logprobs_mode",
    "generation-config": "sampler.defaults",
    "seed": "sampler.seed",
    "load-format": "engine.load_format",
    "hf-overrides": "engine.model_overrides",
}
_VLLM_OWN = (
    "override-generation-config attention-config kernel-config additional-config "
    "disable-sliding-window calculate-kv-scales rope-scaling rope-theta enable- "
    "lora max-loras max-lora-rank lora-dtype fully-sharded-loras optimization-level O performance-mode "
    "cpu-offload-gb gpu-memory-utilization kv-cache-memory-bytes num-gpu-blocks-override prefix- "
    "caching-hash-algo model-impl tokenizer-mode runner convert structured-outputs-config logits- "
    "processors mamba-cache-dtype kv-sharing-fast-prefill enable-dbo all2all-backend moe-backend max- "
    "logprobs enable-eplb distributed-executor-backend cudagraph-capture-sizes max-cudagraph-capture- "
    "size enable-scale-out"
)
_SGLANG: dict[str, Any] = {
    "dtype": "precision.dtype",
    "quantization": "precision.quantization",
    "kv-cache-dtype": "precision.kv_cache_dtype",
    "attention-backend": "attention.backend",
    "tensor-parallel-size tp-size tp": "parallel.tensor",
    "pipeline-parallel-size pp-size pp": "parallel.pipeline",
    "data-parallel-size dp-size dp": "parallel.data",
    "expert-parallel-size ep-size ep": "parallel.expert",
    "disable-custom-all-reduce": ("parallel.custom_all_reduce", OFF),
    "max-running-requests": "batch.max_sequences",
    "max-prefill-tokens": "batch.max_tokens",
    "context-length": "batch.max_model_len",
    "schedule-policy": "batch.scheduling",
    "chunked-prefill-size": "prefill.chunk_tokens",
    "disable-radix-cache": ("cache.prefix", OFF),
    "page-size": "cache.block_size",
    "speculative-algorithm": "speculative",
    "disable-cuda-graph": ("graphs.cuda", OFF),
    "enable-torch-compile": ("graphs.compilation", ON),
    "sampling-backend": "sampler.backend",
    "random-seed": "sampler.seed",
    "enable-deterministic-inference": ("determinism.batch_invariant", ON),
    "load-format": "engine.load_format",
    "json-model-override-args": "engine.model_overrides",
}
_SGLANG_OWN = (
    "prefill-attention-backend decode-attention-backend enable-mixed-chunk schedule-conservativeness "
    "speculative-num-steps speculative-eagle-topk speculative-num-draft-tokens cuda-graph-max-bs cuda- "
    "graph-bs torch-compile-max-bs enable-dp-attention moe-a2a-backend moe-runner-backend fp8-gemm- "
    "backend enable-nccl-nvls enable-symm-mem enable-p2p-check grammar-backend mem-fraction-static max- "
    "total-tokens quantization-param-path triton-attention-num-kv-splits disable-overlap-schedule "
    "enable-lora max-lora-rank"
)
_TRTLLM: dict[str, Any] = {
    "tp-size tp": "parallel.tensor",
    "pp-size pp": "parallel.pipeline",
    "ep-size ep": "parallel.expert",
    "max-batch-size": "batch.max_sequences",
    "max-num-tokens": "batch.max_tokens",
    "max-seq-len": "batch.max_model_len",
    "enable-chunked-prefill": ("prefill.chunked", ON),
    "kv-cache-dtype": "precision.kv_cache_dtype",
}
_TRTLLM_OWN = (
    "backend max-beam-width kv-cache-free-gpu-memory-fraction free-gpu-memory-fraction gpus-per-node "
    "cluster-size"
)
_LLAMACPP: dict[str, Any] = {
    "ctx-size c": "batch.max_model_len",
    "parallel np": "batch.max_sequences",
    "batch-size b": "batch.max_tokens",
    "ubatch-size ub": "prefill.chunk_tokens",
    "cache-type-k ctk": "precision.kv_cache_dtype.k",
    "cache-type-v ctv": "precision.kv_cache_dtype.v",
    "flash-attn fa": "attention.backend",
    "threads t": "cpu.threads",
    "seed s": "sampler.seed",
    "samplers sampler-seq": "sampler.order",
    "tensor-split ts": "parallel.tensor",
    "no-cache-prompt": ("cache.prefix", OFF),
}
_LLAMACPP_OWN = (
    "threads-batch tb gpu-layers n-gpu-layers ngl split-mode sm main-gpu mg cont-batching cb no-cont- "
    "batching nocb cache-reuse rope-scaling rope-scale rope-freq-base rope-freq-scale yarn-orig-ctx no- "
    "kv-offload nkvo no-repack defrag-thold swa-full kv-unified kvu override-tensor ot cpu-moe n-cpu- "
    "moe draft-max draft-min draft-p-min temp temperature top-k top-p min-p typical repeat-penalty "
    "repeat-last-n mirostat jinja reasoning-format no-host"
)
_REFERENCE: dict[str, Any] = {
    "dtype": "precision.dtype",
    "matmul": "precision.matmul",
    "threads": "cpu.threads",
    "max-batch": "batch.max_sequences",
    "max-model-len": "batch.max_model_len",
    "prefill-chunk": "prefill.chunk_tokens",
}
TABLES: dict[str, tuple[dict[str, Any], str]] = {
    "vllm": (_VLLM, _VLLM_OWN),
    "sglang": (_SGLANG, _SGLANG_OWN),
    "tensorrt-llm": (_TRTLLM, _TRTLLM_OWN),
    "llama.cpp": (_LLAMACPP, _LLAMACPP_OWN),
    "forkgate-reference": (_REFERENCE, "device max-logprobs deterministic"),
}
# Where it listens, what it logs and reads, what clients may do: none of it reaches the numbers, or the
# artifact record has it. A whole word of the flag's name.
PLACES = re.compile(
    r"(?:.*-)?(?:host|port|url|uri|path|dir|file|model|models|tokenizer|name|names|alias|log|logs|logging|level"
    r"|ssl|ca|cert|certs|certfile|cors|origins|methods|headers|uds|socket|addr|address|ip|rank|api|metrics"
    r"|timeout|workers|middleware|revision|m|a|r|webui|slots|props|http|verbose|v|stats|requests|otlp|trace"
    r"|traces|endpoint|fingerprint|template|media|download|head|nnodes|usage|parser|choice|prompts|waiting)(?:-.*)?"
)
