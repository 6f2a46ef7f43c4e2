"""The edge with the link it has in production, up to a judge that only takes notes."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from policies.routes import RouteTable
from proxy.edge.settings import CaptureLimits
from proxy.edge.worker import open_link
from proxy.ledger import find_ledgers
from proxy.link.client import EdgeLink
from proxy.link.server import LinkServer
from tests.support.edge import (
    Arrived,
    RunningEdge,
    Upstream,
    answer,
    post,
    read_answer,
    run,
    running_edge,
    table,
)
from tests.support.link import ListSink, unix_target
from tests.support.waiting import eventually


async def echo(request: Arrived) -> None:
    await request.read_body()
    request.say(answer(request.body))


def pool_that_says(name: bytes) -> Upstream:
    async def answers(request: Arrived) -> None:
        await request.read_body()
        request.say(answer(name))

    return Upstream(answers)


@contextlib.asynccontextmanager
async def judge(directory: Path, sink: ListSink, present: RouteTable) -> AsyncIterator[LinkServer]:
    server = LinkServer(unix_target(directory), None, sink, present)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def edge_of(directory: Path, present: RouteTable) -> AsyncIterator[tuple[RunningEdge, EdgeLink]]:
    async with running_edge(
        present,
        open_link=open_link,
        judge=unix_target(directory),
        ledger_file=str(directory / "edge.ledger"),
        capture=CaptureLimits(flush_s=0.01, queue_age_s=600.0),
    ) as edge:
        link = edge.worker.link
        assert isinstance(link, EdgeLink)
        yield edge, link


def test_every_request_leaves_its_record_and_every_drawn_one_its_copy(tmp_path: Path) -> None:
    async def main() -> None:
        sink = ListSink()
        async with Upstream(echo).running() as url:
            present = table(url, percent=100.0)
            async with judge(tmp_path, sink, present) as server, edge_of(tmp_path, present) as (edge, link):
                await eventually(lambda: link.judge_answers, "the link")
                reader, writer = await edge.connect()
                bodies = [b'{"prompt": "%d"}' % number for number in range(20)]
                for number, body in enumerate(bodies):
                    writer.write(
                        post(
                            body,
                            "/v1/completions",
                            f"traceparent: 00-{number:032x}-{number:016x}-01",
                            f"User-Agent: agent/{number}",
                            f"X-Request-Id: request-{number}",
                            "X-Tenant: " + ("acme" if number % 2 else f"invented-{number}"),
                            "Authorization: Bearer secret",
                        )
                    )
                    assert (await read_answer(reader))[1] == body
                await eventually(lambda: len(sink.captures) == len(sink.records) == 20, "copies and records")
                await eventually(lambda: link.counts().delivered == 20, "receipts")

                copies = [capture for _, capture in sink.captures]
                tenants = ["-", "acme"] * 10
                assert [copy.body for copy in copies] == bodies
                assert [copy.sequence for copy in copies] == list(range(1, 21))
                assert [copy.request_id for copy in copies] == [f"request-{number}" for number in range(20)]
                assert [copy.tenant for copy in copies] == tenants
                assert [copy.header(b"user-agent") for copy in copies] == [
                    b"agent/%d" % number for number in range(20)
                ]
                assert b"secret" not in repr(copies).encode()
                assert [record.tenant for record in sink.records] == tenants
                assert {(record.pool, record.status) for record in sink.records} == {("home", 200)}
                assert all(record.sampled for record in sink.records)
                balance = server.ledger.balance()
                assert balance.balanced
                assert (balance.captured, balance.in_flight_judge) == (20, 20)
                writer.close()
        ((_, counts),) = find_ledgers(tmp_path)
        assert (counts.captured, counts.delivered, counts.dropped_total) == (20, 20, 0)

    run(main())


def test_a_flip_is_acknowledged_and_obeyed_by_connections_that_stand(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            pool_that_says(b"home").running() as home,
            pool_that_says(b"candidate").running() as candidate,
        ):
            canary = table(home, candidate, routes={"acme": "candidate"})
            async with (
                judge(tmp_path, ListSink(), canary) as server,
                edge_of(tmp_path, canary) as (edge, link),
            ):
                await eventually(lambda: any(each.epoch == 1 for each in server.edges()), "the edge")
                reader, writer = await edge.connect()
                for epoch, pool in enumerate((b"candidate", b"home", b"candidate"), 1):
                    if epoch > 1:
                        routes = {"acme": "candidate"} if pool == b"candidate" else {}
                        flip = server.publish(table(home, candidate, epoch=epoch, routes=routes))
                        assert (await flip.wait(30.0)).complete
                        assert link.epoch == epoch
                    writer.write(post(b"x", "/v1/completions", "X-Tenant: acme"))
                    assert (await read_answer(reader))[1] == pool
                writer.close()

    run(main())


def test_live_traffic_outlasts_its_judge_and_the_next_judge_gets_the_rest(tmp_path: Path) -> None:
    async def main() -> None:
        first, second = ListSink(), ListSink()
        async with Upstream(echo).running() as url:
            present = table(url, percent=100.0)
            async with edge_of(tmp_path, present) as (edge, link):
                reader, writer = await edge.connect()

                async def ask(number: int) -> None:
                    body = b"%d" % number
                    writer.write(post(body, "/v1/completions"))
                    assert (await read_answer(reader))[1] == body

                async with judge(tmp_path, first, present):
                    await eventually(lambda: link.judge_answers, "the first judge")
                    for number in range(5):
                        await ask(number)
                    await eventually(lambda: link.counts().delivered == 5, "receipts")
                await eventually(lambda: not link.judge_answers, "the loss of the judge")
                for number in range(5, 10):
                    await ask(number)
                async with judge(tmp_path, second, present):
                    await eventually(lambda: link.judge_answers, "the second judge")
                    for number in range(10, 15):
                        await ask(number)
                    await eventually(lambda: link.counts().held == 0, "nothing to be left")
                    await eventually(lambda: len(second.records) >= 10, "the records")
                counts = link.counts()
                assert counts.captured == 15
                assert counts.captured == counts.delivered + counts.dropped_total
                said = [int(capture.body) for _, capture in (*first.captures, *second.captures)]
                assert len(said) == counts.delivered
                assert said == sorted(set(said))
                assert {0, 1, 2, 3, 4, 10, 11, 12, 13, 14} <= set(said)
                assert [record.sequence for record in (*first.records, *second.records)] == list(range(1, 16))
                assert edge.edge.stats()["shadow_errors"] == 0
                writer.close()

    run(main())
