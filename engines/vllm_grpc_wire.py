"""What goes over vLLM's gRPC ``Generate`` and what comes back, without a channel.

The messages are those that ``smg-grpc-proto`` publishes (Apache-2.0), the very package that vLLM's own gRPC
server imports; it is an extra, ``forkgate[vllm-grpc]``, so nothing of it is copied here. What shapes this
module, checked against 0.4.28 and the servicer 0.14.1:

- Most sampling parameters are plain proto3 scalars: unset is 0, and the servicer takes a 0 of ``top_p`` and
  of ``repetition_penalty`` for 1. So each is set. ``seed`` is an int32.
- There is no field for a cache salt, a priority, or vLLM's other parameters: a prompt that needs one of the
  latter is refused.
- The closing message repeats the last chunk's IDs; counting them again would double the last token.
- A top-k list holds the drawn token first and squeezes it into the k-th place where it stands outside.
- ``input_logprobs`` (with ``prompt_logprobs``) name the prompt's IDs: the only proof of which prompt ran.
"""

from __future__ import annotations

import importlib
import math
from typing import Any, NamedTuple

from comparator.records import Fact, Sampling, Step
from engines.base import EngineError, EngineInvalid, EngineRefused, EngineUnavailable, Finish
from engines.topk import UnsoundLogprobs, ordered, own

_SEED_LIMIT = 1 << 31
_DELIVERY = frozenset(
    ["include_stop_str_in_output", "skip_special_tokens", "spaces_between_special_tokens"]
)  # extras that have a field


class Protos(NamedTuple):
    """The generated modules."""

    engine: Any
    """``vllm_engine_pb2``."""
    services: Any
    """``vllm_engine_pb2_grpc``."""
    common: Any
    """``common_pb2``."""


def protos(where: str) -> Protos:
    """The published messages.

    Raises:
        EngineError: the extra is not installed, or does not fit the installed protobuf.
    """
    try:
        names = ("vllm_engine_pb2", "vllm_engine_pb2_grpc", "common_pb2")
        return Protos(*(importlib.import_module(f"smg_grpc_proto.generated.{name}") for name in names))
    except (ImportError, RuntimeError) as error:  # protobuf's refusal of an older runtime is a RuntimeError
        raise EngineError(
            where,
            f"engine.kind vllm_grpc needs the published messages, pip install 'forkgate[vllm-grpc]': {error}",
        ) from error


def request_of(
    where: str, messages: Protos, request_id: str, token_ids: tuple[int, ...], sampling: Sampling
) -> Any:
    """One streamed ``GenerateRequest``, every parameter set.

    Raises:
        EngineRefused: a parameter that the messages have no field for, or a value that its field cannot hold.
    """
    strange = sorted(sampling.extra.keys() - _DELIVERY)
    if strange:
        raise EngineRefused(where, f"{', '.join(strange)}: vLLM's gRPC messages have no such field", 400)
    if not 0 <= sampling.seed < _SEED_LIMIT:
        raise EngineRefused(where, f"seed {sampling.seed}: the field is an int32", 400)
    try:
        params = messages.engine.SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            frequency_penalty=sampling.frequency_penalty,
            presence_penalty=sampling.presence_penalty,
            repetition_penalty=sampling.repetition_penalty,
            max_tokens=sampling.max_tokens,
            min_tokens=sampling.min_tokens,
            stop=sampling.stop,
            stop_token_ids=sampling.stop_token_ids,
            ignore_eos=sampling.ignore_eos,
            n=1,
            seed=sampling.seed,
            logit_bias={int(token_id): bias for token_id, bias in sampling.logit_bias.items()},
            **{"skip_special_tokens": True, "spaces_between_special_tokens": True, **sampling.extra},
        )
        if sampling.logprobs:
            params.logprobs = sampling.logprobs
        return messages.engine.GenerateRequest(
            request_id=request_id,
            tokenized=messages.engine.TokenizedInput(input_ids=token_ids),
            sampling_params=params,
            stream=True,
        )
    except (TypeError, ValueError) as error:
        raise EngineRefused(where, f"no field can hold this prompt: {error}", 400) from error


