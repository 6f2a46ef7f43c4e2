"""What one arm of one captured request said, step by step, as values.

Words are those of ``ARCHITECTURE.md``: an *exchange* is one request with its token stream on one *arm*; a
*pair* is two exchanges of one captured request. Nothing here touches a clock: all seconds are offsets from
the moment the exchange's last request byte was sent, measured by whoever ran it.
"""

from __future__ import annotations

import enum
from typing import Any, NewType

import msgspec

CaptureId = NewType("CaptureId", str)
"""Our own UUIDv7, hex with dashes; evidence is keyed by it, never by anything a client sent."""
ExchangeId = NewType("ExchangeId", str)
Digest = NewType("Digest", str)
"""``sha256:`` and 64 hex digits."""


class Arm(enum.StrEnum):
    """Which side of a comparison an exchange is."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"
    CONTROL = "control"


class Outcome(enum.StrEnum):
    """How an exchange ended."""

    COMPLETED = "completed"
    CUT = "cut"  # token-only arm, stopped on purpose a few tokens after a fork
    ABORTED = "aborted"  # stopped by us: rollback, shutdown, the other arm failed to start
    REFUSED = "refused"  # HTTP 4xx from the engine
    FAILED = "failed"  # HTTP 5xx, connect error, reset
    TIMED_OUT = "timed_out"
    INVALID = "invalid"  # an answer that breaks the engine's own contract: IDs missing, NaN logprobs...


class Fact(msgspec.Struct, frozen=True, omit_defaults=True):
    """A value, or the reason why it cannot be known. Exactly one of the two is set."""

    value: Any = None
    unknown: str | None = None

    def __post_init__(self) -> None:
        if (self.value is None) == (self.unknown is None):
            raise ValueError("a Fact holds either a value or the reason why it is unknown")


class Step(msgspec.Struct, frozen=True, gc=False):
    """One generated token.

    ``top_ids``/``top_logprobs`` are the step's top-k, *sorted by descending logprob* (ties by token ID), raw
    as the engine gave them otherwise: natural-log probabilities. Empty when the engine gave none. The
    drawn token may stand outside the top k of the distribution; an engine that squeezes it into the list is
    recorded as such and not corrected here.
    """

    token_id: int
    logprob: float | None
    top_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]
    received_s: float
    """Arrival of the chunk that held it, from the last request byte sent."""
    text: str | None = None


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """Every sampling parameter made explicit, engine defaults resolved. Equal on all arms of a capture."""

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logit_bias: dict[str, float] = {}
    seed: int = 0  # 0 <= seed < 2**31
    logprobs: int = 0  # top-k asked for; the same on all arms, since asking may change tokens
    extra: dict[str, Any] = {}
    """Engine fields with no name here that travel as they came."""


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of one exchange as the client of the engine sees them. ``None`` where undefined."""

    started_unix_s: float
    ttft_s: float | None
    """Last request byte sent → first chunk with a token."""
    last_token_s: float | None
    total_s: float
    tokens: int

    @property
    def tpot_s(self) -> float | None:
        """(last − first) / (tokens − 1); undefined under two tokens."""
        if self.tokens < 2 or self.ttft_s is None or self.last_token_s is None:
            return None
        return (self.last_token_s - self.ttft_s) / (self.tokens - 1)


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One captured request on one arm."""

    exchange_id: ExchangeId
    capture_id: CaptureId
    arm: Arm
    replicate: int = 0
    rollout: str
    tenant: str
    request_id: str
    pool: str
    endpoint: str
    engine: str
    environment_digest: Fact
    """Digest of the environment that answered, as proved by the engine, not as declared."""
    prompt_token_ids: tuple[int, ...]
    sampling: Sampling
    as_tokens: bool
    """False when the request went as itself because it cannot go as tokens."""
    token_only: bool
    facts: dict[str, Fact] = {}
    """What else is known of the request: attention_mask, padding, adapter, template_sha256, processor_order,
    batch_size, batch_place, system_fingerprint, logprobs_mode, cache_salt, logprobs_depth..."""
    steps: tuple[Step, ...] = ()
    finish_reason: str | None = None
    stop_reason: str | None = None
    outcome: Outcome
    error: str | None = None
    timing: Timing

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Generated token IDs, in order."""
        return tuple(step.token_id for step in self.steps)


class LiveRecord(msgspec.Struct, frozen=True, gc=False):
    """One live request as the edge saw it. Every live request leaves one, sampled or not."""

    sequence: int
    started_unix_s: float
    tenant: str
    pool: str
    endpoint: str
    status: int  # status sent to the client; 0 when the client left before one
    first_byte_s: float  # NaN when none came
    total_s: float
    request_bytes: int
    response_bytes: int
    aborted_by: str  # "", "client", "upstream", "timeout", "drain", "flip" (its tenant was sent elsewhere)
    retried: bool  # answered by home after the candidate failed
    canary: bool
    sampled: bool
    streamed: bool = False
    """The answer was an event stream, so that its first byte is a first token."""
    drawable: bool = True
    """A draw decided whether it was copied: a rollout copied this tenant's requests of this kind then. False
    while a rollout makes its checks, or is rolled back."""
    environment: str = ""
    """Digest of the environment that answered; ``?`` where what the answer told is no digest, or it told none
    and its endpoint's answers do; empty where nobody can tell."""
    environment_by_probe: bool = False
    """The answer told none, or its edge does not read it: :attr:`environment` is what the judge found by its
    last probe of the endpoint."""


class EngineSample(msgspec.Struct, frozen=True, kw_only=True):
    """What one endpoint's own metrics said at one moment, for a rollout that compares its pool."""

    rollout: str
    pool: str
    endpoint: str
    candidate: bool
    unix_s: float
    running: int
    waiting: int
    kv_cache_usage: Fact
    """0-1."""
    memory_bytes: Fact
    """Of the accelerator (or of the process on a CPU), in use by the engine."""
    generated_tokens: Fact
    """Counter since the engine started."""
    environment: str = ""
    """Digest of the environment that the endpoint ran then, as far as it was known."""
