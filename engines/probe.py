"""What an endpoint really honours, found out with real requests.

Servers drop unknown fields in silence, so a 200 proves nothing. Each capability is shown by an effect that
a server without it cannot have: IDs that come back, equal draws for equal seeds *and* other draws for
another, a refusal of a nonsensical salt, fewer running requests after a connection was dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

import msgspec

from comparator.records import Fact, Sampling
from engines.base import (
    OF_ONE_ANSWER,
    Call,
    CallKind,
    CannotEncode,
    Capability,
    Encoding,
    EngineError,
    EngineInvalid,
    EngineRefused,
    Finish,
    Load,
    Prompt,
    Steps,
)

_TEXT = "Once upon a time, in a town by the sea, there lived"
_CHAT = [{"role": "user", "content": _TEXT}]
_ANY_IDS: tuple[int, ...] = (17, 29, 113, 57, 211)
"""A prompt for a server that cannot encode one; every vocabulary has these."""
_DEPTHS = (20, 5, 1)
_SEEDED_TOKENS = 16
_SEED_TRIES = 3
_EFFECT_TOKENS = 8
_LONG_TOKENS = 400
_ABORT_TRIES = 40
_ABORT_PAUSE_S = 0.25


class Probed(Protocol):
    """The part of an adapter that is probed."""

    base_url: str

    async def encode(self, call: Call) -> Encoding: ...

    def generate(self, prompt: Prompt) -> AsyncGenerator[Steps | Finish, None]: ...

    async def load(self) -> Load: ...

    async def refuses(self, prompt: Prompt, field: str, value: object) -> bool:
        """Whether the endpoint refuses this prompt (4xx) when ``field`` has this value."""
        ...


class NoLoad(Exception):  # noqa: N818
    """An endpoint that is watched tells no load."""


class Found(msgspec.Struct, kw_only=True):
    """What was shown, and the reason for each thing that was not."""

    has: set[Capability] = msgspec.field(default_factory=set)
    missing: dict[Capability, str] = msgspec.field(default_factory=dict)
    max_logprobs: int = 0
    finish: Finish | None = None
    """Of the first generation that worked."""

    def standing_facts(self) -> dict[str, Fact]:
        """What that generation's end told of the endpoint: all but the values that were its own."""
        told = {} if self.finish is None else self.finish.facts
        return {name: fact for name, fact in told.items() if name not in OF_ONE_ANSWER or fact.value is None}