class GrpcDecoder:
    """Messages of one streamed answer to steps.

    Args:
        where: the endpoint, for errors.
        depth: top-k asked for, 0 for no logprobs.
        prompt: the token IDs sent.
        vocabulary: IDs from here on are another model's; None where it is not known.
    """

    def __init__(self, where: str, *, depth: int, prompt: tuple[int, ...], vocabulary: int | None) -> None:
        self._where = where
        self._depth = depth
        self._prompt = prompt
        self._vocabulary = vocabulary
        self._tokens = 0
        self._last_ids: list[int] = []
        self._echo: tuple[int, ...] | None = None
        self._complete: Any = None

    def feed(self, message: Any, received_s: float) -> list[Step]:
        """Steps of one ``GenerateResponse``.

        Raises:
            EngineInvalid: token IDs or logprobs missing or unsound, another prompt's echo.
        """
        kind = message.WhichOneof("response")
        if kind is None:
            raise EngineInvalid(self._where, "a message held neither a chunk nor the end of the answer")
        part = getattr(message, kind)
        if part.index:
            raise EngineInvalid(self._where, f"choice {part.index} came where one choice was asked for")
        if part.prompt_tokens != len(self._prompt):
            raise EngineInvalid(
                self._where,
                f"it ran another prompt: {part.prompt_tokens} tokens, and {len(self._prompt)} were sent",
            )
        if self._complete is not None:
            raise EngineInvalid(self._where, "a message came after the end of the answer")
        if part.HasField("input_logprobs"):
            self._check_echo(tuple(part.input_logprobs.token_ids))
        if kind == "complete":
            self._end(part)
            return []
        ids = list(part.token_ids)
        if part.completion_tokens != len(ids):
            raise EngineInvalid(
                self._where, f"the engine counted {part.completion_tokens} tokens and gave IDs for {len(ids)}"
            )
        if not ids:
            return []
        beyond = [one for one in ids if self._vocabulary is not None and one >= self._vocabulary]
        if beyond:
            raise EngineInvalid(
                self._where, f"token ID {beyond[0]} stands outside the vocabulary of {self._vocabulary}"
            )
        self._tokens += len(ids)
        self._last_ids = ids
        return self._steps(part, ids, received_s)

    def finish(self) -> Finish:
        """What the whole stream said.

        Raises:
            EngineUnavailable: it broke off before its closing message, or the engine gave up.
        """
        end = self._complete
        if end is None:
            raise EngineUnavailable(self._where, f"the stream ended after {self._tokens} tokens, unfinished")
        if end.finish_reason not in ("stop", "length"):
            raise EngineUnavailable(
                self._where, f"the answer ended as {end.finish_reason!r} after {self._tokens} tokens"
            )
        stop = end.WhichOneof("matched_stop")
        return Finish(
            finish_reason=end.finish_reason,
            stop_reason=None if stop is None else str(getattr(end, stop)),
            prompt_token_ids=self._echo,
            facts={"cached_tokens": Fact(value=end.cached_tokens)},
        )

    def _end(self, part: Any) -> None:
        # vLLM repeats the last chunk's IDs here. An answer whose end names others has lost a chunk.
        repeated = list(part.output_ids)
        if repeated and repeated != self._last_ids:
            raise EngineInvalid(
                self._where,
                f"the answer ends with {repeated}, and its last chunk held {self._last_ids}: one is missing",
            )
        self._complete = part

    def _steps(self, part: Any, ids: list[int], received_s: float) -> list[Step]:
        if not self._depth:
            return [Step(token_id, None, (), (), received_s) for token_id in ids]
        told = part.output_logprobs
        if list(told.token_ids) != ids or not len(told.token_logprobs) == len(told.top_logprobs) == len(ids):
            raise EngineInvalid(
                self._where, f"logprobs are missing, or of other tokens, near token {self._tokens}"
            )
        steps = []
        try:
            for token_id, logprob, top in zip(ids, told.token_logprobs, told.top_logprobs, strict=True):
                if len(top.token_ids) != len(top.values) or len(top.token_ids) < self._depth:
                    raise UnsoundLogprobs(
                        f"{self._depth} top logprobs were asked for, {len(top.values)} came"
                    )
                if any(math.isnan(value) for value in top.values):  # JSON has none, a protobuf float does
                    raise UnsoundLogprobs("a top logprob is NaN")
                top_ids, values = ordered(list(top.token_ids), list(top.values))
                steps.append(Step(token_id, own(logprob), top_ids, values, received_s))
        except UnsoundLogprobs as error:
            raise EngineInvalid(self._where, f"logprobs near token {self._tokens}: {error}") from error
        return steps

    def _check_echo(self, echo: tuple[int, ...]) -> None:
        if echo != self._prompt:
            raise EngineInvalid(
                self._where, "it ran another prompt: other token IDs came back than were sent"
            )
        self._echo = echo
