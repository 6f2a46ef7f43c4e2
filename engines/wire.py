"""Answers of OpenAI-style token streams, decoded straight into steps. This is the judge's hot path.

One decoder object belongs to one exchange. It takes the payloads of whatever events one socket read held and
gives their steps; at the end it gives the :class:`~engines.base.Finish`, or says what is wrong. Three shapes:
completions, chat completions, and vLLM's token generation.

Token names ``token_id:N`` are read by deleting the prefix from the raw JSON, so that msgspec parses the
top-k object straight into integers: decoding names and slicing them one by one takes half as much again.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import msgspec

from comparator.records import Fact, Step
from engines.base import EngineInvalid, EngineUnavailable, Finish
from engines.sse import DONE
from engines.topk import UnsoundLogprobs, ordered, ordered_unique, own

_NAME = b'"token_id:'
_PREFIX_BYTES = len(_NAME) - 1


class _CompletionLogprobs(msgspec.Struct):
    token_logprobs: list[float | None]
    top_logprobs: list[dict[int, float]] | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int | None = None


class Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: msgspec.Raw = msgspec.Raw(b"null")
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class Chunk(msgspec.Struct):
    choices: list[Choice] = []
    prompt_token_ids: list[int] | None = None
    usage: _Usage | None = None
    system_fingerprint: str | None = None
    error: Any = None
    forkgate_facts: dict[str, Any] | None = None


class _BareChoice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    logprobs: _CompletionLogprobs | None = None
    finish_reason: str | None = None


class _BareChunk(msgspec.Struct):
    """A completions chunk whose token names have lost their prefix."""

    choices: list[_BareChoice] = []
    error: Any = None
    prompt_token_ids: Any = None
    usage: Any = None
    forkgate_facts: Any = None
    system_fingerprint: Any = None


class _Delta(msgspec.Struct, gc=False):
    content: str | None = None


class _ChatChoice(Choice):
    delta: _Delta | None = None


class _ChatChunk(Chunk):
    choices: list[_ChatChoice] = []  # type: ignore[assignment]


class _Entry(msgspec.Struct, gc=False):
    token_id: int
    logprob: float | None


class _Content(msgspec.Struct):
    token_id: int
    logprob: float | None
    top_logprobs: list[_Entry] = []


class _GenerateLogprobs(msgspec.Struct):
    content: list[_Content]


class _ChatEntry(msgspec.Struct, gc=False):
    token: int
    logprob: float | None


class _ChatContent(msgspec.Struct):
    token: int
    logprob: float | None
    top_logprobs: list[_ChatEntry] = []


class _ChatLogprobs(msgspec.Struct):
    content: list[_ChatContent]


_completion_chunk = msgspec.json.Decoder(Chunk).decode
_bare_chunk = msgspec.json.Decoder(_BareChunk).decode
_chat_chunk = msgspec.json.Decoder(_ChatChunk).decode
_completion_logprobs = msgspec.json.Decoder(_CompletionLogprobs).decode
_generate_logprobs = msgspec.json.Decoder(_GenerateLogprobs).decode
# Chat names stand as values: "token_id:12" loses its prefix and stays a JSON text, so it is read laxly.
_chat_logprobs = msgspec.json.Decoder(_ChatLogprobs, strict=False).decode

Tops = list[tuple[float | None, Sequence[int], Sequence[float]]]


class Decoder(Protocol):
    """What :class:`~engines.openai.OpenAIEngine` feeds with the events of one answer."""

    @property
    def done(self) -> bool: ...

    def feed(self, payloads: list[bytes], received_s: float) -> list[Step]: ...

    def finish(self) -> Finish: ...


class StreamDecoder(abc.ABC):
    """Events of one answer to steps.

    Args:
        where: the endpoint, for errors.
        depth: top-k asked for, 0 for no logprobs.
        prompt: the token IDs sent, which an echo must repeat; None when the request went as itself.
    """

    no_ids: ClassVar[str] = "the engine ignores return_token_ids, upgrade it"
    """Why text may come without IDs."""

    def __init__(self, where: str, *, depth: int, prompt: tuple[int, ...] | None) -> None:
        self._where = where
        self._depth = depth
        self._prompt = prompt
        self._tokens = 0
        self._echo: tuple[int, ...] | None = None
        self._finish_reason: str | None = None
        self._stop_reason: str | None = None
        self._counted: int | None = None
        self._done = False
        self.facts: dict[str, Fact] = {}

    @property
    def done(self) -> bool:
        """True once the stream said ``[DONE]``; nothing after it is read."""
        return self._done

    def feed(self, payloads: list[bytes], received_s: float) -> list[Step]:
        """Steps of these events, in order.

        Raises:
            EngineInvalid: token IDs or logprobs missing or unsound, another prompt's echo, not JSON.
            EngineUnavailable: the engine reported an error inside the stream.
        """
        steps: list[Step] = []
        for payload in payloads:
            if payload == DONE:
                self._done = True
            if self._done:
                break
            try:
                chunk = self._decode(payload)
            except (msgspec.DecodeError, RecursionError) as error:
                raise EngineInvalid(self._where, f"an event is not what was asked for: {error}") from error
            if chunk.error is not None:
                raise EngineUnavailable(self._where, f"the stream reports an error: {_told(chunk.error)}")
            self._note(chunk)
            for choice in chunk.choices:
                self._choice(choice, received_s, steps)
        return steps

    def finish(self) -> Finish:
        """What the whole stream said.

        Raises:
            EngineUnavailable: it broke off before its finish reason.
            EngineInvalid: the engine counted other tokens than it gave IDs for.
        """
        if self._finish_reason is None:
            raise EngineUnavailable(self._where, f"the stream ended after {self._tokens} tokens, unfinished")
        if self._counted is not None and self._counted != self._tokens:
            raise EngineInvalid(
                self._where, f"the engine counted {self._counted} tokens and gave IDs for {self._tokens}"
            )
        return Finish(
            finish_reason=self._finish_reason,
            stop_reason=self._stop_reason,
            prompt_token_ids=self._echo,
            facts=self.facts,
        )

    @abc.abstractmethod
    def _decode(self, payload: bytes) -> Chunk: ...

    @abc.abstractmethod
    def _tops(self, given: bytes, token_ids: list[int]) -> Tops: ...

    def _text(self, choice: Choice) -> str | None:
        return choice.text

    def _note(self, chunk: Chunk) -> None:
        if chunk.prompt_token_ids is not None:
            self._check_echo(chunk.prompt_token_ids)
        if chunk.usage is not None:
            self._counted = chunk.usage.completion_tokens
        if chunk.system_fingerprint is not None:
            self.facts["system_fingerprint"] = Fact(value=chunk.system_fingerprint)
        if chunk.forkgate_facts is not None:
            for name, value in chunk.forkgate_facts.items():
                self.facts[name] = Fact(value=value)

    def _choice(self, choice: Choice, received_s: float, steps: list[Step]) -> None:
        if choice.index != 0:
            raise EngineInvalid(self._where, f"choice {choice.index} came where one choice was asked for")
        if choice.prompt_token_ids is not None:
            self._check_echo(choice.prompt_token_ids)
        token_ids, text = choice.token_ids, self._text(choice)
        if token_ids:
            if self._finish_reason is not None:
                raise EngineInvalid(self._where, "tokens came after the finish reason")
            self._tokens += len(token_ids)
            if self._depth:
                self._steps_with_logprobs(choice.logprobs, token_ids, text, received_s, steps)
            else:
                self._steps_alone(token_ids, text, received_s, steps)
        elif token_ids is None and text:
            raise EngineInvalid(self._where, f"text came without token_ids: {self.no_ids}")
        if choice.finish_reason is not None:
            self._finish_reason = choice.finish_reason
            self._stop_reason = None if choice.stop_reason is None else str(choice.stop_reason)

    def _steps_with_logprobs(
        self, raw: msgspec.Raw, token_ids: list[int], text: str | None, received_s: float, steps: list[Step]
    ) -> None:
        given = bytes(raw)
        if given == b"null":
            raise EngineInvalid(self._where, f"logprobs are missing at token {self._tokens}")
        try:
            self._steps_of(self._tops(given, token_ids), token_ids, text, received_s, steps)
        except (UnsoundLogprobs, msgspec.DecodeError, RecursionError, TypeError) as error:
            raise EngineInvalid(self._where, f"logprobs near token {self._tokens}: {error}") from error

    def _steps_of(
        self, tops: Tops, token_ids: list[int], text: str | None, received_s: float, steps: list[Step]
    ) -> None:
        """Steps of tokens whose logprobs are these. Raises :class:`~engines.topk.UnsoundLogprobs`."""
        last = len(token_ids) - 1
        for place, (logprob, ids, values) in enumerate(tops):
            if len(ids) < self._depth:
                raise UnsoundLogprobs(f"{self._depth} top logprobs were asked for and {len(ids)} came")
            top_ids, top_values = ordered(ids, values)
            # The text is of the chunk, known with its last token.
            told = text if place == last else None
            steps.append(Step(token_ids[place], own(logprob), top_ids, top_values, received_s, told))

    def _steps_alone(
        self, token_ids: list[int], text: str | None, received_s: float, steps: list[Step]
    ) -> None:
        last = len(token_ids) - 1
        for place, token_id in enumerate(token_ids):
            steps.append(Step(token_id, None, (), (), received_s, text if place == last else None))

    def _check_echo(self, echo: list[int]) -> None:
        self._echo = tuple(echo)
        if self._prompt is not None and self._echo != self._prompt:
            raise EngineInvalid(
                self._where,
                f"it ran another prompt: {len(echo)} token IDs came back for {len(self._prompt)} sent",
            )


class CompletionDecoder(StreamDecoder):
    """``/v1/completions`` with ``return_token_ids`` and ``return_tokens_as_token_ids``."""

    def feed(self, payloads: list[bytes], received_s: float) -> list[Step]:
        # An event in the middle of an answer holds one token and nothing else. That case is written out flat
        # here, at half the cost; whatever looks different in any way takes the general road.
        if not self._depth or self._finish_reason is not None:
            return super().feed(payloads, received_s)
        steps: list[Step] = []
        for place, payload in enumerate(payloads):
            step = self._plain_step(payload, received_s)
            if step is None:
                steps += super().feed([payload], received_s)
                if self._finish_reason is not None or self._done:
                    steps += super().feed(payloads[place + 1 :], received_s)
                    break
            else:
                self._tokens += 1
                steps.append(step)
        return steps

    def _plain_step(self, payload: bytes, received_s: float) -> Step | None:
        """The step of an event that holds one sound token and nothing else; None for any other event."""
        bare = payload.replace(_NAME, b'"')
        try:
            chunk = _bare_chunk(bare)
            (choice,) = chunk.choices
            (token_id,) = choice.token_ids  # type: ignore[misc]
            (logprob,) = choice.logprobs.token_logprobs  # type: ignore[union-attr]
            (top,) = choice.logprobs.top_logprobs  # type: ignore[union-attr,misc]
            if (
                choice.finish_reason is not None
                or choice.prompt_token_ids is not None
                or choice.index
                or chunk.error is not None
                or chunk.prompt_token_ids is not None
                or chunk.usage is not None
                or chunk.forkgate_facts is not None
                or (chunk.system_fingerprint is not None and "system_fingerprint" not in self.facts)
                or len(top) < self._depth
                or len(payload) - len(bare) != (1 + len(top)) * _PREFIX_BYTES
            ):
                return None
            top_ids, top_values = ordered_unique(tuple(top), [*top.values()])
            return Step(token_id, own(logprob), top_ids, top_values, received_s, choice.text)
        except (msgspec.DecodeError, RecursionError, UnsoundLogprobs, TypeError, ValueError, AttributeError):
            return None

    def _decode(self, payload: bytes) -> Chunk:
        return _completion_chunk(payload)

    def _tops(self, given: bytes, token_ids: list[int]) -> Tops:
        bare = given.replace(_NAME, b'"')
        told = _completion_logprobs(bare)
        values, tops = told.token_logprobs, told.top_logprobs
        if len(values) != len(token_ids) or tops is None or len(tops) != len(values):
            raise UnsoundLogprobs(f"{len(token_ids)} tokens came with logprobs for {len(values)}")
        # One name in `tokens` for each token, and one for each entry of each top-k.
        names = len(values) + sum(map(len, tops))
        if len(given) - len(bare) != names * _PREFIX_BYTES:
            raise UnsoundLogprobs("tokens are named by text, the engine ignores return_tokens_as_token_ids")
        return [(value, [*top], [*top.values()]) for value, top in zip(values, tops, strict=True)]


class ChatDecoder(StreamDecoder):
    """``/v1/chat/completions``: the client's own request, with IDs asked back."""

    def _decode(self, payload: bytes) -> Chunk:
        return _chat_chunk(payload)

    def _text(self, choice: Choice) -> str | None:
        assert isinstance(choice, _ChatChoice)
        return None if choice.delta is None else choice.delta.content

    def _tops(self, given: bytes, token_ids: list[int]) -> Tops:
        content = _chat_logprobs(given.replace(_NAME, b'"')).content
        if [one.token for one in content] != token_ids:
            raise UnsoundLogprobs(f"logprobs are of other tokens than the {len(token_ids)} IDs beside them")
        return [
            (one.logprob, [top.token for top in one.top_logprobs], [_finite(top) for top in one.top_logprobs])
            for one in content
        ]


class GenerateDecoder(StreamDecoder):
    """vLLM's ``/inference/v1/generate``."""

    def _decode(self, payload: bytes) -> Chunk:
        return _completion_chunk(payload)

    def _tops(self, given: bytes, token_ids: list[int]) -> Tops:
        content = _generate_logprobs(given).content
        if [one.token_id for one in content] != token_ids:
            raise UnsoundLogprobs(f"logprobs are of other tokens than the {len(token_ids)} IDs beside them")
        return [
            (
                one.logprob,
                [top.token_id for top in one.top_logprobs],
                [_finite(top) for top in one.top_logprobs],
            )
            for one in content
        ]


def _finite(entry: _Entry | _ChatEntry) -> float:
    if entry.logprob is None:
        raise UnsoundLogprobs("an entry of the top logprobs has none")
    return entry.logprob


def _told(error: Any) -> str:
    return str(error.get("message", error) if isinstance(error, dict) else error)
