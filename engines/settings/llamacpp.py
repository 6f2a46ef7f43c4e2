"""llama.cpp's ``llama-server`` b11434: read in its own ``--help``."""

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

_HELP = "llama-server b11434, --help"


def sheet(choice: Choice) -> Sheet:
    """The rows for one choice.

    Raises:
        NotOffered: batch-invariant kernels.
    """
    if choice.batch is Batch.INVARIANT:
        raise NotOffered("--batch invariant: llama-server has no batch-invariant mode: use --batch one")
    return Sheet(
        engine="llama.cpp",
        since="b11434",
        before="b11435",
        command=("llama-server", "--model", "MODEL"),
        settings=(*_common(), *_repeated(choice)),
        notes=(
            "the precision of the weights is that of the GGUF file; --dtype does not apply",
            "samplers have defaults (top_k 40, top_p 0.95, min_p 0.05): send every parameter in each request",
        ),
    )


def _common() -> tuple[Setting, ...]:
    return (
        Setting(
            name="no settings of the machine's own",
            levels=ALL,
            flag="--fit",
            value="off",
            aliases=("-fit",),
            reason="on, the default, adjusts what was left out to the device's free memory",
            cost="a start fails where memory does not do",
            source=_HELP,
        ),
        Setting(
            name="key cache precision",
            levels=FROM_ENVIRONMENT,
            flag="--cache-type-k",
            value="f16",
            aliases=("-ctk",),
            reason="q8_0 and its like round keys at every step",
            cost="memory of the wider type",
            source=_HELP,
        ),
        Setting(
            name="value cache precision",
            levels=FROM_ENVIRONMENT,
            flag="--cache-type-v",
            value="f16",
            aliases=("-ctv",),
            reason="the same for values",
            cost="memory of the wider type",
            source=_HELP,
        ),
        Setting(
            name="one attention kernel",
            levels=FROM_ENVIRONMENT,
            flag="--flash-attn",
            value="on",
            aliases=("-fa",),
            field="attention.backend",
            reason="auto chooses by device, and the two add up attention in different orders",
            cost="none known",
            source=_HELP,
        ),
    )


def _repeated(choice: Choice) -> tuple[Setting, ...]:
    threads = str(choice.threads)
    return (
        Setting(
            name="engine seed",
            levels=REPEATED,
            flag="--seed",
            value=str(choice.seed),
            aliases=("-s",),
            field="sampler.seed",
            reason="-1, the default, draws one for each request that brings none; this engine has no torch, "
            "numpy or Python to seed",
            cost="none",
            source=_HELP,
        ),
        Setting(
            name="fixed threads",
            levels=REPEATED,
            flag="--threads",
            value=threads,
            aliases=("-t",),
            field="cpu.threads",
            reason="more threads split sums otherwise; the default follows the machine",
            cost="speed on a machine with more cores: raise --threads on all sides alike",
            source=_HELP,
        ),
        Setting(
            name="fixed threads for prompts",
            levels=REPEATED,
            flag="--threads-batch",
            value=threads,
            aliases=("-tb",),
            reason="the same, while prompts are read",
            cost="as above",
            source=_HELP,
        ),
        Setting(
            name="fixed batch for prompts",
            levels=REPEATED,
            flag="--batch-size",
            value="2048",
            aliases=("-b",),
            field="batch.max_tokens",
            reason="it decides where a prompt is cut",
            cost="none: it is the default",
            source=_HELP,
        ),
        Setting(
            name="fixed physical batch",
            levels=REPEATED,
            flag="--ubatch-size",
            value="512",
            aliases=("-ub",),
            field="prefill.chunk_tokens",
            reason="the shape of the sums while a prompt is read",
            cost="none: it is the default",
            source=_HELP,
        ),
        Setting(
            name="no speculative decoding",
            levels=REPEATED,
            flag="--spec-type",
            value="none",
            reason="verifying drafts runs other batch shapes than decoding token by token",
            cost="the speed that speculation would give",
            source=_HELP,
        ),
        Setting(
            name="no prompt cache",
            levels=REPEATED,
            flag="--no-cache-prompt",
            contrary=("--cache-prompt",),
            field="cache.prefix",
            field_value=False,
            reason="on by default, and its own documentation says that reuse can cause nondeterministic "
            "results, since logits are not bit-for-bit the same for different batch sizes",
            cost="shared prefixes are computed anew each time",
            source=f"{_HELP}; llama.cpp, tools/server/README.md (cache_prompt)",
        ),
        Setting(
            name="no cache of past prompts",
            levels=REPEATED,
            flag="--cache-ram",
            value="0",
            aliases=("-cram",),
            reason="prompts of earlier requests are kept and taken up again, by what was asked before",
            cost="as above",
            source=_HELP,
        ),
        Setting(
            name="one slot",
            levels=TOKEN,
            flag="--parallel",
            value="1",
            aliases=("-np",),
            field="batch.max_sequences",
            reason="no neighbours, so no other shapes; auto, the default, makes several slots",
            cost="all batching",
            source=_HELP,
        ),
        Setting(
            name="no continuous batching",
            levels=TOKEN,
            flag="--no-cont-batching",
            aliases=("-nocb",),
            contrary=("--cont-batching", "-cb"),
            reason="a prompt that arrives joins no pass of another request",
            cost="all batching",
            source=_HELP,
        ),
        Setting(
            name="a seed and no prompt cache in each request",
            levels=TOKEN,
            request='"seed" when temperature is above 0, and "cache_prompt": false',
            reason="a request overrides what the server was started with",
            cost="none",
            source="llama.cpp, tools/server/README.md (/completion)",
        ),
    )
