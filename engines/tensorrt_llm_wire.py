"""Streams of ``trtllm-serve``'s ``/v1/completions`` with ``detokenize: false``, decoded into steps.

The events are OpenAI's, with ``token_ids`` beside an empty ``text``. What differs: no prompt comes back but
its length, in the usage of the last event, and ``top_logprobs`` are named by text.
"""

from __future__ import annotations

from typing import ClassVar

from engines.base import EngineInvalid, Finish
from engines.topk import UnsoundLogprobs
from engines.wire import Choice, Chunk, CompletionDecoder, Tops


class TensorRtDecoder(CompletionDecoder):
    """One answer."""

    no_ids: ClassVar[str] = "the engine ignores detokenize: false, upgrade it"

    def finish(self) -> Finish:
        if self._finish_reason is not None and self._counted is None:
            raise EngineInvalid(
                self._where, "no usage came, so nothing shows which prompt ran: it ignores stream_options"
            )
        return super().finish()

    def _text(self, choice: Choice) -> str | None:
        return choice.text or None

    def _note(self, chunk: Chunk) -> None:
        super()._note(chunk)
        sent = self._prompt
        if chunk.usage is not None and sent is not None and chunk.usage.prompt_tokens != len(sent):
            raise EngineInvalid(
                self._where,
                f"it ran another prompt: it counts {chunk.usage.prompt_tokens} tokens of {len(sent)} sent",
            )

    def _tops(self, given: bytes, token_ids: list[int]) -> Tops:
        if b'"token_id:' not in given:
            raise UnsoundLogprobs(
                "top_logprobs name tokens by their text, in which different tokens look alike, and no IDs"
            )
        return super()._tops(given, token_ids)
