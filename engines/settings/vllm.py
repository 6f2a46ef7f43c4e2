"""vLLM 0.32: read in the installed package and its documentation of that version."""

from __future__ import annotations

from engines.settings.values import (
    ALL,
    FROM_ENVIRONMENT,
    REPEATED,
    TOKEN,
    Batch,
    Choice,
    Setting,
    Sheet,
)

_ARGS = "vllm 0.32.0, vllm/engine/arg_utils.py"


def sheet(choice: Choice) -> Sheet:
    """The rows for one choice."""
    return Sheet(
        engine="vllm",
        since="0.32.0",
        before="0.33.0",
        command=("vllm", "serve", "MODEL"),
        settings=(*_files(), *_precision(choice), *_repeated(choice), *_batch(choice)),
        notes=(
            (
                "give --tensor-parallel-size and --attention-backend by hand, equal on both sides: without "
                "the second vLLM chooses by GPU"
            ),
            (
                "vLLM promises reproducibility on the same hardware and version alone, and online only with "
                "batch invariance (docs, usage/reproducibility); with --max-num-seqs 1 there is no batch"
            ),
        ),
    )


def _files() -> tuple[Setting, ...]:
    return (
        Setting(
            name="nothing fetched",
            levels=ALL,
            variable="HF_HUB_OFFLINE",
            value="1",
            field="variable.HF_HUB_OFFLINE",
            reason="a name resolves to what the hub holds that day; a folder on disk stays what it was",
            cost="none",
            source="huggingface_hub, huggingface_hub/constants.py (installed beside vllm 0.32.0)",
        ),
        Setting(
            name="real weights",
            levels=ALL,
            flag="--load-format",
            value="safetensors",
            field="engine.load_format",
            reason="auto falls back to other formats of the folder, which may hold other weights",
            cost="none",
            source=_ARGS,
        ),
        Setting(
            name="no overrides of the model",
            levels=ALL,
            absent="--hf-overrides",
            field="engine.model_overrides",
            field_value={},
            reason="an overridden configuration is another model than its files say",
            cost="none",
            source=_ARGS,
        ),
        Setting(
            name="sampling defaults",
            levels=FROM_ENVIRONMENT,
            flag="--generation-config",
            value="vllm",
            field="sampler.defaults",
            reason="auto takes temperature, top_p and an output limit from the model's folder when a request "
            "leaves them out",
            cost="requests must send what they want",
            source="vllm 0.32.0, vllm/config/model.py (ModelConfig.generation_config)",
        ),
    )


def _precision(choice: Choice) -> tuple[Setting, ...]:
    return (
        Setting(
            name="precision",
            levels=FROM_ENVIRONMENT,
            flag="--dtype",
            value=choice.dtype,
            field="precision.dtype",
            reason="auto follows the model's configuration and the device; float32, float16 and bfloat16 "
            "round at every step",
            cost="that of the type",
            source=_ARGS,
        ),
        Setting(
            name="no quantization on the fly",
            levels=FROM_ENVIRONMENT,
            absent="--quantization",
            aliases=("-q",),
            field="precision.quantization",
            field_value="none",
            reason="weights that are quantized while loading are other numbers, run by other kernels",
            cost="memory and speed of the unquantized model",
            source=_ARGS,
        ),
        Setting(
            name="key/value cache precision",
            levels=FROM_ENVIRONMENT,
            flag="--kv-cache-dtype",
            value="auto",
            field="precision.kv_cache_dtype",
            reason="auto is the model's own type, but for models whose own configuration asks for fp8; an "
            "fp8 cache rounds keys and values at every step",
            cost="twice the cache memory of fp8",
            source="vllm 0.32.0, vllm/config/cache.py (CacheConfig.cache_dtype)",
        ),
        Setting(
            name="no TF32",
            levels=FROM_ENVIRONMENT,
            variable="VLLM_FLOAT32_MATMUL_PRECISION",
            value="highest",
            field="variable.VLLM_FLOAT32_MATMUL_PRECISION",
            reason="high and medium let float32 products run in TF32 or bfloat16 on a GPU",
            cost="float32 products without tensor cores; nothing where weights are half precision",
            source="vllm 0.32.0, vllm/envs.py",
        ),
        Setting(
            name="logprobs of one kind",
            levels=FROM_ENVIRONMENT,
            flag="--logprobs-mode",
            value="raw_logprobs",
            field="sampler.logprobs_mode",
            reason="logprobs before and after processors do not compare",
            cost="none",
            source="vllm 0.32.0, vllm/config/model.py (ModelConfig.logprobs_mode)",
        ),
    )


