"""TensorRT-LLM 1.2 (``trtllm-serve``, PyTorch backend): read in its source. It needs a GPU: not run here."""

from __future__ import annotations

from engines.settings.values import (
    ALL,
    FROM_ENVIRONMENT,
    REPEATED,
    TOKEN,
    Batch,
    Choice,
    NotOffered,
    Setting,
    Sheet,
)

_SERVE = "TensorRT-LLM, tensorrt_llm/commands/serve.py at 00209af"
_ARGS = "TensorRT-LLM between 1.2 and 1.3, tensorrt_llm/llmapi/llm_args.py"


def sheet(choice: Choice) -> Sheet:
    """The rows for one choice.

    Raises:
        NotOffered: batch-invariant kernels.
    """
    if choice.batch is Batch.INVARIANT:
        raise NotOffered(
            "--batch invariant: TensorRT-LLM's source shows no batch-invariant mode: use --batch one"
        )
    return Sheet(
        engine="tensorrt-llm",
        since="1.2.0",
        before="1.3.0",
        command=("trtllm-serve", "MODEL"),
        file_flag="--config",
        settings=(*_common(choice), *_repeated(choice)),
        notes=(
            (
                "no option of trtllm-serve is an engine seed; a request without one gets a fixed default: "
                "send one with each"
            ),
            (
                "read at the commits that the sources name, on the way from 1.2 to 1.3, and not run: this "
                "engine needs a GPU; compare with `trtllm-serve serve --help` of yours"
            ),
        ),
    )


def _common(choice: Choice) -> tuple[Setting, ...]:
    return (
        Setting(
            name="nothing fetched",
            levels=ALL,
            variable="HF_HUB_OFFLINE",
            value="1",
            field="variable.HF_HUB_OFFLINE",
            reason="a name resolves to what the hub holds that day; a folder on disk stays what it was",
            cost="none",
            source="huggingface_hub, huggingface_hub/constants.py",
        ),
        Setting(
            name="one backend",
            levels=FROM_ENVIRONMENT,
            flag="--backend",
            value="pytorch",
            reason="tensorrt and _autodeploy run other kernels, and take other options",
            cost="none: it is the default",
            source=_SERVE,
        ),
        Setting(
            name="precision",
            levels=FROM_ENVIRONMENT,
            key="dtype",
            key_value=choice.dtype,
            reason="auto follows the model's configuration",
            cost="that of the type",
            source=f"{_ARGS} (BaseLlmArgs.dtype)",
        ),
        Setting(
            name="key/value cache precision",
            levels=FROM_ENVIRONMENT,
            key="kv_cache_config.dtype",
            key_value="auto",
            reason="auto is inferred from the model; fp8 rounds keys and values at every step",
            cost="twice the cache memory of fp8",
            source=f"{_ARGS} (KvCacheConfig.dtype)",
        ),
    )


def _repeated(choice: Choice) -> tuple[Setting, ...]:
    return (
        Setting(
            name="deterministic kernels",
            levels=REPEATED,
            variable="FORCE_DETERMINISTIC",
            value="1",
            reason="fixes the attention, mixture-of-experts and all-reduce kernels that would else be chosen "
            "by profiling or add in no fixed order",
            cost="no figure is published; the all-reduce workspace takes 1 GB",
            source="TensorRT-LLM, cpp/tensorrt_llm/common/envUtils.cpp at 73da0cd",
        ),
        Setting(
            name="hash seed",
            levels=REPEATED,
            variable="PYTHONHASHSEED",
            value=str(choice.seed),
            field="variable.PYTHONHASHSEED",
            reason="Python's hashes are the same in every process",
            cost="none",
            source="Python, Command line and environment (PYTHONHASHSEED)",
        ),
        Setting(
            name="no reuse of cached blocks",
            levels=REPEATED,
            key="kv_cache_config.enable_block_reuse",
            key_value=False,
            reason="a warm prefix skips the prefill that a cold one computes, by what was asked before",
            cost="shared prefixes are computed anew each time",
            source=f"{_ARGS} (KvCacheConfig.enable_block_reuse, on by default)",
        ),
        Setting(
            name="no reuse of parts of blocks",
            levels=REPEATED,
            key="kv_cache_config.enable_partial_reuse",
            key_value=False,
            reason="the same, for blocks that match in part",
            cost="as above",
            source=f"{_ARGS} (KvCacheConfig.enable_partial_reuse, on by default)",
        ),
        Setting(
            name="no speculative decoding",
            levels=REPEATED,
            key="speculative_config",
            key_value=None,
            reason="how many drafts are accepted changes the shape of the verifying pass, and so its sums",
            cost="the speed that speculation would give",
            source=f"{_ARGS} (speculative_config)",
        ),
        Setting(
            name="fixed tokens a step",
            levels=REPEATED,
            flag="--max_num_tokens",
            value="8192",
            field="batch.max_tokens",
            reason="it decides what one step may hold",
            cost="none known",
            source=_SERVE,
        ),
        Setting(
            name="prompts in one piece",
            levels=REPEATED,
            absent="--enable_chunked_prefill",
            field="prefill.chunked",
            field_value=False,
            reason="a prompt in pieces is summed in other shapes, and the pieces depend on the batch",
            cost="a long prompt stalls the others",
            source=_SERVE,
        ),
        Setting(
            name="one request at a time",
            levels=TOKEN,
            flag="--max_batch_size",
            value="1",
            field="batch.max_sequences",
            reason="no neighbours, so no other shapes",
            cost="all batching",
            source=_SERVE,
        ),
        Setting(
            name="a seed in each request",
            levels=TOKEN,
            request='"seed"',
            reason="there is no engine seed to set",
            cost="none",
            source=_SERVE,
        ),
    )
