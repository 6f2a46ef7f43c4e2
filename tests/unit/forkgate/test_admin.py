"""The admin API over a real unix socket, with a real evidence store behind it."""

from __future__ import annotations

import asyncio
import os
import pwd
import re
import stat
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import orjson
import pytest
import uvloop

from comparator.evidence import Batch, ComparisonDone, EvidenceReader, EvidenceStore, Keyring
from comparator.records import Arm
from forkgate.admin import AdminError, AdminServer, Refused, Verb
from forkgate.admin.evidence import EXPORT_CHUNK_BYTES
from forkgate.admin.openapi import described
from forkgate.admin.routes import Route
from tests.support.exchanges import comparison, pair
from tests.support.waiting import LIMIT_S

ME = pwd.getpwuid(os.getuid()).pw_name
"""Whom the kernel names at the other end of the socket."""


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work

    uvloop.run(bounded())


class NotedJudge:
    """An AdminPort that answers from memory."""

    keeping: Any = None

    def __init__(self, evidence: Path) -> None:
        self.evidence_path = evidence
        self.evidence_keys = Keyring()
        self.acted: list[tuple[str, Verb, str, str, str | None]] = []
        self.looks: list[str | None] = []
        self.reasons: list[str] = []

    async def status(self) -> dict[str, Any]:
        return {"epoch": 7}

    def ledger(self) -> dict[str, Any]:
        return {"balanced": True}

    def rollouts(self) -> list[dict[str, Any]]:
        return [{"name": "r"}]

    def rollout(self, name: str) -> dict[str, Any]:
        if name != "r":
            raise Refused(404, f"no rollout is called {name!r}", code="not_found")
        return {"name": "r"}

    def plan(self, name: str) -> dict[str, Any]:
        return {"rollout": self.rollout(name), "steps": []}

    async def act(
        self,
        name: str,
        verb: Verb,
        *,
        reason: str,
        who: str,
        tenant: str | None = None,
        look: str | None = None,
    ) -> dict[str, Any]:
        self.acted.append((name, verb, reason, who, tenant))
        self.looks.append(look)
        return {"rollout": {"name": name}, "epoch": 8}

    async def replay(self, capture_id: str, replicate: int, arm: str) -> dict[str, Any]:
        raise RuntimeError("a bug")

    def not_ready(self) -> list[str]:
        return self.reasons


Ask = Callable[..., Awaitable[tuple[int, Any]]]


