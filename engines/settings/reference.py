"""The reference engine of this package: what it does is measured by `forkgate determinism audit`."""

from __future__ import annotations

import importlib.metadata

from engines.settings.values import FROM_ENVIRONMENT, REPEATED, TOKEN, Choice, Setting, Sheet

_OPTIONS = "forkgate, engines/reference/options.py"


def sheet(choice: Choice) -> Sheet:
    """The rows for one choice. Both kinds of batch are its deterministic mode."""
    version = importlib.metadata.version("forkgate")
    major, minor, *_ = version.split(".")
    return Sheet(
        engine="reference",
        since=f"{major}.{minor}.0",
        before=f"{major}.{int(minor) + 1}.0",
        command=("forkgate", "engine", "--model", "MODEL"),
        settings=_rows(choice),
        notes=(
            "--deterministic sets PYTHONHASHSEED and CUBLAS_WORKSPACE_CONFIG itself, before anything starts",
            "it loads a local folder and fetches nothing: level artifact needs no setting",
            "there is no speculation, no prefix cache and no compilation in this engine to switch off",
        ),
    )


def _rows(choice: Choice) -> tuple[Setting, ...]:
    return (
        Setting(
            name="precision",
            levels=FROM_ENVIRONMENT,
            flag="--dtype",
            value=choice.dtype,
            field="precision.dtype",
            reason="weights, products and the key/value cache have this type",
            cost="that of the type; on a CPU without such instructions half precision is slower",
            source=_OPTIONS,
        ),
        Setting(
            name="one way to multiply",
            levels=FROM_ENVIRONMENT,
            flag="--matmul",
            value="native",
            field="precision.matmul",
            reason="auto chooses by the CPU's instructions, and the two add in different orders",
            cost="several times slower for half precision on a CPU without its instructions",
            source=_OPTIONS,
        ),
        Setting(
            name="fixed threads",
            levels=REPEATED,
            flag="--threads",
            value=str(choice.threads),
            field="cpu.threads",
            reason="more threads split sums otherwise",
            cost="speed on a machine with more cores: raise --threads on all sides alike",
            source=_OPTIONS,
        ),
        Setting(
            name="fixed prefill pieces",
            levels=REPEATED,
            flag="--prefill-chunk",
            value="512",
            field="prefill.chunk_tokens",
            reason="it decides where a prompt is cut, and with it the shapes of its sums",
            cost="none: it is the default",
            source=_OPTIONS,
        ),
        Setting(
            name="deterministic mode",
            levels=TOKEN,
            flag="--deterministic",
            field="deterministic",
            field_value=True,
            reason="PyTorch's strict settings, TF32 off, a forward pass for each request alone; a model that "
            "fails the audit is not served",
            cost="batching; docs/determinism.md has figures that `forkgate determinism audit` printed",
            source="forkgate, engines/reference/deterministic.py",
        ),
        Setting(
            name="engine seed (torch, numpy, random)",
            levels=TOKEN,
            flag="--seed",
            value=str(choice.seed),
            field="sampler.seed",
            reason="of Python's, numpy's and torch's generators, PYTHONHASHSEED, and requests without one",
            cost="none",
            source=_OPTIONS,
        ),
    )
