"""A gRPC server that answers as vLLM 0.32's does, or lies in one chosen way. No model: tokens are a hash.

Its messages are the published ones (``smg-grpc-proto``), so a field that does not exist cannot be used here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import zipfile
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2, vllm_engine_pb2_grpc

VOCABULARY = 49152
MAX_LOGPROBS = 20


class FakeVllmGrpc(vllm_engine_pb2_grpc.VllmEngineServicer):  # type: ignore[misc]
    """``lies`` names what it does wrong; see the uses of :meth:`lies_about`."""

    def __init__(self, *lies: str, pause_s: float = 0.0) -> None:
        self.lies = set(lies)
        self.pause_s = pause_s
        self.requests: list[Any] = []
        self.metadata: list[dict[str, str]] = []
        self.running = 0
        self.aborted = 0
        self.url = ""
        self._calls = 0
        self._seen: set[tuple[int, ...]] = set()

    def lies_about(self, what: str) -> bool:
        return what in self.lies

    @contextlib.asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[FakeVllmGrpc]:
        server = grpc.aio.server()
        vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(self, server)
        port = server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        self.url = f"http://127.0.0.1:{port}"
        try:
            yield self
        finally:
            await server.stop(grace=None)

    async def GetModelInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        return vllm_engine_pb2.GetModelInfoResponse(
            model_path="model",
            served_model_name="m",
            max_context_length=2048,
            vocab_size=VOCABULARY,
            default_sampling_params_json="{" if self.lies_about("defaults are no JSON") else '{"top_p": 0.9}',
        )

    async def GetServerInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        return vllm_engine_pb2.GetServerInfoResponse(model_dtype="torch.float32", kv_cache_dtype="auto")

    async def GetLoads(self, request: Any, context: Any) -> Any:  # noqa: N802
        load = vllm_engine_pb2.SchedulerLoad(num_running_reqs=self.running, token_usage=0.25)
        ranks = [] if self.lies_about("no load") else [load]
        return vllm_engine_pb2.GetLoadsResponse(version="0.32.0", dp_rank_count=len(ranks), loads=ranks)

    async def GetTokenizer(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        if self.lies_about("no tokenizer"):
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no tokenizer here")
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("tokenizer.json", "{}")
            archive.writestr("tokenizer_config.json", json.dumps({"chat_template": "{{ messages }}"}))
        data = packed.getvalue()
        for start in range(0, len(data), 64):
            yield common_pb2.GetTokenizerChunk(data=data[start : start + 64])

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        params = request.sampling_params
        limit = 3 if self.lies_about("max 3 logprobs") else MAX_LOGPROBS
        if params.logprobs > limit:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{params.logprobs} logprobs: over {limit}")
        if self.lies_about("crashes"):
            await context.abort(grpc.StatusCode.INTERNAL, "EngineCore died")
        self.running += 1
        try:
            for message in self._messages(request):
                yield message
                await asyncio.sleep(self.pause_s)
        except (asyncio.CancelledError, GeneratorExit):
            self.aborted += 1
            raise
        finally:
            if not self.lies_about("runs on"):
                self.running -= 1

    def _messages(self, request: Any) -> Iterator[Any]:
        params, prompt = request.sampling_params, tuple(request.tokenized.input_ids)
        self._calls += 1
        cached = len(prompt) - 1 if self.lies_about("warm") and prompt in self._seen else 0
        self._seen.add(prompt)
        told = {
            "prompt_tokens": len(prompt) - self.lies_about("another length"),
            "cached_tokens": cached,
        }
        count, chunk = params.max_tokens, None
        for place in range(count):
            chunk = vllm_engine_pb2.GenerateStreamChunk(**told)
            self._fill(chunk, params, prompt, place)
            if self.lies_about("breaks off") and place == 1:
                return
            yield vllm_engine_pb2.GenerateResponse(chunk=chunk)
        assert chunk is not None
        yield vllm_engine_pb2.GenerateResponse(
            complete=vllm_engine_pb2.GenerateComplete(
                output_ids=[7] if self.lies_about("loses a chunk") else chunk.token_ids,
                finish_reason="abort" if self.lies_about("gives up") else "length",
                completion_tokens=1,
                **told,
            )
        )

    def _fill(self, chunk: Any, params: Any, prompt: tuple[int, ...], place: int) -> None:
        seed = params.seed if params.HasField("seed") else None
        if self.lies_about("ignores seed"):
            seed = self._calls
        if self.lies_about("fixed seed") or params.temperature == 0:
            seed = 0
        digest = hashlib.blake2b(f"{seed}/{place}/{prompt}".encode(), digest_size=2).digest()
        drawn = 2000 + int.from_bytes(digest, "big") % 40_000
        if self.lies_about("beyond the vocabulary"):
            drawn = VOCABULARY
        ids = [] if self.lies_about("drops ids") else [drawn]
        chunk.token_ids.extend(ids)
        chunk.completion_tokens = 1
        if place == 0 and params.HasField("prompt_logprobs") and not self.lies_about("no echo"):
            echo = (*prompt[:-1], 7) if self.lies_about("another prompt") else prompt
            chunk.input_logprobs.token_ids.extend(echo)
        depth = params.logprobs
        if not depth or self.lies_about("drops logprobs"):
            return
        chunk.output_logprobs.token_ids.append(drawn + self.lies_about("of another token"))
        chunk.output_logprobs.token_logprobs.append(
            float("nan") if self.lies_about("nan") and place == 2 else -0.5
        )
        top = [(drawn, -0.5), *((1000 + one, -3.5 - one) for one in range(depth - 1))]
        if self.lies_about("shallow"):
            top = top[:1]
        if self.lies_about("nan in the top"):
            top[1] = (top[1][0], float("nan"))
        if self.lies_about("unsorted"):
            top[1:] = reversed(top[1:])
        chunk.output_logprobs.top_logprobs.append(
            vllm_engine_pb2.TopLogProbs(
                token_ids=[token_id for token_id, _ in top], values=[value for _, value in top]
            )
        )