def _repeated(choice: Choice) -> tuple[Setting, ...]:
    return (
        Setting(
            name="engine seed (torch, numpy, random)",
            levels=REPEATED,
            flag="--seed",
            value=str(choice.seed),
            field="sampler.seed",
            reason="seeds Python's random, numpy.random and torch on every worker, and requests that bring "
            "no seed of their own",
            cost="none",
            source="vllm 0.32.0, vllm/utils/torch_utils.py (set_random_seed)",
        ),
        Setting(
            name="hash seed",
            levels=REPEATED,
            variable="PYTHONHASHSEED",
            value=str(choice.seed),
            field="variable.PYTHONHASHSEED",
            reason="Python's hashes, and vLLM's prefix-cache keys with them, are the same in every process",
            cost="none",
            source="vllm 0.32.0, vllm/v1/core/kv_cache_utils.py",
        ),
        Setting(
            name="no speculative decoding",
            levels=REPEATED,
            absent="--speculative-config",
            aliases=("-sc",),
            field="speculative",
            field_value=False,
            reason="how many drafts are accepted changes the shape of the verifying pass, and so its sums",
            cost="the speed that speculation would give",
            source=_ARGS,
        ),
        Setting(
            name="no prefix caching",
            levels=REPEATED,
            flag="--no-enable-prefix-caching",
            contrary=("--enable-prefix-caching",),
            field="cache.prefix",
            field_value=False,
            reason="a warm prefix skips the prefill that a cold one computes: other shapes, other sums, by "
            "what was asked before",
            cost="shared prefixes are computed anew each time",
            source=_ARGS,
        ),
        Setting(
            name="fixed tokens a step",
            levels=REPEATED,
            flag="--max-num-batched-tokens",
            value="8192",
            field="batch.max_tokens",
            reason="its default depends on GPU and use, and it decides where a prompt is cut",
            cost="none known; memory of activations grows with it",
            source=f"{_ARGS} (default_max_num_batched_tokens)",
        ),
        Setting(
            name="no cascade attention",
            levels=REPEATED,
            flag="--disable-cascade-attn",
            contrary=("--no-disable-cascade-attn",),
            reason="it merges attention over a prefix that requests of a batch share: by the batch",
            cost="none known: 0.32 has it off by default",
            source="vllm 0.32.0, vllm/config/model.py (ModelConfig.disable_cascade_attn)",
        ),
        Setting(
            name="fixed cuBLAS workspace",
            levels=REPEATED,
            variable="CUBLAS_WORKSPACE_CONFIG",
            value=":4096:8",
            field="variable.CUBLAS_WORKSPACE_CONFIG",
            reason="without a fixed workspace cuBLAS may choose another one for each stream of work",
            cost="24 MiB a handle; vLLM's own batch-invariant mode sets it too",
            source="vllm 0.32.0, vllm/model_executor/determinism/batch_invariant.py",
        ),
        Setting(
            name="a seed in each request",
            levels=TOKEN,
            request='"seed" when temperature is above 0',
            reason="requests without one draw from the engine's generator, in the order in which they arrive",
            cost="none",
            source="vllm 0.32.0, vllm/sampling_params.py",
        ),
    )


def _batch(choice: Choice) -> tuple[Setting, ...]:
    if choice.batch is Batch.INVARIANT:
        return (
            Setting(
                name="batch invariance",
                levels=TOKEN,
                variable="VLLM_BATCH_INVARIANT",
                value="1",
                field="variable.VLLM_BATCH_INVARIANT",
                reason="kernels add up each request in one order, whatever the batch",
                cost="throughput; vLLM gives no figure for this version: measure it. It also switches "
                "TF32 off and pins NCCL",
                condition="NVIDIA GPUs of compute capability 8.0 or higher, AMD gfx90a/gfx942/gfx950, or "
                "Intel XPU with Triton; in beta",
                source="https://docs.vllm.ai/en/v0.32.0/features/batch_invariance/",
            ),
        )
    return (
        Setting(
            name="one request at a time",
            levels=TOKEN,
            flag="--max-num-seqs",
            value="1",
            field="batch.max_sequences",
            reason="no neighbours, so no other shapes; works on every device",
            cost="all batching: on 2 CPU cores 30 tokens/s alone against about 190 with 16 at once "
            "(SmolLM2-135M, bfloat16); --batch invariant keeps batching where its condition holds",
            source=_ARGS,
        ),
    )
