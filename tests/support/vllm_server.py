"""Real vLLM servers, one a precision, and what they answered."""

from __future__ import annotations

import asyncio
import enum
import os
import pathlib
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import msgspec

from comparator.records import Arm, CaptureId, Exchange, ExchangeId, Fact, Outcome, Sampling, Timing
from engines import Call, CallKind, EngineOptions, Finish, Prompt, Steps, open_engine
from tests.support.ports import free_port

START_S = 900.0
MODEL = "smollm2"
TOKENS = 48
BATCHED_TOKENS = 512
"""Of one forward pass: more than any long prompt alone, less than two."""
PROMPTS = (
    "What is the capital of France?",
    "Explain why the sky is blue to a child.",
    "Write a short poem about the sea in winter.",
    "List five uses for an old newspaper.",
    "How do bees find their way home?",
    "Tell me a story about a lighthouse keeper.",
    "What is the difference between a lake and a pond?",
    "Describe the taste of a lemon.",
    "Give me three tips for learning a language.",
    "Why do cats purr?",
    "Write a letter to a friend who moved away.",
    "What happens when water freezes?",
    "Name some inventions of the nineteenth century.",
    "How is bread made?",
    "What would you pack for a week in the mountains?",
    "Tell me about the moons of Jupiter.",
)


LONG_PROMPTS = tuple(" ".join((*PROMPTS[place:], *PROMPTS, *PROMPTS[:place])) for place in range(0, 16, 2))


class Ask(enum.Enum):
    """What is asked of a server."""

    SHORT = "short"  # PROMPTS, 48 tokens each
    LONG = "long"  # LONG_PROMPTS, a few tokens each
    TIED = "tied"
    """As LONG, with a logit bias that lifts the 2nd to 20th choice of each first token level with the first,
    to within the rounding of the sums: whatever moves the logits at all most likely tips it."""


@dataclass(frozen=True)
class _Server:
    url: str
    process: subprocess.Popen[bytes]
    log: IO[bytes]


