"""The reference engine in deterministic mode: what it promises, and the check before it serves.

The promise: the same request (token IDs, parameters, seed) gets the same tokens and the same logits, bit for
bit, from every process with the same environment digest, whoever else is being served. It stands on PyTorch's
strict settings, on a forward pass of its own for each request (:mod:`engines.reference.alone`), and on a seed
of the engine for requests that bring none. It does not reach beyond one environment: another CPU, GPU, number
of threads or version of PyTorch is another digest, and may give other tokens.

Nothing of it is taken on trust: before the first request is served, the audit of
:mod:`engines.determinism` runs on the loaded model, and the engine ends if it finds anything.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from engines.reference.options import EngineServerOptions

if TYPE_CHECKING:
    from engines.reference.model import LoadedModel

_RUNS = 2
_TOKENS = 8
_LISTED = 20


class RefusesToServe(RuntimeError):  # noqa: N818
    """The loaded model does not run deterministically here; the message lists everything that was found."""


def variables(options: EngineServerOptions) -> dict[str, str]:
    """What must stand in the environment before the interpreter starts, and does not yet."""
    wanted = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONHASHSEED": str(options.seed)}
    return {name: value for name, value in wanted.items() if os.environ.get(name) != value}


def put_on(options: EngineServerOptions) -> None:
    """PyTorch's strict settings and all seeds, for the rest of the process. Call it before loading.

    Raises:
        RefusesToServe: they cannot be put on.
    """
    from engines.determinism import strict

    try:
        strict.put_on(options.seed)
    except strict.NotStrict as error:
        raise RefusesToServe(str(error)) from error


def checked(loaded: LoadedModel, options: EngineServerOptions) -> LoadedModel:
    """The model, with the mode in its identity, after a short audit of what would be served.

    Raises:
        RefusesToServe: an operator without a deterministic implementation, one that PyTorch does not know, a
            request that did not repeat itself, or a model that did not run.
    """
    from engines.determinism import audit, strict, workload

    plan = audit.Plan(runs=_RUNS, tokens=min(_TOKENS, options.max_model_len - 1), rounds=0, seed=options.seed)
    how = workload.How(max_batch=options.max_batch, prefill_chunk=options.prefill_chunk)
    try:
        report = audit.audit(loaded, plan, how=how, shared=False)
    except (RuntimeError, ValueError) as error:
        raise RefusesToServe(f"its determinism could not be checked: {str(error).splitlines()[0]}") from error
    if report.verdict != "pass":
        found = [
            f"  {one.operator}, {one.count} x in {one.module or '(place unknown)'}: {one.says}"
            for one in (*report.operators.alerts, *report.operators.unvouched)
        ]
        more = [f"  and {len(found) - _LISTED} more"] if len(found) > _LISTED else []
        raise RefusesToServe("\n".join([*report.reasons, *found[:_LISTED], *more]))
    told = strict.put_on(options.seed)
    identity = dataclasses.replace(
        loaded.identity,
        fields={
            **loaded.identity.fields,
            "deterministic": True,
            "determinism.settings": told,
            "determinism.batch_invariant": True,
            "sampler.seed": options.seed,
        },
    )
    return dataclasses.replace(loaded, identity=identity)