def served(tmp_path: Path, test: Callable[[Ask, NotedJudge], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        judge = NotedJudge(tmp_path / "evidence.db")
        server = AdminServer(tmp_path / "admin.sock", judge)
        await server.start()
        connector = aiohttp.UnixConnector(str(tmp_path / "admin.sock"))
        async with aiohttp.ClientSession(connector=connector) as session:

            async def ask(method: str, path: str, data: Any = None) -> tuple[int, Any]:
                async with session.request(method, f"http://judge{path}", data=data) as response:
                    raw = await response.read()
                    ndjson = response.content_type == "application/x-ndjson"
                    return response.status, raw if ndjson else orjson.loads(raw)

            try:
                await test(ask, judge)
            finally:
                await server.close()

    run(main())


def stored(tmp_path: Path, count: int) -> None:
    store = EvidenceStore(tmp_path / "evidence.db", 100_000_000)
    pairs = tuple(
        ComparisonDone(
            comparison=comparison(pair((1, 2, 3), (1, 2, 3 + number % 2), capture_id=f"c-{number}")),
            incarnation="e",
            sequence=number,
        )
        for number in range(1, count + 1)
    )
    store.add(Batch(comparisons=pairs))
    store.close()


def test_socket_is_its_owners_alone(tmp_path: Path) -> None:
    async def test(ask: Ask, judge: NotedJudge) -> None:
        assert stat.S_IMODE((tmp_path / "admin.sock").stat().st_mode) == 0o600

    served(tmp_path, test)


def test_socket_left_by_a_killed_judge_is_replaced(tmp_path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "admin.sock"))

    async def test(ask: Ask, judge: NotedJudge) -> None:
        assert await ask("GET", "/healthz") == (200, {"status": "ok"})

    served(tmp_path, test)


def test_file_that_is_no_socket_is_somebodys_and_stays(tmp_path: Path) -> None:
    (tmp_path / "admin.sock").write_text("mine")

    async def main() -> None:
        server = AdminServer(tmp_path / "admin.sock", NotedJudge(tmp_path / "evidence.db"))
        with pytest.raises(AdminError, match="it is no socket"):
            await server.start()

    run(main())
    assert (tmp_path / "admin.sock").read_text() == "mine"


def test_not_ready_says_why(tmp_path: Path) -> None:
    async def test(ask: Ask, judge: NotedJudge) -> None:
        assert await ask("GET", "/readyz") == (200, {"ready": True, "reasons": []})
        judge.reasons = ["pool old: nobody answers"]
        assert await ask("GET", "/readyz") == (503, {"ready": False, "reasons": ["pool old: nobody answers"]})

    served(tmp_path, test)


@pytest.mark.parametrize("verb", list(Verb))
def test_every_verb_needs_a_reason_and_knows_its_body(tmp_path: Path, verb: Verb) -> None:
    async def test(ask: Ask, judge: NotedJudge) -> None:
        for body, param in (
            (b"{}", "reason"),
            (b'{"reason": "  "}', "reason"),
            (b'{"reason": 3}', "reason"),
            (b'{"reason": "%s"}' % (b"x" * 2_001), "reason"),
            (b'{"reason": "x", "tenant": 3}', "tenant"),
            (b'{"reason": "x", "tenent": "acme"}', "tenent"),
        ):
            status, answer = await ask("POST", f"/v1/rollouts/r/{verb}", body)
            assert status == 400
            assert answer["error"]["param"] == param
        assert judge.acted == []
        status, answer = await ask("POST", f"/v1/rollouts/r/{verb}", b'{"reason": " fixed "}')
        assert (status, answer["epoch"]) == (200, 8)
        assert judge.acted == [("r", verb, "fixed", ME, None)]

    served(tmp_path, test)


def test_one_tenant_can_be_lifted_alone(tmp_path: Path) -> None:
    async def test(ask: Ask, judge: NotedJudge) -> None:
        body = b'{"reason": "fixed", "tenant": "acme"}'
        status, answer = await ask("POST", "/v1/rollouts/r/pause", body)
        assert (status, answer["error"]["param"]) == (400, "tenant")
        assert (await ask("POST", "/v1/rollouts/r/lift", body))[0] == 200
        assert judge.acted == [("r", Verb.LIFT, "fixed", ME, "acme")]

    served(tmp_path, test)


def test_a_promote_may_say_which_step_it_means(tmp_path: Path) -> None:
    async def test(ask: Ask, judge: NotedJudge) -> None:
        body = b'{"reason": "a day", "look": "shadow-1"}'
        status, answer = await ask("POST", "/v1/rollouts/r/start", body)
        assert (status, answer["error"]["param"]) == (400, "look")
        assert (await ask("POST", "/v1/rollouts/r/promote", b'{"reason": "a day", "look": ""}'))[0] == 400
        assert judge.acted == []
        assert (await ask("POST", "/v1/rollouts/r/promote", body))[0] == 200
        assert judge.looks == ["shadow-1"]

    served(tmp_path, test)


@pytest.mark.parametrize("route", described(), ids=lambda one: f"{one.method} {one.path}")
def test_a_query_parameter_that_a_route_does_not_have_is_refused(tmp_path: Path, route: Route) -> None:
    """Nothing is done: a `?tenant=` beside a rollback is in the wrong place, and must not mean everybody."""
    path = re.sub(r"\{\w+\}", "r", route.path)
    known = [one.name for one in route.query]

    async def test(ask: Ask, judge: NotedJudge) -> None:
        status, answer = await ask(route.method, f"{path}?tenent=acme", b'{"reason": "x"}')
        assert (status, answer["error"]["param"]) == (400, "tenent")
        there = f"there are {', '.join(known)}" if known else "this takes none"
        assert answer["error"]["message"] == f"tenent: unknown parameter, {there}"
        for name in known:
            status, answer = await ask(route.method, f"{path}?{name}=1&{name}=2", b'{"reason": "x"}')
            assert (status, answer["error"]["param"]) == (400, name)
            assert "say it once" in answer["error"]["message"]
        assert judge.acted == []

    served(tmp_path, test)


def test_a_name_of_ten_thousand_characters_is_not_repeated_whole(tmp_path: Path) -> None:
    async def test(ask: Ask, judge: NotedJudge) -> None:
        for path in (f"/v1/rollouts/{'n' * 4_000}", f"/v1/{'n' * 4_000}", f"/v1/status?{'n' * 4_000}=1"):
            status, answer = await ask("GET", path)
            assert status in (400, 404)
            assert len(orjson.dumps(answer)) < 600
        status, answer = await ask(
            "POST", "/v1/rollouts/r/lift", b'{"reason": "x", "%s": 1}' % (b"n" * 10_000)
        )
        assert status == 400
        assert len(orjson.dumps(answer)) < 600

    served(tmp_path, test)


def test_a_rollouts_plan_has_a_page_of_its_own(tmp_path: Path) -> None:
    async def test(ask: Ask, judge: NotedJudge) -> None:
        assert await ask("GET", "/v1/rollouts/r/plan") == (200, {"rollout": {"name": "r"}, "steps": []})
        assert (await ask("GET", "/v1/rollouts/none/plan"))[0] == 404

    served(tmp_path, test)


@pytest.mark.parametrize("body", [b"", b"[1]", b"{nope"])
def test_body_that_is_no_object_is_refused_in_the_openai_shape(tmp_path: Path, body: bytes) -> None:
    async def test(ask: Ask, judge: NotedJudge) -> None:
        status, answer = await ask("POST", "/v1/rollouts/r/lift", body)
        assert status == 400
        assert set(answer["error"]) == {"message", "type", "param", "code"}
        assert answer["error"]["type"] == "invalid_request_error"

    served(tmp_path, test)


def test_unknown_things_are_404_in_the_openai_shape(tmp_path: Path) -> None:
    stored(tmp_path, 1)

    async def test(ask: Ask, judge: NotedJudge) -> None:
        for path in ("/v1/rollouts/none", "/v1/evidence/none", "/v1/nothing"):
            status, answer = await ask("GET", path)
            assert status == 404, path
            assert answer["error"]["message"]

    served(tmp_path, test)


def test_bug_is_a_500_that_points_at_the_log(tmp_path: Path) -> None:
    async def test(ask: Ask, judge: NotedJudge) -> None:
        status, answer = await ask("POST", "/v1/evidence/c-1/replay")
        assert status == 500
        assert answer["error"]["type"] == "server_error"
        assert "the judge's log has the details" in answer["error"]["message"]

    served(tmp_path, test)


def test_evidence_is_listed_newest_first_and_filtered(tmp_path: Path) -> None:
    stored(tmp_path, 5)

    async def test(ask: Ask, judge: NotedJudge) -> None:
        _, every = await ask("GET", "/v1/evidence")
        assert [one["capture_id"] for one in every["pairs"]] == ["c-5", "c-4", "c-3", "c-2", "c-1"]
        _, forked = await ask("GET", "/v1/evidence?forked=true&limit=2")
        assert [one["capture_id"] for one in forked["pairs"]] == ["c-5", "c-3"]
        assert "fork at token 2" in forked["pairs"][0]["summary"]
        _, rest = await ask("GET", f"/v1/evidence?forked=true&limit=2&cursor={forked['cursor']}")
        assert [one["capture_id"] for one in rest["pairs"]] == ["c-1"]

    served(tmp_path, test)


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=99999", "forked=maybe"])
def test_bad_filter_is_refused_and_named(tmp_path: Path, query: str) -> None:
    stored(tmp_path, 1)

    async def test(ask: Ask, judge: NotedJudge) -> None:
        status, answer = await ask("GET", f"/v1/evidence?{query}")
        assert status == 400
        assert answer["error"]["param"] == query.partition("=")[0]

    served(tmp_path, test)


def test_shown_pair_carries_words_and_numbers(tmp_path: Path) -> None:
    stored(tmp_path, 1)

    async def test(ask: Ask, judge: NotedJudge) -> None:
        _, shown = await ask("GET", "/v1/evidence/c-1")
        assert "fork at output token 2" in shown["text"]
        assert shown["explanations"][0]["fork"]["fork_index"] == 2
        for word in ("artifact", "environment", "schedule", "numbers"):
            assert word in shown["text"]

    served(tmp_path, test)


def test_export_streams_every_pair_oldest_first(tmp_path: Path) -> None:
    stored(tmp_path, 250)

    async def test(ask: Ask, judge: NotedJudge) -> None:
        status, raw = await ask("GET", "/v1/evidence/export")
        assert status == 200
        lines = [orjson.loads(line) for line in raw.splitlines()]
        captures = [line["capture_id"] for line in lines if "capture_id" in line]
        assert captures == [f"c-{number}" for number in range(1, 251)]

    served(tmp_path, test)


def test_a_body_nested_without_end_is_a_bad_request(tmp_path: Path) -> None:
    async def test(ask: Ask, judge: NotedJudge) -> None:
        deep = b'{"reason": "r", "tenant": ' + b"[" * 60_000
        for path in ("/v1/evidence/erase", "/v1/rollouts/r/pause"):
            status, told = await ask("POST", path, deep)
            assert status == 400, told

    served(tmp_path, test)


def test_an_export_whose_client_leaves_closes_no_store_under_a_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite that is closed under a running statement takes the judge with it."""
    stored(tmp_path, 1)
    reading, go_on, closed = threading.Event(), threading.Event(), threading.Event()
    order: list[str] = []

    def slow(_self: EvidenceReader, **_filters: Any) -> Iterator[bytes]:
        yield b"x" * EXPORT_CHUNK_BYTES
        reading.set()
        assert go_on.wait(30)
        order.append("read")
        yield b"y"

    def close(_self: EvidenceReader) -> None:
        order.append("closed")
        closed.set()

    monkeypatch.setattr(EvidenceReader, "export", slow)
    monkeypatch.setattr(EvidenceReader, "close", close)

    async def test(_ask: Ask, _judge: NotedJudge) -> None:
        _, writer = await asyncio.open_unix_connection(str(tmp_path / "admin.sock"))
        writer.write(b"GET /v1/evidence/export HTTP/1.1\r\nhost: judge\r\n\r\n")
        assert await asyncio.to_thread(reading.wait, 30)
        writer.transport.abort()
        early = await asyncio.to_thread(closed.wait, 0.3)
        go_on.set()
        assert await asyncio.to_thread(closed.wait, 30)
        assert (early, order) == (False, ["read", "closed"])

    served(tmp_path, test)


def test_missing_store_is_a_503(tmp_path: Path) -> None:
    async def test(ask: Ask, judge: NotedJudge) -> None:
        for path in ("/v1/evidence", "/v1/evidence/export", "/v1/evidence/c-1"):
            status, answer = await ask("GET", path)
            assert status == 503, path
            assert answer["error"]["code"] == "evidence_unavailable"

    served(tmp_path, test)


@pytest.mark.parametrize("query", ["replicate=-1", "replicate=x", "arm=baseline"])
def test_replay_of_no_possible_pair_is_refused_and_named(tmp_path: Path, query: str) -> None:
    stored(tmp_path, 1)

    async def test(ask: Ask, judge: NotedJudge) -> None:
        status, answer = await ask("POST", f"/v1/evidence/c-1/replay?{query}")
        assert status == 400
        assert answer["error"]["param"] == query.partition("=")[0]

    served(tmp_path, test)


def test_listed_pairs_say_what_sets_them_apart(tmp_path: Path) -> None:
    store = EvidenceStore(tmp_path / "evidence.db", 100_000_000)
    baseline = pair(capture_id="c-1", left={"replicate": 1}, right={"replicate": 1})
    control = pair(capture_id="c-1", right_arm=Arm.CONTROL, right={"replicate": 1})
    made = comparison(baseline, msgspec.structs.replace(control, left=baseline.left), repeat=True)
    store.add(Batch(comparisons=(ComparisonDone(comparison=made, incarnation="e", sequence=1),)))
    store.close()

    async def test(ask: Ask, judge: NotedJudge) -> None:
        _, listed = await ask("GET", "/v1/evidence")
        summaries = [one["summary"] for one in listed["pairs"]]
        assert summaries[0].endswith("equal, largest error 0 nats (control, replicate 1, repeat)")
        assert summaries[1].endswith("equal, largest error 0 nats (replicate 1, repeat)")

    served(tmp_path, test)
