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
:func:`open_engine`.
"""

from __future__ import annotations

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
from engines.reference.client import ReferenceEngine
from engines.vllm import VllmEngine

_KINDS: dict[str, type[VllmEngine] | type[ReferenceEngine]] = {
    "vllm": VllmEngine,
    "reference": ReferenceEngine,
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
        kind = _KINDS[options.kind]
    except KeyError:
        raise ValueError(f"engine.kind: {options.kind!r} is not one of {', '.join(_KINDS)}") from None
    engine: Engine = kind(base_url, options, tls, server_name)
    return engine


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
