"""The record of the environment that answers: what the workers know of themselves, what the front was told.

The processes that compute are the workers: torch, threads, libraries and GPUs are theirs to tell. The
command line is the API server's. So each worker captures its own fields, and they go before the server's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from engines.identity.collect import capture
from engines.identity.collect_vllm import fields_of
from engines.identity.record import Identity, UnknownField

METHOD = "forkgate_environment"
"""Name of the method that :mod:`engines.vllm_plugin.general` adds to vLLM's workers."""
# The order of work in one step of vLLM 0.32, by its source: `Sampler` of vllm/v1/sample/sampler.py, and of
# vllm/v1/worker/gpu/sample/sampler.py. What a request does not ask for is left out of its step.
_PENALTIES = ("repetition_penalty", "frequency_penalty", "presence_penalty")
_DRAW = ("temperature", "min_p", "top_k", "top_p")
_OLDER_ORDER = ("allowed_token_ids", "bad_words", "min_tokens", "logit_bias", *_PENALTIES, *_DRAW)
_NEWER_ORDER = ("logit_bias", *_PENALTIES, "bad_words", *_DRAW)


def of_worker(worker: Any) -> str:
    """Fields of the process that computes, as JSON text: what vLLM's RPC carries in any version."""
    config = worker.vllm_config
    own = {"engine.name": "vllm", **fields_of(config)}
    backends = _attention(getattr(worker, "model_runner", None))
    if backends:
        own["attention.backend"] = backends[0] if len(backends) == 1 else backends
    order = _order(config)
    if order is not None:
        own["sampler.order"] = order
    return json.dumps(_known(capture(own=own, ask_torch=True)))


def of_server(workers: Sequence[str], config: Any) -> Identity:
    """The whole record, in the API server. ``workers``: what :func:`of_worker` told of each, in rank order.

    Where the workers differ in a field, it holds the value of each.

    Raises:
        ValueError: no worker told anything, or not in JSON.
    """
    if not workers:
        raise ValueError("no worker told what it runs on")
    own: dict[str, Any] = {"engine.name": "vllm", **fields_of(config)}
    told = [json.loads(one) for one in workers]
    for name in sorted({name for one in told for name in one}):
        values = [one.get(name) for one in told]
        own[name] = values[0] if all(value == values[0] for value in values) else values
    return capture(own=own)


def _known(identity: Identity) -> dict[str, Any]:
    return {name: value for name, value in identity.fields.items() if not isinstance(value, UnknownField)}


def _attention(runner: Any) -> list[str]:
    """Names of the attention backends that were chosen; empty where this version keeps them elsewhere."""
    try:
        return sorted({group.backend.get_name() for groups in runner.attn_groups for group in groups})
    except (AttributeError, TypeError):
        return []


def _order(config: Any) -> list[str] | None:
    newer = getattr(config, "use_v2_model_runner", None)
    if newer is None or getattr(config, "speculative_config", None) is not None:
        return None  # another version, or the rejection sampler: not described here
    return list(_NEWER_ORDER if newer else _OLDER_ORDER)
