"""What is kept of evidence, and what may be done about it: records, the erasure log, erasure, another key."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
import orjson
from aiohttp import web
from msgspec import Meta

from comparator.evidence import EvidenceReader
from comparator.evidence.erasure_log import faults_of
from forkgate.admin.errors import json_response
from forkgate.admin.port import AdminPort, Refused
from forkgate.admin.roles import Need
from forkgate.admin.routes import WHO, Query, Route

T = TypeVar("T")

MAX_REASON_CHARS = 2_000
MAX_NAME_CHARS = 200
REKEY_S = 5.0
"""One answer of a rekey: the client asks again until it is done, and sees how far it is."""
DEFAULT_WHO = "admin API"


class Erase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is to be erased: exactly one of ``tenant`` and ``id``."""

    reason: Annotated[str, Meta(min_length=1, max_length=MAX_REASON_CHARS, pattern=r"\S")]
    """Why; stands in the erasure log for ever, so name a request by its ticket and nobody by name."""
    tenant: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)] | None = None
    id: Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)] | None = None
    """A capture's, whole or its beginning, 8 characters at least."""


class Erased(msgspec.Struct, frozen=True, kw_only=True):
    """An erasure, and its line in the log once it is done."""

    erasure: int
    scope: str
    name: str
    captures: int
    exchanges: int
    done: bool
    """False: all is deleted, but a reader still holds old pages; the line follows by itself."""
    again: bool
    """It had been erased before; nothing was left to do."""
    unix_s: float | None = None
    done_unix_s: float | None = None
    who: str | None = None
    reason: str | None = None
    previous: str | None = None
    hash: str | None = None


class Erasures(msgspec.Struct, frozen=True, kw_only=True):
    """The erasure log."""

    erasures: list[dict[str, Any]]
    """Oldest first."""
    faults: list[str]
    """Where the chain of hashes does not hold; none when it does."""


class Records(msgspec.Struct, frozen=True, kw_only=True):
    """Who answered."""

    records: list[dict[str, Any]]
    """``kind``, ``digest``, ``first_seen_unix_s``, ``seen`` (pool, endpoint, first, last), ``document``."""


class RekeyedSoFar(msgspec.Struct, frozen=True, kw_only=True):
    """How far the walk through the store is."""

    key_id: str | None
    rows: int
    looked_at: int
    done: bool
    retired: list[str]
    """Keys that nothing in the store needs any more."""


class KeepingRoutes:
    """``/v1/evidence/erasures|erase|rekey|records``."""

    def __init__(self, judge: AdminPort) -> None:
        self._judge = judge

    async def erase(self, request: web.Request) -> web.Response:
        asked = _erase(await request.read())
        scope, name = "tenant", asked.tenant
        if asked.id is not None:
            given = asked.id
            scope, name = "capture", await self._read(lambda reader: reader.known(given))
        assert name is not None
        who = request.get(WHO, DEFAULT_WHO)
        return json_response(await self._judge.keeping.erase(scope, name, who, asked.reason.strip()))

    async def erasures(self, _request: web.Request) -> web.Response:
        lines = await self._read(lambda reader: reader.erasures())
        plain = [msgspec.to_builtins(line) for line in lines]
        return json_response({"erasures": plain, "faults": list(faults_of(lines))})

    async def rekey(self, _request: web.Request) -> web.Response:
        return json_response(await self._judge.keeping.rekey(REKEY_S))

    async def records(self, request: web.Request) -> web.Response:
        rollout = request.query.get("rollout")
        found = await self._read(lambda reader: reader.records(rollout=rollout))
        plain = [{**msgspec.to_builtins(one), "document": orjson.loads(one.document)} for one in found]
        return json_response({"records": plain})

    async def _read(self, ask: Callable[[EvidenceReader], T]) -> T:
        def work() -> T:
            with EvidenceReader(self._judge.evidence_path, self._judge.evidence_keys) as reader:
                return ask(reader)

        return await asyncio.to_thread(work)


def _erase(body: bytes) -> Erase:
    try:
        asked = msgspec.json.decode(body, type=Erase)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refused(400, f"body: {error}") from None
    if (asked.tenant is None) == (asked.id is None):
        raise Refused(400, "say what to erase: exactly one of tenant and id")
    return asked


def _only(name: str, other: str) -> dict[str, Any]:
    """For the document: this one is given, and not the other."""
    return {"required": [name], "properties": {name: {"type": "string"}, other: {"type": "null"}}}


def keeping_routes(judge: AdminPort) -> tuple[Route, ...]:
    """Rows of the table (:mod:`forkgate.admin.table`)."""
    routes = KeepingRoutes(judge)
    store = {503: "The evidence store cannot be read or written."}
    return (
        Route(
            method="GET",
            path="/v1/evidence/records",
            handler=routes.records,
            summary="Environment and artifact records of who answered.",
            needs=(Need.VIEW,),
            answer=Records,
            query=(Query(name="rollout", about="Of the pools that answered in this rollout."),),
            statuses=store,
        ),
        Route(
            method="GET",
            path="/v1/evidence/erasures",
            handler=routes.erasures,
            summary="The erasure log, and whether its chain of hashes holds.",
            needs=(Need.VIEW, Need.CONTENT),
            answer=Erasures,
            statuses=store,
        ),
        Route(
            method="POST",
            path="/v1/evidence/erase",
            handler=routes.erase,
            summary="Erase the evidence of one tenant or one request.",
            needs=(Need.VIEW, Need.CONTENT, Need.STEP),
            answer=Erased,
            body=Annotated[
                Erase, Meta(extra_json_schema={"oneOf": [_only("tenant", "id"), _only("id", "tenant")]})
            ],
            statuses={**store, 404: "Nothing of it is stored.", 409: "Several captures begin with this ID."},
            action="evidence.erase",
        ),
        Route(
            method="POST",
            path="/v1/evidence/rekey",
            handler=routes.rekey,
            summary="Bring stored values to the present key, for some seconds; ask again until it is done.",
            needs=(Need.VIEW, Need.CONTENT, Need.STEP),
            answer=RekeyedSoFar,
            statuses=store,
            action="evidence.rekey",
        ),
    )
