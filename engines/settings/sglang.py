"""SGLang 0.5.23: read in its wheel. It needs a GPU, so nothing of it was run here."""

from __future__ import annotations

from engines.settings.values import ALL, FROM_ENVIRONMENT, REPEATED, TOKEN, Batch, Choice, Setting, Sheet

_FIELDS = "sglang 0.5.23, sglang/srt/arg_groups/fields"


def sheet(choice: Choice) -> Sheet:
    """The rows for one choice."""
    return Sheet(
        engine="sglang",
        since="0.5.23",
        before="0.5.24",
        command=("python", "-m", "sglang.launch_server", "--model-path", "MODEL"),
        settings=(*_common(choice), *_repeated(choice)),
        notes=(
            (
                "without --attention-backend the deterministic mode takes fa3, on Blackwell flashinfer or "
                "triton: give it by hand, equal on both sides"
            ),
            "read in the source, not run: this engine needs a GPU",
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
            name="no overrides of the model",
            levels=ALL,
            absent="--json-model-override-args",
            field="engine.model_overrides",
            reason="an overridden configuration is another model than its files say",
            cost="none",
            source=f"{_FIELDS}/model.py",
        ),
        Setting(
            name="precision",
            levels=FROM_ENVIRONMENT,
            flag="--dtype",
            value=choice.dtype,
            field="precision.dtype",
            reason="auto follows the model's configuration",
            cost="that of the type",
            source=f"{_FIELDS}/model.py",
        ),
        Setting(
            name="key/value cache precision",
            levels=FROM_ENVIRONMENT,
            flag="--kv-cache-dtype",
            value="auto",
            field="precision.kv_cache_dtype",
            reason="auto is the model's own type; fp8 and fp4 round keys and values at every step",
            cost="twice the cache memory of fp8",
            source=f"{_FIELDS}/model.py",
        ),
        Setting(
            name="no quantization on the fly",
            levels=FROM_ENVIRONMENT,
            absent="--quantization",
            field="precision.quantization",
            field_value="none",
            reason="weights that are quantized while loading are other numbers, run by other kernels",
            cost="memory and speed of the unquantized model",
            source=f"{_FIELDS}/model.py",
        ),
        Setting(
            name="sampling defaults",
            levels=FROM_ENVIRONMENT,
            flag="--sampling-defaults",
            value="openai",
            reason="model, the default, takes them from the folder's generation_config.json",
            cost="requests must send what they want",
            source=f"{_FIELDS}/serving.py",
        ),
    )


def _repeated(choice: Choice) -> tuple[Setting, ...]:
    one = Setting(
        name="one request at a time",
        levels=TOKEN,
        flag="--max-running-requests",
        value="1",
        field="batch.max_sequences",
        reason="no neighbours, so no other shapes, whatever kernels run",
        cost="all batching; --batch invariant keeps it",
        source=f"{_FIELDS}/schedule.py",
    )
    return (
        Setting(
            name="engine seed (torch, numpy, random)",
            levels=REPEATED,
            flag="--random-seed",
            value=str(choice.seed),
            field="sampler.seed",
            reason="seeds Python's random, numpy.random and torch; left out, one is drawn at each start",
            cost="none",
            source="sglang 0.5.23, sglang/srt/utils/common.py (set_random_seed)",
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
            name="no speculative decoding",
            levels=REPEATED,
            absent="--speculative-algorithm",
            field="speculative",
            field_value=False,
            reason="how many drafts are accepted changes the shape of the verifying pass, and so its sums",
            cost="the speed that speculation would give",
            source=f"{_FIELDS}/spec.py",
        ),
        Setting(
            name="no radix cache",
            levels=REPEATED,
            flag="--disable-radix-cache",
            field="cache.prefix",
            field_value=False,
            reason="a warm prefix skips the prefill that a cold one computes, by what was asked before",
            cost="shared prefixes are computed anew each time",
            source=f"{_FIELDS}/memory.py",
        ),
        Setting(
            name="fixed prefill pieces",
            levels=REPEATED,
            flag="--chunked-prefill-size",
            value="8192",
            field="prefill.chunk_tokens",
            reason="left out, it is chosen by the GPU's memory, and it decides where a prompt is cut",
            cost="none known",
            source=f"{_FIELDS}/schedule.py",
        ),
        Setting(
            name="batch-invariant kernels and seeded sampling",
            levels=TOKEN,
            flag="--enable-deterministic-inference",
            field="determinism.batch_invariant",
            field_value=True,
            reason="kernels add up each request in one order; it also switches the sampler to pytorch and "
            "all-reduce fusion off, and only with it is a request's own seed used",
            cost="34.35 % slower with CUDA graphs, by SGLang's own documentation",
            condition="backend flashinfer, fa3, fa4, triton, ascend, intel_xpu; others are refused",
            source="sglang 0.5.23, sglang/srt/arg_groups/overrides.py; cost: "
            "docs/advanced_features/deterministic_inference.md at 376a46ea",
        ),
        *(() if choice.batch is Batch.INVARIANT else (one,)),
        Setting(
            name="a seed in each request",
            levels=TOKEN,
            request='"seed" when temperature is above 0',
            reason="requests without one draw from a generator that all share",
            cost="none",
            source="sglang 0.5.23, sglang/srt/arg_groups/fields/exec_.py",
        ),
    )
