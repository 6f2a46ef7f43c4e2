"""The mirror against engines behind real sockets, and the whole road from an edge's link to a pair."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
import uvloop

from comparator.compare import compare
from comparator.comparison import CONCURRENCY
from comparator.records import Outcome
from engines import EngineOptions, open_engine
from proxy.link.client import EdgeLink
from proxy.link.server import LinkServer
from proxy.link.values import Capture, EdgeIdentity
from proxy.mirror import ArmLimits, Sources, plan_again, run_arm
from tests.support.engines import FakeEndpoint
from tests.support.fake_vllm import FakeVllm
from tests.support.link import ListListener, ListSink, capture_head, edge_settings, route_table, unix_target
from tests.support.mirror import Rig, rig
from tests.support.waiting import PATIENCE_S, eventually

CHAT: dict[str, Any] = {
    "target": "/v1/chat/completions",
    "body": orjson.dumps(
        {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0.7}
    ),
}


@asynccontextmanager
async def endpoint(server: FakeVllm) -> AsyncIterator[FakeEndpoint]:
    """The adapter of a server, as the judge holds it."""
    engine = open_engine(server.url, EngineOptions(kind="vllm"))
    made = FakeEndpoint(engine, await engine.probe())
    engine.active = 0  # type: ignore[attr-defined]
    try:
        yield made
    finally:
        await engine.close()


@asynccontextmanager
async def http_rig(baseline: FakeVllm, candidate: FakeVllm, **settings: Any) -> AsyncIterator[Rig]:
    async with (
        baseline.serving(),
        candidate.serving(),
        endpoint(baseline) as left,
        endpoint(candidate) as right,
        rig(left, right, **settings) as made,
    ):
        yield made


def run(main: Any) -> None:
    uvloop.run(main())


def test_equal_servers_make_an_equal_pair() -> None:
    async def main() -> None:
        baseline, candidate = FakeVllm(), FakeVllm()
        async with http_rig(baseline, candidate) as made:
            pair = await made.pair(**CHAT)
            assert pair.valid
            assert pair.fork is None
            assert len(pair.left.steps) == 8
            assert pair.left.engine == "vllm 0.32.0"
            assert pair.left.sampling.repetition_penalty == 1.1  # the engine's own default, resolved
            sent = [server.requests[-1] for server in (baseline, candidate)]
            for path, body in sent:
                assert path == "/v1/completions"
                assert body["prompt"] == list(pair.left.prompt_token_ids)
                assert (body["seed"], body["logprobs"]) == (pair.left.sampling.seed, 5)
            salts = {body.pop("cache_salt") for _, body in sent}
            assert len(salts) == 2
            assert sent[0] == sent[1]

    run(main)


def test_a_control_and_the_servers_own_count_of_what_runs_beside_it() -> None:
    async def main() -> None:
        baseline, candidate = FakeVllm(), FakeVllm()
        async with http_rig(baseline, candidate, dedicated=False, control_percent=100.0) as made:
            baseline.running = 6  # live work, for as long as this lasts
            comparison = await made.comparison(**CHAT)
            (triple,) = comparison.triples
            assert triple.valid
            ran = [triple.candidate.left, triple.candidate.right, triple.control.right]
            assert [exchange.facts[CONCURRENCY].value for exchange in ran] == [7, 1, 7]
            assert triple.band is None
            asked = [body for path, body in baseline.requests if path == "/v1/completions"][-2:]
            assert len({body.pop("cache_salt") for body in asked}) == 2
            assert asked[0] == asked[1]

    run(main)


def marks(server: FakeVllm, suffix: str) -> list[tuple[str | None, str | None]]:
    """(x-forkgate-shadow, x-request-id) of each request whose path ends so, the judge's probes left out."""
    assert len(server.posted) == len(server.requests)
    return [
        (headers.get("x-forkgate-shadow"), headers.get("x-request-id"))
        for (path, _), headers in zip(server.requests, server.posted, strict=True)
        if path.endswith(suffix)
    ]


