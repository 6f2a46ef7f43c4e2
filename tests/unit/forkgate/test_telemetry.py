"""Metrics: names, labels that a client cannot multiply, and the page that shows them."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import pytest
import uvloop
from msgspec.structs import replace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from prometheus_client import CollectorRegistry, generate_latest

from comparator.records import Fact
from forkgate.telemetry import Instruments, MetricsPage, Observed, PageError, RolloutObserved
from forkgate.telemetry.environments import MOST
from policies.verdict import Answer, Verdict
from tests.support.exchanges import comparison, live, pair

OLD = Fact(value="sha256:" + "0" * 64)
NEW = Fact(value="sha256:" + "e" * 64)


def observed() -> Observed:
    return Observed(
        edges=4,
        epoch=9,
        captured=10,
        compared=6,
        dropped={"too_old": 3},
        in_flight=1,
        rolled_back={"r": True},
        evidence_bytes=4096,
        shadow_tokens={("r", "old"): 70, ("r", "new"): 68},
        shadow_requests={("r", "old"): 6, ("r", "new"): 5},
        live_set_aside={("r", "new"): 7},
        rollout_drops={("r", "too_old"): 2},
        shadow_refused={("r", "kv_cache"): 11},
        hooks_waiting={"oncall": 4},
        hook_deliveries={("oncall", "given_up"): 3},
        hook_answers={("deploys", "vetoed"): 5},
        environments={("old", OLD.value): 2, ("new", NEW.value): 1, ("new", ""): 3},
    )


VERDICT = Verdict(
    gate="fork_hazard",
    answer=Answer.INCONCLUSIVE,
    value=1.2,
    limit=1.5,
    n=80,
    reason="x",
    rollback_nats=2.5,
    promotion_nats=-1.0,
)


def rollouts() -> list[RolloutObserved]:
    return [
        RolloutObserved(
            name="r",
            stage="shadow",
            held="choice",
            verdicts=lambda: [VERDICT],
            suites={"starter": (1_200, 5_000)},
        )
    ]


async def scrape(instruments_with: list[str]) -> dict[str, str]:
    page = MetricsPage("127.0.0.1", 0)
    instruments = Instruments(
        [page.reader], {"service.name": "forkgate"}, instruments_with, observed, rollouts
    )
    await page.start()
    instruments.live(
        [live(tenant="acme", status=200), live(tenant="<script>", status=503), live(tenant="x2", status=0)]
    )
    instruments.live([live(tenant="acme", status=200, retried=True, aborted_by="client", canary=True)])
    instruments.comparison(comparison(pair(left={"digest": OLD}, right={"digest": NEW})))
    instruments.fork("r", "new", "candidate", NEW.value, "tie_flip")
    instruments.flip("r", 0.012, 0.003, 1)
    instruments.verdict("r", Verdict(gate="g", answer=Answer.FAIL, value=1.0, limit=0.0, n=1, reason="x"))
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{page.port}/metrics") as response,
    ):
        assert response.status == 200
        text = await response.text()
    await page.close()
    instruments.close()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return dict(line.rsplit(" ", 1) for line in lines)


def value(found: dict[str, str], name: str, *labels: str) -> float:
    (number,) = [
        float(at)
        for series, at in found.items()
        if series.partition("{")[0] == name and all(label in series for label in labels)
    ]
    return number


def test_page_shows_every_instrument() -> None:
    found = uvloop.run(scrape(["acme"]))
    assert (
        value(
            found,
            "forkgate_live_requests_total",
            'forkgate_tenant="acme"',
            'status_class="2xx"',
            'pool="old"',
        )
        == 1
    )
    assert value(found, "forkgate_live_requests_total", 'forkgate_tenant="acme"', 'pool="new"') == 1
    assert value(found, "forkgate_live_retried_total") == 1
    assert value(found, "forkgate_live_aborted_total", 'aborted_by="client"') == 1
    assert value(found, "forkgate_live_time_to_first_byte_seconds_count", 'pool="old"') == 3
    assert value(found, "forkgate_live_response_size_bytes_total", 'tenant="acme"', 'pool="old"') == 1_000
    assert value(found, "forkgate_live_response_size_bytes_total", 'tenant="other"') == 2_000
    assert value(found, "forkgate_shadow_tokens_total", 'rollout="r"', 'pool="old"') == 70
    assert value(found, "forkgate_shadow_tokens_total", 'rollout="r"', 'pool="new"') == 68
    assert value(found, "forkgate_shadow_requests_total", 'rollout="r"', 'pool="new"') == 5
    assert value(found, "forkgate_shadow_captures_total") == 10
    assert value(found, "forkgate_shadow_drops_total", 'reason="too_old"') == 3
    assert value(found, "forkgate_rollout_drops_total", 'rollout="r"', 'reason="too_old"') == 2
    assert value(found, "forkgate_shadow_refused_total", 'rollout="r"', 'refusal="kv_cache"') == 11
    assert value(found, "forkgate_hook_waiting", 'hook="oncall"') == 4
    assert value(found, "forkgate_hook_deliveries_total", 'hook="oncall"', 'outcome="given_up"') == 3
    assert value(found, "forkgate_hook_answers_total", 'hook="deploys"', 'answer="vetoed"') == 5
    assert value(found, "forkgate_shadow_forks_total", 'arm="candidate"', 'fork_class="tie_flip"') == 1
    assert value(found, "forkgate_shadow_pairs_total", 'arm="candidate"') == 1
    assert value(found, "forkgate_gate_log_e", 'gate="fork_hazard"', 'test="rollback"') == 2.5
    assert value(found, "forkgate_gate_log_e", 'gate="fork_hazard"', 'test="promotion"') == -1.0
    assert value(found, "forkgate_gate_observations", 'gate="fork_hazard"') == 80
    assert value(found, "forkgate_suite_answers", 'suite="starter"', 'answers="there"') == 1_200
    assert value(found, "forkgate_suite_answers", 'suite="starter"', 'answers="wanted"') == 5_000
    assert value(found, "forkgate_rollout_stage", 'stage="shadow"') == 1
    assert value(found, "forkgate_rollout_held", 'hold_cause="choice"') == 1
    assert value(found, "forkgate_flip_duration_seconds_sum") == 0.012
    assert value(found, "forkgate_flip_fsync_duration_seconds_sum") == 0.003
    assert value(found, "forkgate_flip_unacknowledged_total") == 1
    assert value(found, "forkgate_gate_verdicts_total", 'answer="fail"') == 1
    assert value(found, "forkgate_edges_connected") == 4
    assert value(found, "forkgate_routes_epoch") == 9
    assert value(found, "forkgate_rollout_rolled_back", 'rollout="r"') == 1


def test_old_and_new_replicas_are_never_one_series() -> None:
    found = uvloop.run(scrape(["acme"]))
    old, new = f'environment="{OLD.value[:19]}"', f'environment="{NEW.value[:19]}"'
    pairs = "forkgate_shadow_pairs_total"
    assert value(found, pairs, f"forkgate_{new}", f"forkgate_baseline_{old}", 'set_aside=""') == 1
    assert value(found, "forkgate_shadow_arm_tokens_total", old, 'arm="baseline"') == 3
    assert value(found, "forkgate_shadow_arm_tokens_total", new, 'arm="candidate"') == 3
    assert value(found, "forkgate_shadow_forks_total", new) == 1
    assert value(found, "forkgate_pool_endpoints", 'pool="old"', old) == 2
    assert value(found, "forkgate_pool_endpoints", 'pool="new"', 'environment="unknown"') == 3
    assert value(found, "forkgate_live_set_aside_total", 'rollout="r"', 'pool="new"') == 7


def test_live_series_are_split_by_the_environment_that_answered_and_bounded() -> None:
    registry = CollectorRegistry()
    reader = PrometheusMetricReader(scope_info_enabled=False, registry=registry)
    instruments = Instruments([reader], {}, ["acme"], observed, rollouts)
    digests = [f"sha256:{number:012x}" + "0" * 52 for number in range(500)]
    instruments.live([replace(live(first_byte_s=1.0), environment=digest) for digest in digests])
    instruments.live([replace(live(status=500, first_byte_s=3.0), environment=digests[0])])
    instruments.live([replace(live(), environment=told) for told in ("?", "")])
    text = generate_latest(registry).decode()
    page_lines = [line for line in text.splitlines() if line.startswith("forkgate_live_requests_total")]
    assert len(page_lines) == MOST + 1 + 3  # one failed; odd, unknown and other
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    first = f'environment="{digests[0][:19]}"'
    seconds = "forkgate_live_time_to_first_byte_seconds"
    assert value(found, f"{seconds}_sum", first) == 4.0
    assert value(found, f"{seconds}_sum", f'environment="{digests[1][:19]}"') == 1.0
    assert value(found, f"{seconds}_count", 'environment="other"') == 500 - MOST
    assert value(found, "forkgate_live_requests_total", 'environment="odd"') == 1
    assert value(found, "forkgate_live_requests_total", 'environment="unknown"') == 1
    instruments.close()


def test_tenant_that_nobody_configured_makes_no_series_of_its_own() -> None:
    found = uvloop.run(scrape(["acme"]))
    assert not [series for series in found if "script" in series or "x2" in series]
    assert value(found, "forkgate_live_requests_total", 'tenant="other"', 'status_class="5xx"') == 1
    assert value(found, "forkgate_live_requests_total", 'tenant="other"', 'status_class="none"') == 1


def test_taken_port_is_refused_in_words() -> None:
    async def main() -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            port = other.getsockname()[1]
            with pytest.raises(PageError, match=rf"127\.0\.0\.1:{port} cannot be listened on"):
                await MetricsPage("127.0.0.1", port).start()

    asyncio.run(main())


def test_port_that_comes_free_is_taken_at_the_next_try() -> None:
    async def main() -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            page = MetricsPage("127.0.0.1", other.getsockname()[1])
            with pytest.raises(PageError):
                await page.start()
            assert page.address is None
            assert "choose another port" in (page.trouble or "")
        await page.start()
        await page.start()  # it listens already
        assert page.address == f"http://127.0.0.1:{page.port}/metrics"
        assert page.trouble is None
        await page.close()

    asyncio.run(main())