class Vllm:
    """One server a precision, started when first asked for and kept to the end (about 1.3 GB each). Answers
    are kept too: each is generated once however many tests read it."""

    def __init__(
        self,
        python: str,
        model_dir: pathlib.Path,
        *flags: str,
        variables: Mapping[str, str] | None = None,
        folder: pathlib.Path | None = None,
    ) -> None:
        """Args:
        flags: more of them, for every server.
        variables: of the environment, likewise.
        folder: where it is started. ``python -m`` imports from there before anything that is installed.
        """
        self._python = python
        self._flags = flags
        self._variables = variables or {}
        self._folder = folder
        self.model_dir = model_dir
        self._servers: dict[str, _Server] = {}
        self._answers: dict[tuple[str, Ask, int, int], list[Exchange]] = {}

    def url(self, dtype: str) -> str:
        """Base URL of the server of this precision."""
        if dtype not in self._servers:
            self._servers[dtype] = self._start(dtype)
        return self._servers[dtype].url

    def process_id(self, dtype: str) -> int:
        """PID of the server of this precision."""
        self.url(dtype)
        return self._servers[dtype].process.pid

    def log(self, dtype: str) -> str:
        """All that this server has written so far."""
        self.url(dtype)
        log = self._servers[dtype].log
        return os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).decode(errors="replace")

    def answers(self, dtype: str, ask: Ask, *, concurrent: int, run: int = 0) -> list[Exchange]:
        """Greedy answers, this many at a time."""
        key = (dtype, ask, concurrent, run)
        if key not in self._answers:
            texts = PROMPTS if ask is Ask.SHORT else LONG_PROMPTS
            changes: list[dict[str, Any]] = [{"max_tokens": TOKENS if ask is Ask.SHORT else 4} for _ in texts]
            if ask is Ask.TIED:
                untied = self.answers(dtype, Ask.LONG, concurrent=1)
                for change, exchange in zip(changes, untied, strict=True):
                    first = exchange.steps[0]
                    best = first.top_logprobs[0]
                    change["logit_bias"] = {
                        str(token_id): best - logprob
                        for token_id, logprob in zip(first.top_ids[1:], first.top_logprobs[1:], strict=True)
                    }
            url = self.url(dtype)
            self._answers[key] = asyncio.run(_ask_all(url, dtype, concurrent, texts, changes))
        return self._answers[key]

    def stop(self) -> None:
        """End every server."""
        for server in self._servers.values():
            server.process.terminate()
        for server in self._servers.values():
            try:
                server.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                server.process.kill()
                server.process.wait()
            server.log.close()
        self._servers.clear()

    def _start(self, dtype: str) -> _Server:
        port = free_port()
        command = [self._python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(self.model_dir)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--dtype", dtype, "--max-model-len", "2048"]
        command += ["--max-num-seqs", "16", "--served-model-name", MODEL, "--enforce-eager"]
        # A long prompt that runs whole when alone is cut into pieces in a crowd, as in production. On some
        # CPUs the number of rows alone moves no logit, and this does.
        command += ["--enable-scale-out", "--max-num-batched-tokens", str(BATCHED_TOKENS)]
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", **self._variables}
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in stop(), after the process that writes it
        process = subprocess.Popen(
            [*command, *self._flags], stdout=log, stderr=log, env=environment, cwd=self._folder
        )
        server = _Server(url=f"http://127.0.0.1:{port}", process=process, log=log)
        deadline_s = time.monotonic() + START_S
        while not _healthy(server.url):
            if process.poll() is not None or time.monotonic() > deadline_s:
                process.kill()
                process.wait()
                log.seek(0)
                tail = log.read()[-4000:].decode(errors="replace")
                log.close()
                raise AssertionError(f"vLLM ({dtype}) did not start, exit {process.returncode}:\n{tail}")
            time.sleep(0.5)
        return server


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


async def _ask_all(
    url: str, dtype: str, concurrent: int, texts: Sequence[str], changes: Sequence[dict[str, Any]]
) -> list[Exchange]:
    engine = open_engine(url, EngineOptions(kind="vllm", model=MODEL))
    places = asyncio.Semaphore(concurrent)

    async def one(place: int, text: str) -> Exchange:
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0}
        encoding = await engine.encode(Call(kind=CallKind.CHAT, body=body, model=MODEL))
        sampling = msgspec.structs.replace(
            encoding.sampling, logprobs=20, seed=place, ignore_eos=True, **changes[place]
        )
        prompt = Prompt(
            exchange_id=uuid.uuid4().hex,
            model=MODEL,
            token_ids=encoding.token_ids,
            sampling=sampling,
            cache_salt=uuid.uuid4().hex,
        )
        async with places:
            return exchange_of(place, dtype, url, prompt, [part async for part in engine.generate(prompt)])

    try:
        return await asyncio.gather(*(one(place, text) for place, text in enumerate(texts)))
    finally:
        await engine.close()


def exchange_of(place: int, dtype: str, url: str, prompt: Prompt, parts: list[Steps | Finish]) -> Exchange:
    """What one answer says, as the comparator takes it."""
    steps = tuple(step for part in parts if isinstance(part, Steps) for step in part.steps)
    finish = parts[-1]
    assert isinstance(finish, Finish)
    return Exchange(
        exchange_id=ExchangeId(prompt.exchange_id),
        capture_id=CaptureId(f"capture-{place}"),
        arm=Arm.BASELINE,
        rollout="tests",
        tenant="-",
        request_id=str(place),
        pool=dtype,
        endpoint=url,
        engine="vllm",
        environment_digest=Fact(unknown="not told over HTTP"),
        prompt_token_ids=prompt.token_ids,
        sampling=prompt.sampling,
        as_tokens=True,
        token_only=False,
        steps=steps,
        finish_reason=finish.finish_reason,
        outcome=Outcome.COMPLETED,
        timing=Timing(
            started_unix_s=0.0,
            ttft_s=steps[0].received_s,
            last_token_s=steps[-1].received_s,
            total_s=steps[-1].received_s,
            tokens=len(steps),
        ),
    )


def drawn(seed: int, tokens: int = 32) -> Sampling:
    """Sampling at temperature 0.8 with this seed."""
    return Sampling(max_tokens=tokens, temperature=0.8, seed=seed, logprobs=5, ignore_eos=True)