def test_both_arms_are_marked_alike_and_named_by_their_stored_exchange() -> None:
    async def main() -> None:
        baseline, candidate = FakeVllm(), FakeVllm()
        async with http_rig(baseline, candidate) as made:
            for server in (baseline, candidate):  # the probes'
                server.requests.clear()
                server.posted.clear()
            pairs = [await made.pair(**CHAT) for _ in range(2)]
            as_itself = {**CHAT, "body": CHAT["body"][:-1] + b',"response_format":{"type":"json_object"}}'}
            pairs.append(await made.pair(**as_itself))
            assert [pair.left.as_tokens for pair in pairs] == [True, True, False]
            names = set()
            for server, side in ((baseline, "left"), (candidate, "right")):
                ids = [getattr(pair, side).exchange_id for pair in pairs]
                assert marks(server, "/completions") == [("1", name) for name in ids]
                rendered = marks(server, "/render")
                assert rendered
                assert set(rendered) == {("1", None)}
                assert len(rendered) + len(ids) == len(server.requests)
                names |= set(ids)
            assert len(names) == 6

    run(main)


def test_a_fork_between_servers_is_found_and_stands_when_run_again() -> None:
    async def main() -> None:
        baseline, candidate = FakeVllm(), FakeVllm("forks at token 2")
        async with http_rig(baseline, candidate) as made:
            pair = await made.pair(**CHAT)
            assert pair.fork is not None
            assert pair.fork.fork_index == 2
            assert made.sink.forks[0].fork == pair.fork
            limits = ArmLimits(timeout_s=PATIENCE_S, bytes=10**7)
            again = [
                await run_arm(where, plan_again(exchange, "m"), limits, Sources())
                for where, exchange in ((made.baseline[0], pair.left), (made.candidate[0], pair.right))
            ]
            assert [one.outcome for one in again] == [Outcome.COMPLETED] * 2
            assert again[0].facts["cache_salt"] != pair.left.facts["cache_salt"]
            repeated = compare(*again)
            assert repeated.valid
            assert repeated.fork == pair.fork

    run(main)


def test_an_exchange_that_went_as_itself_cannot_be_run_again() -> None:
    async def main() -> None:
        async with http_rig(FakeVllm(), FakeVllm()) as made:
            body = orjson.dumps(
                {
                    "model": "m",
                    "messages": [{"role": "user", "content": "hi"}],
                    "max_tokens": 4,
                    "response_format": {"type": "json_object"},
                }
            )
            pair = await made.pair(target="/v1/chat/completions", body=body)
            assert not pair.left.as_tokens
            assert pair.valid
            with pytest.raises(ValueError, match="went as the client's own request"):
                plan_again(pair.left, "m")

    run(main)


@pytest.mark.parametrize(
    ("lie", "outcome"),
    [
        ("breaks off", Outcome.COMPLETED),  # after the finish reason: nothing is missing
        ("never finishes", Outcome.FAILED),
        ("fails at token 2", Outcome.FAILED),
        ("drops ids", Outcome.INVALID),
        ("drops logprobs", Outcome.INVALID),
        ("nan at token 2", Outcome.INVALID),
        ("out of order at token 2", Outcome.INVALID),
        ("above zero at token 2", Outcome.INVALID),
        ("echoes another prompt", Outcome.INVALID),
        ("miscounts", Outcome.INVALID),
        ("refuses all", Outcome.REFUSED),
        ("no stream", Outcome.INVALID),
    ],
)
def test_a_lying_server_is_classified(lie: str, outcome: Outcome) -> None:
    async def main() -> None:
        baseline, candidate = FakeVllm(), FakeVllm()
        async with http_rig(baseline, candidate) as made:
            candidate.lies.add(lie)  # after an honest probe
            pair = await made.pair(**CHAT)
            assert pair.left.outcome is Outcome.COMPLETED
            assert pair.right.outcome is outcome
            assert pair.fork is None
            assert pair == compare(pair.left, pair.right)

    run(main)


