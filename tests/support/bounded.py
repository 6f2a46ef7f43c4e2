"""An engine with so many slots and no more: what does not fit waits inside it, and its metrics say so."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

from aiohttp import web

from engines.headers import SHADOW_HEADER
from tests.support.fake_vllm import FakeVllm


class Moment:
    """Something that happened to a request: ``starts``, ``ends``, or ``stops`` before its end."""

    def __init__(self, what: str, shadow: bool, waiting: int) -> None:
        self.what, self.shadow, self.waiting = what, shadow, waiting
        self.at_s = time.monotonic()

    def __repr__(self) -> str:
        return f"<{'shadow' if self.shadow else 'live'} {self.what}, {self.waiting} wait>"


class BoundedEngine(FakeVllm):
    """Like :class:`FakeVllm`; ``slots`` generations run at once, first come, first served."""

    def __init__(self, name: str, slots: int, *, pause_s: float) -> None:
        super().__init__(pause_s=pause_s)
        self.name = name
        self.waiting = 0
        self.moments: list[Moment] = []
        self._slots = asyncio.Semaphore(slots)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        shadow = request.headers.get(SHADOW_HEADER) == "1"
        body = json.loads(await request.read())
        params = body.get("sampling_params", body)
        if body.get("stream") and self._refusal(body, params) is None:
            self.waiting += 1
            try:
                await self._slots.acquire()
            finally:
                self.waiting -= 1
            self._note("starts", shadow)
            try:
                answer = await super()._generate(request)
            except BaseException:
                self._note("stops", shadow)
                raise
            else:
                self._note("ends", shadow)
                return answer
            finally:
                self._slots.release()
        return await super()._generate(request)

    def _note(self, what: str, shadow: bool) -> None:
        self.moments.append(Moment(what, shadow, self.waiting))

    async def _sign(self, request: web.Request, response: web.StreamResponse) -> None:
        response.headers["x-engine"] = self.name
        await super()._sign(request, response)

    async def _metrics(self, request: web.Request) -> web.Response:
        told: Any = (await super()._metrics(request)).text
        return web.Response(
            text=told.replace(
                'requests_waiting{engine="0"} 0.0', f'requests_waiting{{engine="0"}} {self.waiting}.0'
            )
        )

    def running_now(self, *, shadow: bool) -> int:
        """Generations that run."""
        mine = [one.what for one in self.moments if one.shadow == shadow]
        return mine.count("starts") - mine.count("ends") - mine.count("stops")
