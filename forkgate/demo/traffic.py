"""The demo's clients: two tenants that ask, stream and keep what they got."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import cycle

import aiohttp
import msgspec
import orjson

from forkgate.demo.prompts import PROMPTS

MAX_TOKENS = 32
TENANTS = ("acme", "globex")


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One live answer as its client saw it."""

    tenant: str
    prompt: str
    text: str
    fingerprint: str | None
    """``system_fingerprint`` of the engine that answered: proof of the environment."""
    error: str | None = None


class Traffic:
    """Requests of both tenants in turn, ``width`` at a time, until told to stop."""

    def __init__(self, url: str, on_answer: Callable[[Answer], None], width: int = 2) -> None:
        self.answers: list[Answer] = []
        self._url = url
        self._on_answer = on_answer
        self._width = width
        self._work: Iterator[tuple[str, str]] = (
            (tenant, prompt) for prompt in cycle(PROMPTS) for tenant in TENANTS
        )
        self._stop = asyncio.Event()

    def stop(self) -> None:
        """Ask no more; what is running finishes."""
        self._stop.set()

    async def run(self) -> None:
        """Ask until stopped."""
        async with aiohttp.ClientSession(self._url) as session, asyncio.TaskGroup() as group:
            for _ in range(self._width):
                group.create_task(self._client(session))

    async def _client(self, session: aiohttp.ClientSession) -> None:
        while not self._stop.is_set():
            tenant, prompt = next(self._work)
            answer = await ask(session, tenant, prompt)
            self.answers.append(answer)
            self._on_answer(answer)


async def ask(session: aiohttp.ClientSession, tenant: str, prompt: str) -> Answer:
    """One streamed chat request, as any client would send it."""
    body = {
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": MAX_TOKENS,
        "stream": True,
    }
    text: list[str] = []
    fingerprint: str | None = None
    finished = False
    try:
        async with session.post("/v1/chat/completions", json=body, headers={"x-tenant": tenant}) as response:
            if response.status != 200:
                detail = (await response.text())[:200]
                return _failed(tenant, prompt, f"HTTP {response.status}: {detail}")
            async for line in response.content:
                if line.startswith(b"data: [DONE]"):
                    finished = True
                elif line.startswith(b"data: "):
                    event = orjson.loads(line[6:])
                    fingerprint = event.get("system_fingerprint") or fingerprint
                    text += [choice["delta"].get("content") or "" for choice in event["choices"]]
    except (aiohttp.ClientError, TimeoutError) as error:
        return _failed(tenant, prompt, f"{type(error).__name__}: {error}")
    if not finished:
        return _failed(tenant, prompt, "the stream ended before [DONE]")
    return Answer(tenant=tenant, prompt=prompt, text="".join(text), fingerprint=fingerprint)


def _failed(tenant: str, prompt: str, error: str) -> Answer:
    return Answer(tenant=tenant, prompt=prompt, text="", fingerprint=None, error=error)
