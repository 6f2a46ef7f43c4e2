"""What an inference engine must offer so that forkgate can compare it, token by token.

An adapter talks to *one* endpoint. It is probed at start-up, because servers ignore unknown fields in
silence: :meth:`Engine.probe` sends real requests and says which of :class:`Capability` really hold.
"""

from __future__ import annotations

import enum
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol, runtime_checkable

import msgspec

from comparator.records import Fact, Sampling, Step
from engines.identity import Identity
from engines.identity.artifact import ArtifactRecord


class CallKind(enum.StrEnum):
    """The client APIs that are recognised. Everything else only passes through the edge."""

    CHAT = "chat"  # POST /v1/chat/completions
    COMPLETION = "completion"  # POST /v1/completions
    RESPONSE = "response"  # POST /v1/responses
    MESSAGE = "message"  # POST /v1/messages (Anthropic)


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A captured client request, decoded once."""

    kind: CallKind
    body: dict[str, Any]
    model: str


class Encoding(msgspec.Struct, frozen=True, kw_only=True):
    """A call as this endpoint's own tokenizer and template see it."""

    token_ids: tuple[int, ...]
    sampling: Sampling
    """Effective: what the client sent, over the engine's own defaults. ``seed`` is the caller's to set."""
    template_sha256: Fact
    """Digest of the chat template used, or why it is unknown or does not apply."""
    text: str | None = None


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """One generation to run. Equal on all arms but for ``cache_salt``, ``exchange_id`` and ``trace``."""

    exchange_id: str
    """Sent as ``x-request-id``, so that an engine's own log names the exchange."""
    model: str
    token_ids: tuple[int, ...]
    sampling: Sampling
    cache_salt: str
    priority: int | None = None
    """Lowest where the engine has priorities: shadows never displace live work."""
    call: Call | None = None
    """Set when the request cannot go as tokens and goes as itself, with IDs asked back."""
    trace: Mapping[str, str] = {}
    """Headers that travel with it: ``traceparent`` and ``tracestate`` (W3C Trace Context), so that an
    engine's spans join. They change no token."""


class Steps(msgspec.Struct, frozen=True):
    """Tokens that arrived together. A chunk is not a token."""

    steps: tuple[Step, ...]
    environment: Fact | None = None
    """Digest of the environment that answers, as the answer's head told it, or why it told none; None where
    an answer has no head."""


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a stream, as the engine told it."""

    finish_reason: str | None
    stop_reason: str | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    """Echo of the prompt's IDs where the engine gives one: proof that it ran what it was sent."""
    facts: dict[str, Fact] = {}
    """system_fingerprint, environment_digest, processor_order, batch_size... what the answer itself told."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How busy an endpoint says it is: shadows wait while it has a queue (design rule 10)."""

    running: int
    waiting: int
    kv_cache_usage: Fact
    """0-1, or why it is unknown."""
    memory_bytes: Fact
    """Of the accelerator (of the process on a CPU), held by the engine now."""
    generated_tokens: Fact
    """Output tokens since the engine started: a counter, which starts again with the engine."""


class Capability(enum.StrEnum):
    """What an adapter can be relied on for; a probe finds out."""

    TOKEN_IN = "token_in"  # takes prompt token IDs  # noqa: S105
    TOKEN_OUT = "token_out"  # returns generated token IDs, streaming  # noqa: S105
    LOGPROBS = "logprobs"  # top-k logprobs a step, with token IDs
    SEED = "seed"  # same seed → same draw, other seed → another
    ENCODE = "encode"  # client call → token IDs
    DEFAULTS = "defaults"  # effective sampling parameters resolved by the engine itself
    CACHE_SALT = "cache_salt"
    PRIORITY = "priority"
    ABORT = "abort"  # closing the connection stops the generation


