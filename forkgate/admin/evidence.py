"""Questions about evidence. Each opens a reader of its own on a thread: the writer is never waited for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from comparator.evidence import EvidenceReader, Shown, StoredPair
from comparator.evidence.explain import explain
from comparator.evidence.export import json_safe
from comparator.evidence.trace import printable
from comparator.evidence.words import as_text
from comparator.floor import Floors
from comparator.records import Arm
from forkgate.admin.errors import json_response
from forkgate.admin.port import AdminPort, Refused
from forkgate.admin.roles import Need
from forkgate.admin.routes import CALLER
from forkgate.admin.text import pair_line

T = TypeVar("T")

MAX_LIST = 1_000
MAX_REPLICATE = 1_000
EXPORT_CHUNK_BYTES = 262_144
EXPORT_WRITE_S = 30.0
MAX_CURSOR_DIGITS = 18
"""What a signed 64-bit row number has at most, less one."""


class EvidenceRoutes:
    """``/v1/evidence...``"""

    def __init__(self, judge: AdminPort) -> None:
        self._judge = judge

    async def list(self, request: web.Request) -> web.Response:
        limit = _whole(request, "limit", 50, MAX_LIST)
        filters = _filters(request)
        cursor = _cursor(request)
        page = await self._read(lambda reader: reader.list(limit=limit, cursor=cursor, **filters))
        seen = page.pairs if _may_read(request) else [_without_words(pair) for pair in page.pairs]
        pairs = [{**_plain(pair), "summary": pair_line(pair)} for pair in seen]
        return json_response({"pairs": pairs, "cursor": page.cursor})

    async def show(self, request: web.Request) -> web.Response:
        given = request.match_info["id"]
        shown, floors = await self._read(lambda reader: _with_floors(reader, given))
        explanations = explain(shown, floors)
        text = "\n".join(as_text(one) for one in explanations)
        if not explanations:
            text = _without_pairs(shown)
        plain = {**_plain(shown), "explanations": [_plain(one) for one in explanations]}
        return json_response({**plain, "text": text})

    async def replay(self, request: web.Request) -> web.Response:
        replicate = _whole(request, "replicate", 0, MAX_REPLICATE, least=0)
        arm = request.query.get("arm", Arm.CANDIDATE.value)
        if arm not in (Arm.CANDIDATE, Arm.CONTROL):
            raise Refused(400, f"arm: {arm!r} is neither candidate nor control", param="arm")
        return json_response(await self._judge.replay(request.match_info["id"], replicate, arm))

    async def export(self, request: web.Request) -> web.StreamResponse:
        filters = _filters(request)
        reader = await asyncio.to_thread(EvidenceReader, self._judge.evidence_path, self._judge.evidence_keys)
        reading = _Reading(reader, reader.export(**filters))
        try:
            # Read before the head goes out, so that a broken store is an error, not an empty file.
            chunk = await asyncio.to_thread(reading.chunk)
            response = web.StreamResponse(headers={"content-type": "application/x-ndjson"})
            await response.prepare(request)
            while chunk:
                async with asyncio.timeout(EXPORT_WRITE_S):  # a reader that stopped holds no store open
                    await response.write(chunk)
                chunk = await asyncio.to_thread(reading.chunk)
            await response.write_eof()
        finally:
            await asyncio.to_thread(reading.close)
        return response

    async def _read(self, ask: Callable[[EvidenceReader], T]) -> T:
        def work() -> T:
            with EvidenceReader(self._judge.evidence_path, self._judge.evidence_keys) as reader:
                return ask(reader)

        return await asyncio.to_thread(work)


def _may_read(request: web.Request) -> bool:
    caller = request.get(CALLER)
    return caller is not None and caller.may(Need.CONTENT)


def _without_words(pair: StoredPair) -> StoredPair:
    """Without what may repeat a client's: stop strings that differ, an engine's error message."""
    return msgspec.structs.replace(pair, set_aside_reason=None)


def _without_pairs(shown: Shown) -> str:
    """Why there is nothing to explain."""
    if shown.comparison is None:
        return f"capture {shown.capture_id} forked, and its pair was never finished"
    reasons = dict.fromkeys(score.error for score in shown.scores if score.error is not None)
    why = "; ".join(reasons) or "no reason was given"
    return f"capture {shown.capture_id} got no answers to compare: {printable(why)}"


def _with_floors(reader: EvidenceReader, given: str) -> tuple[Shown, Floors]:
    """A capture, and the noise floors that its forks are to be held against."""
    shown = reader.show(reader.resolve(given))
    if not any(row.fork_index is not None for row in shown.pairs):
        return shown, Floors()  # nothing to look one up for
    return shown, reader.floors(shown.pairs[0].rollout, without=shown.capture_id)


class _Reading:
    """What one export reads from, a chunk at a time, on threads.

    A client that goes away ends its request while a thread still reads for it. A connection that is closed
    under a running statement kills the process, so whoever closes waits for whoever reads.
    """

    def __init__(self, reader: EvidenceReader, lines: Iterator[bytes]) -> None:
        self._reader = reader
        self._lines = lines
        self._turn = threading.Lock()
        self._closed = False

    def chunk(self) -> bytes:
        """The next lines; empty at the end, and once it is closed."""
        with self._turn:
            parts: list[bytes] = []
            size = 0
            while not self._closed and size < EXPORT_CHUNK_BYTES:
                line = next(self._lines, None)
                if line is None:
                    break
                parts.append(line)
                size += len(line)
            return b"".join(parts)

    def close(self) -> None:
        """Let go of the file, once nobody reads."""
        self._closed = True
        with self._turn:
            self._reader.close()


def _plain(value: msgspec.Struct) -> dict[str, Any]:
    plain: dict[str, Any] = json_safe(msgspec.to_builtins(value, str_keys=True))
    return plain


def _filters(request: web.Request) -> dict[str, Any]:
    forked = request.query.get("forked")
    if forked not in (None, "true", "false"):
        raise Refused(400, f"forked: {forked!r} is not true or false", param="forked")
    return {
        "rollout": request.query.get("rollout"),
        "tenant": request.query.get("tenant"),
        "forked": None if forked is None else forked == "true",
    }


def _cursor(request: web.Request) -> str | None:
    text = request.query.get("cursor")
    if text is not None and not (text.isascii() and text.isdecimal() and len(text) <= MAX_CURSOR_DIGITS):
        raise Refused(400, f"cursor: {text[:40]!r} is none of ours, pass the last page's", param="cursor")
    return text


def _whole(request: web.Request, name: str, default: int, most: int, *, least: int = 1) -> int:
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= 9 and least <= int(text) <= most):
        raise Refused(400, f"{name}: {text[:40]!r} is outside {least}-{most}", param=name)
    return int(text)
