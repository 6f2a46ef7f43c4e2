"""Inference engines: how forkgate speaks to them, and one of its own.

::

    open_engine ── picks by kind ──▶ VllmEngine, ReferenceEngine   (engines.vllm, engines.reference.client)
                                        │ what both share: OpenAIEngine (engines.openai)
       client call ──▶ calls ───────────┤   which calls have a token form, and what they say in numbers
       request     ──▶ transport ───────┤   pooled HTTP, credential, time limits, our own errors
       answer      ──▶ sse ──▶ wire ────┘   bytes → events → steps and finish; topk orders and checks logprobs
       start-up    ──▶ probe                real requests that show what the endpoint honours

``base`` is the contract that the rest of forkgate sees; an adapter raises its errors and no others.
``identity`` says who answered (standard library only). ``model`` makes the demo's real model. ``reference``
is a whole engine (torch, transformers), a process of its own that nothing here imports.

A new engine is one module with a class of the :class:`~engines.base.Engine` shape and one line in
:func:`open_engine`'s table.

Nothing is imported until it is used: ``engines.identity`` runs alone inside an engine's image, where none of
our dependencies are.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import ssl

    from engines.base import (
        Call,
        CallKind,
        CannotEncode,
        Capability,
        Encoding,
        Engine,
        EngineError,
        EngineInvalid,
        EngineOptions,
        EngineRefused,
        EngineTimeout,
        EngineUnavailable,
        Finish,
        Load,
        Probe,
        Prompt,
        Steps,
    )

# Module and class of each kind of engine.
_KINDS: dict[str, tuple[str, str]] = {
    "vllm": ("engines.vllm", "VllmEngine"),
    "vllm_grpc": ("engines.vllm_grpc", "VllmGrpcEngine"),
    "reference": ("engines.reference.client", "ReferenceEngine"),
    "llamacpp": ("engines.llamacpp", "LlamaCppEngine"),
    "sglang": ("engines.sglang", "SglangEngine"),
    "tensorrt_llm": ("engines.tensorrt_llm", "TensorRtLlmEngine"),
}


def open_engine(
    base_url: str,
    options: EngineOptions,
    *,
    tls: ssl.SSLContext | None = None,
    server_name: str | None = None,
) -> Engine:
    """The adapter for one endpoint. Nothing is sent yet; close it in the event loop that used it.

    Args:
        tls: trust and client certificate for an ``https`` endpoint; the system's trust when None.
        server_name: sent as SNI and checked in the certificate; the host of ``base_url`` when None.

    Raises:
        ValueError: an unknown kind.
    """
    try:
        module, name = _KINDS[options.kind]
    except KeyError:
        raise ValueError(f"engine.kind: {options.kind!r} is not one of {', '.join(_KINDS)}") from None
    kind = getattr(importlib.import_module(module), name)
    engine: Engine = kind(base_url, options, tls, server_name)
    return engine


def __getattr__(name: str) -> Any:
    """The contract's names, from ``engines.base`` when they are first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module("engines.base"), name)
    globals()[name] = found
    return found


__all__ = [
    "Call",
    "CallKind",
    "CannotEncode",
    "Capability",
    "Encoding",
    "Engine",
    "EngineError",
    "EngineInvalid",
    "EngineOptions",
    "EngineRefused",
    "EngineTimeout",
    "EngineUnavailable",
    "Finish",
    "Load",
    "Probe",
    "Prompt",
    "Steps",
    "open_engine",
]
