"""What a collector is sent by a running sidecar, over gRPC and HTTP, and what a bad one costs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.sdk.metrics import MeterProvider

from forkgate.config.telemetry import Otlp, OtlpProtocol, OtlpTLS, Signal, Telemetry, Traces
from forkgate.telemetry import Outlet, Tenants, resource_of
from forkgate.telemetry.exports import BATCH_ITEMS, WAITING_ITEMS
from proxy.link.values import Capture
from tests.support.certificates import Authority
from tests.support.collector import Collector, attributes, points
from tests.support.fake_vllm import FakeVllm
from tests.support.sidecar import Sidecar, eventually_async
from tests.support.waiting import LIMIT_S, PATIENCE_S

SECRET = "zebra crossing at midnight"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"


class Recorded(FakeVllm):
    """Notes the trace headers of each generation."""

    def __init__(self) -> None:
        super().__init__()
        self.traced: list[tuple[bool, str | None, str | None]] = []
        """(of a shadow, traceparent, tracestate)"""

    def app(self) -> web.Application:
        @web.middleware
        async def note(request: web.Request, handler: Any) -> web.StreamResponse:
            if request.path == "/v1/completions" and request.method == "POST":
                self.traced.append(
                    (
                        "x-forkgate-shadow" in request.headers,
                        request.headers.get("traceparent"),
                        request.headers.get("tracestate"),
                    )
                )
            response: web.StreamResponse = await handler(request)
            return response

        app = super().app()
        app.middlewares.append(note)
        return app


@asynccontextmanager
async def sidecar(
    directory: Path, collector: Collector, protocol: str, extra: str = ""
) -> AsyncIterator[tuple[Sidecar, Recorded, Recorded]]:
    old, new = Recorded(), Recorded()
    async with old.serving(), new.serving():
        one = Sidecar(directory, old.url, new.url, workers=1)
        headers = directory / "headers"
        headers.write_text("x-api-key=k%31,x-other=two\n")
        text = one.file.read_text()
        page = "telemetry: {prometheus: {host: 127.0.0.1, port: 0}, tenant_attribute: true}"
        assert page in text
        one.file.write_text(
            text.replace(
                page,
                f"telemetry: {{prometheus: {{host: 127.0.0.1, port: 0}}, {extra}"
                f"otlp: {{endpoint: '{collector.endpoint}', protocol: {protocol}, export_interval_s: 0.2, "
                "timeout_s: 60, "
                f"headers_file: {headers}}}}}",
            )
        )
        try:
            await one.start()
            yield one, old, new
        finally:
            await one.close()


def serving(collector: Collector, protocol: str) -> AbstractAsyncContextManager[Collector]:
    return collector.over_grpc() if protocol == "grpc" else collector.over_http()


async def ask(one: Sidecar, tenant: str, headers: dict[str, str]) -> None:
    assert one.session is not None
    body = {"model": "m", "prompt": SECRET, "max_tokens": 8, "temperature": 0}
    async with one.session.post(
        f"{one.url}/v1/completions", json=body, headers={"x-tenant": tenant, **headers}
    ) as response:
        assert response.status == 200
        await response.read()


@pytest.mark.parametrize("protocol", ["grpc", "http/protobuf"])
def test_one_trace_joins_the_live_request_and_its_shadows(tmp_path: Path, protocol: str) -> None:
    async def test() -> None:
        collector = Collector()
        async with (
            serving(collector, protocol),
            sidecar(tmp_path, collector, protocol, "tenant_attribute: true, ") as (one, old, new),
        ):
            new.lies.add("forks at token 2")
            own = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=opaque,other=1"}
            await ask(one, "globex", own)

            async def told() -> bool:
                names = [span.name for span in collector.spans()]
                return (
                    names.count("shadow") >= 1
                    and names.count("shadow.arm") >= 2
                    and any(attributes(log).get("forkgate.fork_class") for log in collector.logs())
                    and "gen_ai.server.time_to_first_token" in collector.metrics()
                    and "forkgate.live.requests" in collector.metrics()
                )

            await eventually_async(told, "spans, log records and metrics")
            await one.stop()

        # The live request's context went to the engine as the client sent it.
        assert [seen for seen in old.traced if not seen[0]] == [
            (False, own["traceparent"], own["tracestate"])
        ]
        (shadow,) = [span for span in collector.spans() if span.name == "shadow"]
        arms = {
            attributes(span)["forkgate.arm"]: span for span in collector.spans() if span.name == "shadow.arm"
        }
        assert shadow.trace_id.hex() == TRACE
        assert shadow.parent_span_id.hex() == PARENT
        assert arms.keys() == {"baseline", "candidate"}
        for engine, arm in ((old, "baseline"), (new, "candidate")):
            span = arms[arm]
            assert (span.trace_id.hex(), span.parent_span_id) == (TRACE, shadow.span_id)
            assert span.start_time_unix_nano <= span.end_time_unix_nano
            found = [seen for seen in engine.traced if seen[0] and TRACE in (seen[1] or "")]
            ((_, parent, state),) = found
            assert parent == f"00-{TRACE}-{span.span_id.hex()}-01"
            assert state == own["tracestate"]
        forked = attributes(arms["candidate"])
        assert forked["forkgate.pool"] == "new"
        assert forked["forkgate.fork_index"] == 2
        assert forked["forkgate.fork_class"]
        assert forked["gen_ai.request.model"] == "m"
        assert f"http://{forked['server.address']}:{forked['server.port']}" == new.url
        assert attributes(shadow)["forkgate.tenant"] == "globex"
        assert "forkgate.fork_index" not in attributes(arms["baseline"])

        # The collector's credential travels; no signal holds what the client wrote or an engine answered.
        assert all(seen["x-api-key"] == "k1" for seen in collector.headers)
        assert {signal for signal, _ in collector.requests} == {"metrics", "traces", "logs"}
        for raw in collector.raw:
            assert SECRET.encode() not in raw
            assert not any(word.encode() in raw for word in SECRET.split() if len(word) > 4)
        metrics = collector.metrics()
        (total,) = (
            point.as_int
            for point in points(metrics["forkgate.live.requests"])
            if attributes(point)["forkgate.tenant"] == "globex"
        )
        assert total == 1
        sent = {
            (attributes(point)["forkgate.signal"], attributes(point)["forkgate.outcome"]): point.as_int
            for point in points(metrics["forkgate.telemetry.exports"])
        }
        assert sent["metrics", "refused"] == sent["traces", "dropped"] == sent["logs", "dropped"] == 0

    asyncio.run(asyncio.wait_for(test(), LIMIT_S))


def test_without_a_clients_context_the_edge_invents_none_and_no_tenant_is_told(tmp_path: Path) -> None:
    async def test() -> None:
        collector = Collector()
        async with collector.over_http(), sidecar(tmp_path, collector, "http/protobuf") as (one, old, _):
            await ask(one, "globex", {})

            async def told() -> bool:
                return len(collector.spans()) >= 3 and "forkgate.live.requests" in collector.metrics()

            await eventually_async(told, "a trace of the shadow's own")
            await one.stop()
        assert [seen for seen in old.traced if not seen[0]] == [(False, None, None)]
        (shadow,) = [span for span in collector.spans() if span.name == "shadow"]
        assert shadow.parent_span_id == b""
        for raw in collector.raw:
            assert b"globex" not in raw

    asyncio.run(asyncio.wait_for(test(), LIMIT_S))


# -- a collector that is no good -----------------------------------------------------------------------------


def outlet(endpoint: str, protocol: OtlpProtocol, timeout_s: float = LIMIT_S, **more: Any) -> Outlet:
    """Whoever waits for an export to a collector that hangs has hung."""
    otlp = Otlp(endpoint=endpoint, protocol=protocol, timeout_s=timeout_s, export_interval_s=0.1, **more)
    return Outlet(Telemetry(otlp=otlp), resource_of("test"), Tenants(None))


def capture(number: int, *headers: tuple[bytes, bytes]) -> Capture:
    return Capture(
        sequence=number,
        capture_id=f"capture-{number}",
        request_id="r",
        tenant="acme",
        rollout="r",
        target="/v1/completions",
        headers=headers,
        body=b"",
        live_pool="old",
        received_unix_s=0.0,
    )


def shadow_spans(out: Outlet, count: int) -> None:
    assert out.tracing is not None
    for number in range(count):
        out.tracing.begin(capture(number))
        out.tracing.dropped(f"capture-{number}", "shutdown")


Bad = Callable[[Collector], AbstractAsyncContextManager[Collector]]


@pytest.mark.parametrize(
    ("protocol", "trouble"),
    [
        (OtlpProtocol.GRPC, "away"),
        (OtlpProtocol.GRPC, "hangs"),
        (OtlpProtocol.HTTP, "away"),
        (OtlpProtocol.HTTP, "hangs"),
        (OtlpProtocol.HTTP, "endless"),  # gRPC bounds a message by itself
    ],
)
def test_a_bad_collector_costs_a_bounded_queue_and_no_wait(protocol: OtlpProtocol, trouble: str) -> None:
    async def test() -> None:
        collector = Collector()
        async with serving(collector, protocol):
            endpoint = collector.endpoint
            if trouble == "away":
                endpoint = "http://127.0.0.1:9"  # discard: nobody listens
            elif trouble == "hangs":
                collector.stall.clear()
            else:
                collector.lies = "endless"
            out = outlet(endpoint, protocol)
            provider = MeterProvider(metric_readers=out.readers, shutdown_on_exit=False)
            provider.get_meter("m").create_counter("c").add(1)
            out.start()
            many = 3 * WAITING_ITEMS
            shadow_spans(out, many)
            counts = out.counts()
            if trouble == "hangs":  # the others are done with a batch at once
                assert counts["traces", "dropped"] > 0
            held = many - counts["traces", "dropped"] - counts["traces", "refused"]
            assert held <= WAITING_ITEMS + BATCH_ITEMS
            for _ in range(20):  # metrics are pushed meanwhile
                await asyncio.sleep(0.01)
            await out.close(1.5)
            ended = out.counts()
            assert ended["traces", "sent"] == 0
            assert ended["metrics", "sent"] == 0
            provider.shutdown()
            collector.stall.set()

    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    try:
        asyncio.run(asyncio.wait_for(test(), LIMIT_S))
    finally:
        logging.getLogger("opentelemetry").setLevel(logging.NOTSET)


@pytest.mark.parametrize("protocol", list(OtlpProtocol))
@pytest.mark.parametrize("known", [True, False])
def test_a_collector_is_believed_by_its_authority_alone(
    tmp_path: Path, protocol: OtlpProtocol, known: bool
) -> None:
    async def test() -> None:
        authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
        certificate = authority.issue("localhost")
        collector = Collector()
        over = collector.over_grpc if protocol is OtlpProtocol.GRPC else collector.over_http
        async with over(certificate):
            trusted = authority if known else stranger
            # A stranger is tried again for as long as that.
            limit_s = PATIENCE_S if known else 1.0
            out = outlet(collector.endpoint, protocol, limit_s, tls=OtlpTLS(ca_file=trusted.cert_file))
            shadow_spans(out, 1)
            await out.close(PATIENCE_S)
        counts = out.counts()
        assert (counts["traces", "sent"], counts["traces", "refused"]) == ((1, 0) if known else (0, 1))
        assert len(collector.spans()) == known

    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    try:
        asyncio.run(asyncio.wait_for(test(), LIMIT_S))
    finally:
        logging.getLogger("opentelemetry").setLevel(logging.NOTSET)


@pytest.mark.parametrize("protocol", list(OtlpProtocol))
def test_the_file_wins_over_the_environment_which_fills_what_it_leaves_out(
    tmp_path: Path, protocol: OtlpProtocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test() -> None:
        theirs, ours = Collector(), Collector()
        async with serving(theirs, protocol), serving(ours, protocol):
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", theirs.endpoint)
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-whose=environment")
            monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=theirs,deployment.environment=test")
            headers = tmp_path / "headers"
            headers.write_text("x-whose=file")
            for endpoint, file in ((None, None), (ours.endpoint, str(headers))):
                otlp = Otlp(
                    endpoint=endpoint,
                    protocol=protocol,
                    headers_file=file,
                    signals=(Signal.TRACES,),
                    timeout_s=PATIENCE_S,
                )
                out = Outlet(Telemetry(otlp=otlp), resource_of("test"), Tenants(None))
                shadow_spans(out, 1)
                await out.close(PATIENCE_S)
        for collector, whose in ((theirs, "environment"), (ours, "file")):
            assert [seen["x-whose"] for seen in collector.headers] == [whose]
            ((_, request),) = collector.requests
            resource = attributes(request.resource_spans[0].resource)
            assert resource["service.name"] == "theirs"
            assert resource["service.instance.id"] == "test"
            assert resource["deployment.environment"] == "test"

    asyncio.run(asyncio.wait_for(test(), LIMIT_S))


def test_a_missing_credential_is_told_and_the_judge_goes_on(tmp_path: Path) -> None:
    out = outlet("http://127.0.0.1:1", OtlpProtocol.GRPC, headers_file=str(tmp_path / "none"))
    assert out.trouble is not None
    assert out.trouble.startswith("telemetry.otlp.headers_file: ")
    assert out.trouble.endswith("none: No such file or directory")
    assert out.tracing is None
    assert not out.readers


def test_an_unsampled_client_is_obeyed_and_a_broken_context_is_none() -> None:
    async def test() -> None:
        collector = Collector()
        async with collector.over_grpc():
            otlp = Otlp(endpoint=collector.endpoint, signals=(Signal.TRACES,), timeout_s=PATIENCE_S)
            out = Outlet(
                Telemetry(otlp=otlp, traces=Traces(sample_percent=0)), resource_of("test"), Tenants(None)
            )
            assert out.tracing is not None
            own = f"00-{TRACE}-{PARENT}-"
            for number, headers in enumerate(
                [
                    ((b"traceparent", f"{own}00".encode()),),
                    ((b"traceparent", f"{own}01".encode()), (b"traceparent", f"{own}01".encode())),
                    ((b"traceparent", b"00-zz"),),
                    (),
                    ((b"traceparent", f"{own}01".encode()),),
                ]
            ):
                out.tracing.begin(capture(number, *headers))
                out.tracing.dropped(f"capture-{number}", "shutdown")
            await out.close(PATIENCE_S)
        (only,) = collector.spans()
        assert attributes(only)["forkgate.capture_id"] == "capture-4"
        assert attributes(only)["forkgate.drop_reason"] == "shutdown"

    asyncio.run(asyncio.wait_for(test(), LIMIT_S))
