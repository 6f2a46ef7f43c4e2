"""Answers of SGLang's ``/generate``, decoded into steps. Names checked against SGLang 0.5.23.

An event holds ``text``, ``output_ids`` and ``meta_info``, *all tokens so far* in each event; a server started
with ``--incremental-streaming-output`` sends only what is new. ``/server_info`` says which, and the decoder
checks that the stream agrees: a list that does not begin with what it held before is refused.

``meta_info.output_token_logprobs`` is one ``[logprob, token_id, text]`` a token, ``output_top_logprobs`` a
list of such entries a token. SGLang writes NaN as null.
"""

from __future__ import annotations

from typing import Any

import msgspec

from comparator.records import Fact, Step
from engines.base import EngineInvalid, EngineRefused, EngineUnavailable, Finish
from engines.sse import DONE
from engines.topk import UnsoundLogprobs
from engines.wire import StreamDecoder, Tops

_Entry = tuple[float | None, int, str | None]


class _MetaInfo(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int | None = None
    finish_reason: dict[str, Any] | None = None
    output_token_logprobs: list[_Entry] | None = None
    output_top_logprobs: list[list[_Entry] | None] | None = None
    weight_version: str | None = None


class _Event(msgspec.Struct):
    text: str | None = None
    output_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    meta_info: _MetaInfo | None = None
    error: Any = None


_event = msgspec.json.Decoder(_Event).decode


class SglangDecoder(StreamDecoder):
    """Events of one ``/generate`` stream.

    Args:
        incremental: each event holds only what is new.
    """

    def __init__(self, where: str, *, depth: int, prompt: tuple[int, ...], incremental: bool) -> None:
        super().__init__(where, depth=depth, prompt=prompt)
        self._sent = prompt
        self._incremental = incremental
        self._ids: list[int] = []
        self._told = ""

    def feed(self, payloads: list[bytes], received_s: float) -> list[Step]:
        """See :meth:`engines.wire.StreamDecoder.feed`.

        Raises:
            EngineRefused: the stream reports that the request itself is at fault.
        """
        steps: list[Step] = []
        for payload in payloads:
            if payload == DONE:
                self._done = True
            if self._done:
                break
            try:
                event = _event(payload)
            except (msgspec.DecodeError, RecursionError) as error:
                raise EngineInvalid(self._where, f"an event is not what was asked for: {error}") from error
            self._read(event, received_s, steps)
        return steps

    def finish(self) -> Finish:
        if self._finish_reason is not None and self._counted is None:
            raise EngineInvalid(self._where, "meta_info held no completion_tokens: this is not SGLang")
        return super().finish()

    def _read(self, event: _Event, received_s: float, steps: list[Step]) -> None:
        if event.error is not None:
            self._fail(event.error, "the stream reports an error")
        if event.meta_info is None:
            raise EngineInvalid(self._where, "an event holds no meta_info: this is not SGLang's /generate")
        self._check_prompt(event, event.meta_info)
        reason = event.meta_info.finish_reason
        if reason is not None and reason.get("type") == "abort":
            self._fail(reason, "the engine aborted the request")
        if event.output_ids is None:
            raise EngineInvalid(
                self._where, "an event holds no output_ids, start SGLang with a version that tells them (0.5)"
            )
        self._take(event, event.output_ids, event.meta_info, received_s, steps)
        if event.meta_info.weight_version is not None:
            self.facts["weight_version"] = Fact(value=event.meta_info.weight_version)
        if reason is not None:
            self._counted = event.meta_info.completion_tokens
            self._finish_reason = str(reason.get("type"))
            matched = reason.get("matched")
            self._stop_reason = None if matched is None else str(matched)

    def _take(
        self, event: _Event, ids: list[int], meta: _MetaInfo, received_s: float, steps: list[Step]
    ) -> None:
        """The tokens of this event that no earlier one held."""
        seen = 0 if self._incremental else len(self._ids)
        if not self._incremental and ids[:seen] != self._ids:
            raise EngineInvalid(
                self._where,
                f"after {seen} tokens came a list that does not begin with them: does the stream follow what "
                "/server_info says of incremental_streaming_output?",
            )
        fresh = ids[seen:]
        if fresh and self._finish_reason is not None:
            raise EngineInvalid(self._where, "tokens came after the finish reason")
        text = self._fresh_text(event.text)
        if not fresh:
            return
        self._ids += fresh
        self._tokens += len(fresh)
        if not self._depth:
            self._steps_alone(fresh, text, received_s, steps)
            return
        try:
            tops = _tops_of(meta, fresh, seen, seen + len(fresh))
            self._steps_of(tops, fresh, text, received_s, steps)
        except UnsoundLogprobs as error:
            raise EngineInvalid(self._where, f"logprobs near token {self._tokens}: {error}") from error

    def _fresh_text(self, text: str | None) -> str | None:
        if text is None or self._incremental:
            return text
        # The text of an unfinished character may be rewritten; tokens are the evidence, not the text.
        fresh = text[len(self._told) :] if text.startswith(self._told) else None
        self._told = text
        return fresh

    def _check_prompt(self, event: _Event, meta: _MetaInfo) -> None:
        if event.prompt_token_ids is not None:
            self._check_echo(event.prompt_token_ids)
        if meta.prompt_tokens != len(self._sent):
            raise EngineInvalid(
                self._where,
                f"it ran another prompt: it counts {meta.prompt_tokens} tokens of {len(self._sent)} sent",
            )

    def _fail(self, told: Any, words: str) -> None:
        """An error inside a 200 answer, with the blame that its status code gives."""
        told = told if isinstance(told, dict) else {"message": told}
        message = f"{words}: {told.get('message') or told}"
        status = told.get("code", told.get("status_code"))
        if isinstance(status, int) and 400 <= status < 500:
            raise EngineRefused(self._where, message, status)
        raise EngineUnavailable(self._where, message)

    def _decode(self, payload: bytes) -> Any:
        raise NotImplementedError  # events have no choices here; feed reads them whole

    def _tops(self, given: bytes, token_ids: list[int]) -> Any:
        raise NotImplementedError


def _tops_of(meta: _MetaInfo, ids: list[int], start: int, end: int) -> Tops:
    """Logprobs of the tokens from ``start`` to ``end``. Raises :class:`UnsoundLogprobs`."""
    if meta.output_token_logprobs is None or meta.output_top_logprobs is None:
        raise UnsoundLogprobs("output_token_logprobs or output_top_logprobs is missing")
    own, tops = meta.output_token_logprobs, meta.output_top_logprobs
    if len(own) < end or len(tops) < end:
        raise UnsoundLogprobs(
            f"{end} tokens came with {len(own)} output_token_logprobs and {len(tops)} output_top_logprobs"
        )
    found: Tops = []
    for place, token_id in enumerate(ids, start):
        logprob, named, _ = own[place]
        if named != token_id:
            raise UnsoundLogprobs(f"token {place} is {token_id}, its output_token_logprobs are of {named}")
        entries = tops[place] or []
        values = [value for value, _, _ in entries if value is not None]
        if len(values) != len(entries):
            raise UnsoundLogprobs("an entry of output_top_logprobs is null: the engine computed NaN")
        found.append((logprob, [one for _, one, _ in entries], values))
    return found