OF_ONE_ANSWER = frozenset({"batch_size", "batch_place", "cached_tokens", "seed"})
"""Facts of :attr:`Finish.facts` that are true of that answer alone, and never of another."""


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What a start-up probe found."""

    engine: str
    version: str | None
    model: str | None
    has: frozenset[Capability]
    missing: dict[Capability, str]
    """Capability to the reason, in words an operator can act on."""
    max_logprobs: int
    facts: dict[str, Fact] = {}
    """What holds for every answer of this endpoint; no value of :data:`OF_ONE_ANSWER`."""
    record: Identity | None = None
    """The environment record that the engine makes of itself, its digest checked; None: it serves none."""
    artifact: ArtifactRecord | None = None
    """The record of the files that it serves, checked alike; None: it serves none."""


class EngineError(Exception):
    """Base of all that an adapter raises. ``where`` is the endpoint; the message says what to do."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(f"{where}: {message}")
        self.where = where


class EngineUnavailable(EngineError):  # noqa: N818
    """Connect error, reset, 5xx, or a stream that broke off."""


class EngineTimeout(EngineError):  # noqa: N818
    """No answer, or no next chunk, in time."""


class EngineRefused(EngineError):  # noqa: N818
    """HTTP 4xx or 501: the engine will not run this request."""

    def __init__(self, where: str, message: str, status: int) -> None:
        super().__init__(where, message)
        self.status = status


class EngineInvalid(EngineError):  # noqa: N818
    """The answer breaks the engine's own contract: token IDs missing, NaN logprobs, another prompt's echo."""


class CannotEncode(EngineError):  # noqa: N818
    """This call has no faithful token form on this engine (tools, images, n > 1 ...).

    ``goes_as_itself`` says whether :meth:`Engine.generate` takes it as ``Prompt.call``; if not, it is skipped
    with this reason.
    """

    def __init__(self, where: str, message: str, *, goes_as_itself: bool) -> None:
        super().__init__(where, message)
        self.goes_as_itself = goes_as_itself


class Engine(Protocol):
    """One endpoint of one engine. Safe for concurrent use; bounded by the caller."""

    name: str
    base_url: str

    async def probe(self) -> Probe:
        """Ask the endpoint what it honours, with real requests. Raises :class:`EngineError`."""
        ...

    async def encode(self, call: Call) -> Encoding:
        """Token IDs and effective sampling parameters of a client call.

        Raises:
            CannotEncode: the call must go as itself; the message says why.
            EngineError: the endpoint failed.
        """
        ...

    def generate(self, prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
        """Stream one generation: any number of :class:`Steps`, then exactly one :class:`Finish`.

        Closing the generator early aborts the generation in the engine. ``Step.received_s`` counts from
        the last request byte sent. Raises :class:`EngineError` kinds at any point.
        """
        ...

    async def load(self) -> Load:
        """What the endpoint's own metrics say now. Raises :class:`EngineError`, also where it has none."""
        ...

    async def close(self) -> None:
        """Close pooled connections."""
        ...


class AnswerObserver(Protocol):
    """Told what the head of each answer shows of who gave it, before anybody reads the answer itself."""

    def answered_by(self, environment: Fact, *, new_connection: bool) -> None:
        """An answer's head has come. Neither waits nor raises.

        Args:
            environment: digest of the environment that answers, as this very answer tells it, or why it
                tells none.
            new_connection: it came over a connection that was made for it: whoever is at its other end was
                not met before, whatever its address.
        """
        ...


@runtime_checkable
class Observable(Protocol):
    """An adapter that can say of its answers, or of its connections, whether somebody else may be there."""

    def observe(self, observer: AnswerObserver) -> None:
        """Tell this observer from now on."""
        ...

    def forget(self) -> None:
        """Somebody else may be there: ask anew what was asked once, a model's name or its template."""
        ...


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the judge talks to a pool's engines (a pool's ``engine:`` section of the configuration)."""

    kind: str = "vllm"
    """Adapter: ``vllm``, ``vllm_grpc``, ``reference``, ``llamacpp``, ``sglang`` or ``tensorrt_llm``."""
    model: str | None = None
    """Model name to ask for; the client's own when absent."""
    grpc_port: int | None = None
    """For ``vllm_grpc``: port of the gRPC server on the endpoint's host, where the endpoint's own URL is an
    HTTP server of the same model, which then encodes. Absent: the URL is the gRPC server's."""
    credential_file: str | None = None
    """File with a bearer token of the pool's own. A client's credential never travels on a shadow."""
    connect_timeout_s: float = 5.0
    first_chunk_timeout_s: float = 120.0
    chunk_timeout_s: float = 60.0
    headers: Mapping[str, str] = {}
