"""The answers' JSON: OpenAI's shapes with vLLM's token-ID extensions, as plain dictionaries.

One :class:`Writer` belongs to one request. It is fed the engine's events in order and gives the chunks of
a stream, or at the end the one answer; both are built from the same pieces, so they cannot disagree.
"""

from __future__ import annotations

import time
from typing import Any

from engines.reference.job import Event
from engines.reference.model import LoadedModel
from engines.reference.requests import ChatRequest, CompletionRequest, wants_logprobs
from engines.reference.sampling import LOGPROBS_MODE, PROCESSOR_ORDER


class Writer:
    """Builds the answer of one completion or chat request."""

    def __init__(
        self,
        *,
        answer_id: str,
        request: CompletionRequest | ChatRequest,
        model_name: str,
        model: LoadedModel,
        prompt: tuple[int, ...],
        seed: int,
        fingerprint: str,
    ) -> None:
        self._request = request
        self._chat = isinstance(request, ChatRequest)
        self._model = model
        self._prompt = prompt
        self._seed = seed
        self._events: list[Event] = []
        self._offset = 0
        self._head = {
            "id": answer_id,
            "object": ("chat.completion" if self._chat else "text_completion"),
            "created": int(time.time()),
            "model": model_name,
            "system_fingerprint": fingerprint,
        }

    def opening(self) -> dict[str, Any] | None:
        """The chunk that a chat stream begins with, before any token."""
        if not self._chat:
            return None
        return self._with_prompt_ids(
            self._chunk({"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None})
        )

    def chunk(self, event: Event) -> dict[str, Any]:
        """The stream chunk of one token."""
        first = not self._events
        self._events.append(event)
        choice: dict[str, Any] = {"index": 0}
        if self._chat:
            choice["delta"] = {"content": event.text}
        else:
            choice["text"] = event.text
        choice["logprobs"] = self._logprobs([event])
        choice["finish_reason"] = event.finish_reason
        choice["stop_reason"] = event.stop_reason
        if self._request.return_token_ids:
            choice["token_ids"] = [event.token_id]
        if first and not self._chat:
            self._with_prompt_ids(choice)
        chunk = self._chunk(choice)
        if event.finish_reason is not None and self._request.forkgate_facts:
            chunk["forkgate_facts"] = self._facts()
        return chunk

    def closing(self) -> dict[str, Any] | None:
        """The usage chunk, where the client asked for one."""
        options = self._request.stream_options
        if options is None or not options.include_usage:
            return None
        return {**self._chunk(None), "usage": self._usage()}

    def whole(self, events: list[Event]) -> dict[str, Any]:
        """The one answer of a request that does not stream."""
        self._events = events
        text = "".join(event.text for event in events)
        choice: dict[str, Any] = {"index": 0}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        choice["logprobs"] = self._logprobs(events)
        choice["finish_reason"] = events[-1].finish_reason
        choice["stop_reason"] = events[-1].stop_reason
        if self._request.return_token_ids:
            choice["token_ids"] = [event.token_id for event in events]
        answer = {**self._head, "choices": [choice], "usage": self._usage()}
        self._with_prompt_ids(answer if self._chat else choice)
        if self._request.forkgate_facts:
            answer["forkgate_facts"] = self._facts()
        return answer

    def _chunk(self, choice: dict[str, Any] | None) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        return {**self._head, "object": kind, "choices": [] if choice is None else [choice]}

    def _with_prompt_ids(self, part: dict[str, Any]) -> dict[str, Any]:
        # vLLM's places for it: the chunk of a chat, the choice of a completion.
        if self._request.return_token_ids:
            part["prompt_token_ids"] = self._prompt
        return part

    def _usage(self) -> dict[str, int]:
        tokens = len(self._events)
        return {
            "prompt_tokens": len(self._prompt),
            "completion_tokens": tokens,
            "total_tokens": len(self._prompt) + tokens,
        }

    def _facts(self) -> dict[str, Any]:
        environment = self._model.identity
        return {
            "environment_digest": environment.digest,
            "artifact_digest": self._model.artifact["digest"],
            "dtype": environment.fields["precision.dtype"],
            "adapter": "none",
            "seed": self._seed,
            "processor_order": PROCESSOR_ORDER,
            "logprobs_mode": LOGPROBS_MODE,
            "padding": "none",
            "batch_size": [event.batch_size for event in self._events],
            "batch_place": [event.batch_place for event in self._events],
        }

    def _logprobs(self, events: list[Event]) -> dict[str, Any] | None:
        if not wants_logprobs(self._request):
            return None
        if self._chat:
            return {"content": [self._chat_entry(event) for event in events]}
        names = [[self._name(one) for one in event.top_ids] for event in events]
        offsets = []
        for event in events:
            offsets.append(self._offset)
            self._offset += len(event.text)
        return {
            "tokens": [self._name(event.token_id) for event in events],
            "token_logprobs": [event.logprob for event in events],
            "top_logprobs": [
                dict(zip(row, event.top_logprobs, strict=True))
                for row, event in zip(names, events, strict=True)
            ],
            "text_offset": offsets,
        }

    def _chat_entry(self, event: Event) -> dict[str, Any]:
        def entry(token_id: int | None, logprob: float | None) -> dict[str, Any]:
            name = self._name(token_id)
            return {"token": name, "logprob": logprob, "bytes": list(name.encode())}

        top = zip(event.top_ids, event.top_logprobs, strict=True)
        return {**entry(event.token_id, event.logprob), "top_logprobs": [entry(*one) for one in top]}

    def _name(self, token_id: int | None) -> str:
        if self._request.return_tokens_as_token_ids:
            return f"token_id:{token_id}"
        name: str = self._model.tokenizer.decode([token_id])
        return name


def error(
    message: str, *, kind: str, param: str | None = None, code: str | int | None = None
) -> dict[str, Any]:
    """OpenAI's error shape."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
