"""Engines made of Python, for tests: a model that is a hash, and everything that can go wrong with one.

The "model" is a function of prompt, seed and position, so two engines answer alike until one of them is told
to fork. ``script`` replaces the answer altogether.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from hashlib import blake2b
from typing import Any

import msgspec

from comparator.records import Fact, Step
from engines.base import (
    Call,
    CannotEncode,
    Capability,
    Encoding,
    EngineError,
    EngineInvalid,
    EngineRefused,
    Finish,
    Load,
    Probe,
    Prompt,
    Steps,
)
from engines.calls import sampling_said

Script = Callable[[Prompt], AsyncGenerator[Steps | Finish, None]]


class FakeEngine:
    """Implements :class:`engines.base.Engine`."""

    def __init__(
        self,
        base_url: str = "http://fake",
        *,
        length: int = 6,
        fork_at: int | None = None,
        chunk: int = 1,
        encode_error: EngineError | None = None,
        encode_shift: int = 0,
        temperature: float = 0.0,
        digest: str | None = None,
        script: Script | None = None,
        load_error: EngineError | None = None,
    ) -> None:
        self.name = "fake"
        self.base_url = base_url
        self.length = length
        self.fork_at = fork_at
        self.chunk = chunk
        self.encode_error = encode_error
        self.encode_shift = encode_shift
        self.temperature = temperature
        self.digest = digest
        self.script = script
        self.load_error = load_error
        self.now = load()
        self.gate: asyncio.Event | None = None
        """When set, every generation waits for it before its first token."""
        self.prompts: list[Prompt] = []
        self.calls: list[Call] = []
        self.active = 0
        self.most_active = 0

    async def probe(self) -> Probe:
        return probe()

    async def load(self) -> Load:
        if self.load_error is not None:
            raise self.load_error
        return self.now

    async def close(self) -> None:
        return

    async def encode(self, call: Call) -> Encoding:
        self.calls.append(call)
        await asyncio.sleep(0)
        if self.encode_error is not None:
            raise self.encode_error
        if call.body.get("tools"):
            raise CannotEncode(self.base_url, "tools", goes_as_itself=True)
        text = str(call.body.get("prompt") or call.body.get("messages"))
        said = sampling_said(call, room_tokens=1_000)
        if "temperature" not in call.body:
            said = msgspec.structs.replace(said, temperature=self.temperature)
        return Encoding(
            token_ids=tuple(byte + self.encode_shift for byte in text.encode()),
            sampling=said,
            template_sha256=Fact(value=f"sha256:{self.encode_shift:064x}"),
        )

    async def generate(self, prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
        self.prompts.append(prompt)
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            if self.gate is not None:
                await self.gate.wait()
            stream = self.script(prompt) if self.script is not None else self._answer(prompt)
            async for item in stream:
                yield item
        finally:
            self.active -= 1

    async def _answer(self, prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
        count = min(self.length, prompt.sampling.max_tokens)
        steps = [self.step(prompt, index) for index in range(count)]
        for start in range(0, count, self.chunk):
            await asyncio.sleep(0)
            yield Steps(tuple(steps[start : start + self.chunk]))
        facts = {} if self.digest is None else {"environment_digest": Fact(value=self.digest)}
        echo = prompt.token_ids if prompt.call is None else (1, 2, 3)
        yield Finish(
            finish_reason="length" if count < self.length else "stop", prompt_token_ids=echo, facts=facts
        )

    def step(self, prompt: Prompt, index: int) -> Step:
        """Token ``index`` of this model's answer."""
        forked = self.fork_at is not None and index >= self.fork_at
        return fake_step(prompt, index, 1 if forked else 0)


def fake_step(prompt: Prompt, index: int, variant: int = 0) -> Step:
    key = f"{prompt.token_ids}/{prompt.sampling.seed}/{index}".encode()
    token_id = int.from_bytes(blake2b(key, digest_size=2).digest(), "big") + variant
    depth = prompt.sampling.logprobs
    return Step(
        token_id,
        -0.25 if depth else None,
        tuple(token_id + place for place in range(depth)),
        tuple(-0.25 - place for place in range(depth)),
        0.01 * (index + 1),
        f"<{token_id}>",
    )


# -- scripts ------------------------------------------------------------------------------------------


async def endless(prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
    """Never stops, whatever ``max_tokens`` says."""
    index = 0
    while True:
        await asyncio.sleep(0)
        yield Steps((fake_step(prompt, index),))
        index += 1


async def stalled(prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
    """One token, then nothing."""
    yield Steps((fake_step(prompt, 0),))
    await asyncio.Event().wait()


async def trickling(prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
    """Chunks without tokens for ever: alive, and useless."""
    while True:
        await asyncio.sleep(0.001)
        yield Steps(())


async def bloated(prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
    """A megabyte of text with every token."""
    for index in range(prompt.sampling.max_tokens):
        step = fake_step(prompt, index)
        yield Steps(
            (
                Step(
                    step.token_id, step.logprob, step.top_ids, step.top_logprobs, step.received_s, "x" * 2**20
                ),
            )
        )
        await asyncio.sleep(0)


async def unfinished(prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
    """Ends without saying so."""
    yield Steps((fake_step(prompt, 0),))


async def other_prompt(prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
    """Runs another prompt than it was sent."""
    yield Steps((fake_step(prompt, 0),))
    yield Finish(finish_reason="stop", prompt_token_ids=(*prompt.token_ids, 7))


def raising(error: Exception, after: int = 0) -> Script:
    """Fails after some tokens."""

    async def script(prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]:
        for index in range(after):
            await asyncio.sleep(0)
            yield Steps((fake_step(prompt, index),))
        raise error

    return script


REFUSED = EngineRefused("http://fake", "400: not that", 400)
BROKEN = EngineInvalid("http://fake", "token_ids are missing")


def load(running: int = 0, waiting: int = 0, kv_cache_usage: float = 0.1) -> Load:
    """What an endpoint says of itself."""
    return Load(
        running=running,
        waiting=waiting,
        kv_cache_usage=Fact(value=kv_cache_usage),
        memory_bytes=Fact(value=2**30),
        generated_tokens=Fact(value=1_000),
    )


# -- endpoints ----------------------------------------------------------------------------------------

EVERYTHING = frozenset(Capability)


def probe(has: frozenset[Capability] = EVERYTHING, max_logprobs: int = 20, **facts: Any) -> Probe:
    return Probe(
        engine="fake",
        version="1.0",
        model="m",
        has=has,
        missing=dict.fromkeys(EVERYTHING - has, "the test says so"),
        max_logprobs=max_logprobs,
        facts={name: Fact(value=value) for name, value in facts.items()},
    )


class FakeEndpoint:
    """Implements :class:`proxy.mirror.ShadowEndpoint`, for a fake engine or a real adapter."""

    def __init__(self, engine: Any, found: Probe | None = None, error: str | None = None) -> None:
        self.engine = engine
        self.probe = found if found is not None or error is not None else probe()
        self.error = error
        self.answers = 0
        self.silences: list[str] = []
        self.environment_in_answers = False

    @property
    def environment(self) -> Fact:
        none = Fact(unknown="the test tells none")
        return none if self.probe is None else self.probe.facts.get("environment_digest", none)

    def answered(self) -> None:
        self.answers += 1

    def not_answering(self, why: str) -> None:
        self.silences.append(why)