class Prober:
    """Runs every check against one endpoint. One that cannot be reached raises: it has no findings."""

    def __init__(
        self,
        engine: Probed,
        model: str,
        *,
        deepest: int | None = None,
        absent: Mapping[Capability, str] | None = None,
        echoes: bool = True,
        false_salt: object = "",
    ) -> None:
        """Args:
        deepest: a top-k depth to try besides the usual ones.
        absent: what this engine's API has no field for, with the reason; not tried.
        echoes: False for an API that never tells the prompt it ran: two prompts' effects are compared then.
        false_salt: a ``cache_salt`` that a server which reads the field refuses.
        """
        self._engine = engine
        self._absent = dict(absent or {})
        self._echoes = echoes
        self._false_salt = false_salt
        self._model = model
        self._depths = _DEPTHS if deepest is None else tuple(sorted({deepest, *_DEPTHS}, reverse=True))
        self._deepest = deepest
        self._found = Found()
        self._prompt_ids = _ANY_IDS

    async def run(self) -> Found:
        await self._encodes()
        await self._generates()
        if Capability.TOKEN_OUT in self._found.has and not self._echoes:
            await self._reads_prompt()
        for capability, check in (
            (Capability.SEED, self._seeds),
            (Capability.CACHE_SALT, self._salts),
            (Capability.PRIORITY, self._priorities),
            (Capability.ABORT, self._aborts),
        ):
            if capability in self._absent:
                self._found.missing[capability] = self._absent[capability]
            elif Capability.TOKEN_OUT in self._found.has:
                await check()
            else:
                self._found.missing[capability] = "not tried: no token IDs come back"
        return self._found

    def _has(self, capability: Capability) -> None:
        self._found.has.add(capability)

    async def _encodes(self) -> None:
        try:
            plain = await self._engine.encode(
                Call(kind=CallKind.COMPLETION, body={"prompt": _TEXT}, model=self._model)
            )
            self._prompt_ids = plain.token_ids
            chat = await self._engine.encode(
                Call(kind=CallKind.CHAT, body={"messages": _CHAT}, model=self._model)
            )
        except (EngineRefused, EngineInvalid, CannotEncode) as error:
            self._found.missing[Capability.ENCODE] = str(error)
            return
        if chat.token_ids == plain.token_ids:
            self._found.missing[Capability.ENCODE] = (
                "a chat and its bare text encode alike: no template is used"
            )
            return
        self._has(Capability.ENCODE)

    async def _generates(self) -> None:
        """Token IDs in and out, and how deep the top-k goes."""
        reason = "no depth was accepted"
        for depth in self._depths:
            try:
                steps, finish = await self._run(seed=1, tokens=4, logprobs=depth)
            except EngineRefused as error:
                reason = f"top-{depth} was refused: {error}"
                continue
            except EngineInvalid as error:
                reason = str(error)
                break
            self._found.finish = finish
            self._found.max_logprobs = depth
            self._has(Capability.LOGPROBS)
            self._tokens(steps, finish)
            return
        self._found.missing[Capability.LOGPROBS] = reason
        try:
            steps, finish = await self._run(seed=1, tokens=4, logprobs=0)
        except (EngineRefused, EngineInvalid) as error:
            self._found.missing[Capability.TOKEN_IN] = self._found.missing[Capability.TOKEN_OUT] = str(error)
            return
        self._found.finish = finish
        self._tokens(steps, finish)

    def _tokens(self, steps: list[int], finish: Finish) -> None:
        if steps:
            self._has(Capability.TOKEN_OUT)
        else:
            self._found.missing[Capability.TOKEN_OUT] = "an answer of 4 tokens held no token ID"
        if not self._echoes:
            self._found.missing[Capability.TOKEN_IN] = "not tried: no token IDs come back"
        elif finish.prompt_token_ids == self._prompt_ids:
            self._has(Capability.TOKEN_IN)
        else:
            self._found.missing[Capability.TOKEN_IN] = (
                "no prompt_token_ids came back, so nothing proves which prompt ran"
            )

    async def _reads_prompt(self) -> None:
        # No echo proves which prompt ran, but its effect shows that its IDs are read: the most likely words
        # after a prompt and after its mirror image are others. The adapter checks the prompt's length.
        try:
            forth, _ = await self._run(seed=1, tokens=_EFFECT_TOKENS, temperature=0.0)
            back, _ = await self._run(
                seed=1, tokens=_EFFECT_TOKENS, temperature=0.0, prompt_ids=self._prompt_ids[::-1]
            )
        except (EngineRefused, EngineInvalid) as error:
            self._found.missing[Capability.TOKEN_IN] = str(error)
            return
        if forth == back:
            self._found.missing[Capability.TOKEN_IN] = (
                "two prompts got the same tokens, so nothing shows that prompt token IDs are read"
            )
        else:
            self._found.missing.pop(Capability.TOKEN_IN, None)
            self._has(Capability.TOKEN_IN)

    async def _seeds(self) -> None:
        # A busy server's batch may move a draw by itself, so equal draws get a few tries. A server that
        # ignores the seed has no chance worth naming to draw 16 equal tokens.
        try:
            first, _ = await self._run(seed=11, tokens=_SEEDED_TOKENS)
            others = [(await self._run(seed=seed, tokens=_SEEDED_TOKENS))[0] for seed in (12, 13)]
            if all(other == first for other in others):
                self._found.missing[Capability.SEED] = (
                    "three different seeds drew the same tokens at temperature 1: the seed or the "
                    "temperature is ignored"
                )
                return
            for _ in range(_SEED_TRIES):
                if (await self._run(seed=11, tokens=_SEEDED_TOKENS))[0] == first:
                    self._has(Capability.SEED)
                    return
        except (EngineRefused, EngineInvalid) as error:
            self._found.missing[Capability.SEED] = str(error)
            return
        self._found.missing[Capability.SEED] = "one seed drew different tokens each time: it is ignored"

    async def _salts(self) -> None:
        # A salt's effect is the absence of a cache hit, which no answer shows. But a server that reads the
        # field refuses a nonsensical one.
        if await self._engine.refuses(self._prompt(seed=1, tokens=1), "cache_salt", self._false_salt):
            self._has(Capability.CACHE_SALT)
        else:
            self._found.missing[Capability.CACHE_SALT] = (
                f"a cache_salt of {self._false_salt!r} was not refused, so the field is not read: turn "
                "prefix caching off"
            )

    async def _priorities(self) -> None:
        prompt = self._prompt(seed=1, tokens=1)
        if not await self._engine.refuses(prompt, "priority", "nonsense"):
            self._found.missing[Capability.PRIORITY] = (
                "a priority of 'nonsense' was not refused, so it is not read"
            )
        elif await self._engine.refuses(prompt, "priority", 1):
            self._found.missing[Capability.PRIORITY] = (
                "a priority is refused: start the server with priority scheduling to let shadows stand back"
            )
        else:
            self._has(Capability.PRIORITY)

    async def _aborts(self) -> None:
        """Drop a long generation and watch the endpoint's own count of requests fall."""
        prompt = self._prompt(seed=1, tokens=_LONG_TOKENS)
        try:
            before = await self._busy()
            async with contextlib.aclosing(self._engine.generate(prompt)) as running:
                async for _ in running:
                    break
            for _ in range(_ABORT_TRIES):
                if await self._busy() <= before:
                    self._has(Capability.ABORT)
                    return
                await asyncio.sleep(_ABORT_PAUSE_S)
        except NoLoad as error:
            self._found.missing[Capability.ABORT] = str(error)
            return
        self._found.missing[Capability.ABORT] = (
            f"{_ABORT_TRIES * _ABORT_PAUSE_S:.0f} s after its connection was dropped a request still ran (or "
            "other traffic took its place)"
        )

    async def _busy(self) -> int:
        try:
            load = await self._engine.load()
        except EngineError as error:
            raise NoLoad(f"the endpoint tells no load to see it by: {error}") from error
        return load.running + load.waiting

    def _prompt(
        self,
        *,
        seed: int,
        tokens: int,
        logprobs: int = 0,
        temperature: float = 1.0,
        prompt_ids: tuple[int, ...] | None = None,
    ) -> Prompt:
        identity = uuid.uuid4().hex
        return Prompt(
            exchange_id=f"probe-{identity}",
            model=self._model,
            token_ids=self._prompt_ids if prompt_ids is None else prompt_ids,
            sampling=Sampling(
                max_tokens=tokens, temperature=temperature, ignore_eos=True, seed=seed, logprobs=logprobs
            ),
            cache_salt=identity,
        )

    async def _run(
        self,
        *,
        seed: int,
        tokens: int,
        logprobs: int = 0,
        temperature: float = 1.0,
        prompt_ids: tuple[int, ...] | None = None,
    ) -> tuple[list[int], Finish]:
        prompt = self._prompt(
            seed=seed, tokens=tokens, logprobs=logprobs, temperature=temperature, prompt_ids=prompt_ids
        )
        ids: list[int] = []
        finish: Finish | None = None
        async for part in self._engine.generate(prompt):
            if isinstance(part, Steps):
                ids.extend(step.token_id for step in part.steps)
            else:
                finish = part
        assert finish is not None
        if len(ids) != tokens:
            raise EngineInvalid(
                self._engine.base_url, f"{tokens} tokens were asked for with ignore_eos, {len(ids)} came"
            )
        return ids, finish