def test_a_server_that_is_gone_is_a_failed_candidate_or_an_unavailable_baseline() -> None:
    async def main() -> None:
        async with FakeVllm().serving() as gone, endpoint(gone) as probed:
            url, found = gone.url, probed.probe
        async with FakeVllm().serving() as up, endpoint(up) as alive:
            dead = FakeEndpoint(open_engine(url, EngineOptions()), found)
            dead.engine.active = 0
            async with rig(alive, dead) as made:
                pair = await made.pair(**CHAT)
                assert (pair.left.outcome, pair.right.outcome) == (Outcome.COMPLETED, Outcome.FAILED)
                assert url in str(pair.right.error)
                assert dead.silences
                assert all(url in why for why in dead.silences)
                assert alive.silences == []
            async with rig(dead, alive) as made:
                assert (await made.drop(**CHAT))[0] == "baseline_unavailable"
            await dead.engine.close()

    run(main)


def test_a_rollback_stops_the_generations_in_the_engines() -> None:
    async def main() -> None:
        baseline, candidate = FakeVllm(), FakeVllm()
        async with http_rig(baseline, candidate) as made:
            baseline.pause_s = candidate.pause_s = 60.0
            made.submit(3, **CHAT)
            await eventually(lambda: baseline.running == candidate.running == 3, "three pairs")
            await made.mirror.stop_rollout("old-to-new", "breach")
            await eventually(lambda: baseline.aborted == candidate.aborted == 3, "the engines to notice")
            await made.settled()
            assert made.sink.reasons == ["rolled_back"] * 3

    run(main)


def test_token_only_arms_are_stopped_in_the_engines() -> None:
    async def main() -> None:
        baseline, candidate = FakeVllm(), FakeVllm("forks at token 2")
        settings = {"token_only_percent": 100.0, "token_only_tail_tokens": 2, "max_tokens": 4_000}
        async with http_rig(baseline, candidate, **settings) as made:
            baseline.pause_s = candidate.pause_s = 0.001
            long = {**CHAT, "body": CHAT["body"].replace(b'"max_tokens":8', b'"max_tokens":4000')}
            pair = await made.pair(**long)
            assert pair.left.outcome is pair.right.outcome is Outcome.CUT
            assert len(pair.left.steps) < 1_000
            await eventually(lambda: baseline.aborted == candidate.aborted == 1, "the engines to notice")

    run(main)


def test_the_whole_road_from_an_edge_to_a_pair(tmp_path: Path) -> None:
    class Road(ListSink):
        made: Rig

        def capture(self, edge: EdgeIdentity, capture: Capture) -> None:
            super().capture(edge, capture)
            self.made.mirror.submit(edge, capture)

    async def main() -> None:
        baseline, candidate = FakeVllm(), FakeVllm("forks at token 2")
        async with http_rig(baseline, candidate, in_flight=4) as made:
            sink = Road()
            sink.made = made
            server = LinkServer(unix_target(tmp_path), None, sink, route_table(1), ledger=made.ledger)
            await server.start()
            link = EdgeLink(edge_settings(unix_target(tmp_path)), ListListener())
            await link.start()
            for number in range(20):
                target = "/v1/embeddings" if number == 7 else CHAT["target"]
                head = capture_head(str(number), target=target)
                link.offer(link.begin(), head, CHAT["body"])
            done = made.sink.pairs, made.sink.drops
            await eventually(lambda: sum(map(len, done)) == 20, "twenty ends")
            await eventually(lambda: link.counts().held == 0, "the last receipt")
            assert made.sink.reasons == ["not_recognised"]
            assert all(pair.fork is not None for pair in made.sink.pairs.values())
            balance = made.ledger.balance("edge-1")
            assert balance.balanced
            assert (balance.captured, balance.compared) == (20, 19)
            made._captured = 20
            await link.close(1.0)
            await server.stop()

    run(main)
