"""The dashboard and the alerts read metrics that a running judge exports, with the labels that it gives."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families

from policies.policy import shipped_text
from policies.rollout import Stage
from proxy.ledger import DropReason
from tests.helm.charts import CHART, of_kind, rendered
from tests.helm.promql import PromqlError, parse
from tests.support.fake_vllm import FakeVllm
from tests.support.sidecar import Sidecar, eventually_async
from tests.support.waiting import LIMIT_S

Exported = dict[str, set[frozenset[str]]]
"""Name of a series → sets of labels that it came with."""

CLOSED = {
    "forkgate_reason": {str(one) for one in DropReason},
    "forkgate_stage": {str(one) for one in Stage},
    "forkgate_test": {"rollback", "promotion"},
    "forkgate_outcome": {"delivered", "given_up", "lost", "sent", "refused", "dropped"},
    "http_response_status_class": {"2xx", "3xx", "4xx", "5xx", "none"},
}
"""Labels whose values a query may name, and what they can be."""

A_GATE_THAT_TESTS = """
  distribution_shift:
    margin: 0.01
    promotion_margin: 0.02
"""
"""The shipped audit has none, so no e-values."""


HOOKS = """
hooks:
  - {name: oncall, format: slack, url: "http://127.0.0.1:9/", events: [rollback], retry_s: 0}
"""
"""Nobody is there: port 9 is discard's."""


def alerts() -> list[dict[str, Any]]:
    (rule,) = of_kind(rendered("full"), "PrometheusRule")
    (more,) = of_kind(rendered("sidecar"), "PrometheusRule")
    return [one for each in (rule, more) for group in each["spec"]["groups"] for one in group["rules"]]


def dashboard() -> dict[str, Any]:
    (found,) = [
        one for one in of_kind(rendered("full"), "ConfigMap") if "dashboard" in one["metadata"]["name"]
    ]
    board: dict[str, Any] = json.loads(found["data"]["forkgate.json"])
    assert board == json.loads((CHART / "dashboards" / "forkgate.json").read_text())
    return board


def queries() -> Iterator[tuple[str, str]]:
    """Every expression, and the text beside it that names labels of its result."""
    for alert in alerts():
        yield alert["expr"], " ".join(re.findall(r"\$labels\.(\w+)", str(alert["annotations"])))
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "1m").replace("$rollout", ".*")
            yield expression, " ".join(re.findall(r"{{(\w+)}}", target["legendFormat"]))


def test_what_is_read_is_exported_by_a_judge_that_has_seen_everything(tmp_path: Path) -> None:
    exported = asyncio.run(asyncio.wait_for(_scraped_after_a_hard_day(tmp_path), LIMIT_S))
    for expression, legend in queries():
        query = parse(expression)
        assert query.selectors, expression
        told: set[str] = set()
        for one in query.selectors:
            assert one.metric in exported, f"{one.metric}: no judge exports it; in {expression}"
            labels = frozenset.union(*exported[one.metric])
            assert one.matchers.keys() <= labels, f"{one.metric} has {sorted(labels)} only; in {expression}"
            told |= labels
            for label, (operator, value) in one.matchers.items():
                if label in CLOSED and value != ".*":
                    assert set(value.split("|") if "~" in operator else [value]) <= CLOSED[label], expression
        assert query.grouped <= told, f"{sorted(query.grouped - told)} are labels of nothing in {expression}"
        assert set(legend.split()) <= told, f"{legend}: not labels of {expression}"


class Overloaded(FakeVllm):
    """Refuses live requests while it is ``full``."""

    full = False

    def app(self) -> web.Application:
        @web.middleware
        async def refuse(request: web.Request, handler: Any) -> web.StreamResponse:
            if self.full and "x-forkgate-shadow" not in request.headers:
                return web.Response(status=503)
            response: web.StreamResponse = await handler(request)
            return response

        app = super().app()
        app.middlewares.append(refuse)
        return app


async def _scraped_after_a_hard_day(directory: Path) -> Exported:
    """A sidecar that met each thing that has a metric of its own: scrapes of it."""
    async with FakeVllm().serving() as old, Overloaded(pause_s=0.02).serving() as new:
        one = Sidecar(directory, old.url, new.url, workers=2)
        (directory / "ours.yaml").write_text(shipped_text("audit") + A_GATE_THAT_TESTS)
        text = one.file.read_text()
        for old_text, new_text in (
            ("sidecar: test", "sidecar: test, acknowledge_s: 0.2"),
            ("policy: audit", "policy: ./ours.yaml"),
        ):
            assert old_text in text
            text = text.replace(old_text, new_text)
        one.file.write_text(text + HOOKS)
        try:
            await one.start()
            await _live_traffic(one, new)
            before = await _scrape(one)  # once a rollout is rolled back, nobody watches its way back
            await _a_rollback_that_one_edge_does_not_hear(one, new)
            after = await _scrape(one)
            return {
                name: before.get(name, set()) | after.get(name, set())
                for name in before.keys() | after.keys()
            }
        finally:
            for pid in one.pids("edge 1"):
                os.kill(pid, signal.SIGCONT)
            await one.close()


async def _live_traffic(one: Sidecar, new: Overloaded) -> None:
    for tenant in ("acme", "globex"):
        assert (await one.request(tenant, f"{tenant} asks"))[0] == 200
    # A request that cannot be compared.
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{one.url}/v1/completions", data=b"{", headers={"x-tenant": "globex"}) as response,
    ):
        await response.read()
    # A client that leaves in the middle of its answer.
    body = {"model": "m", "prompt": "leaves", "max_tokens": 200, "stream": True, "temperature": 0}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{one.url}/v1/completions", json=body, headers={"x-tenant": "acme"}) as response,
    ):
        await response.content.readany()
    # A candidate that takes no more: home answers its canary.
    new.full = True
    assert (await one.request("acme", "nobody there"))[0] == 200
    new.full = False

    async def counted() -> bool:
        """Before an edge is stopped, which holds what it has not told yet."""
        found = await one.status()
        told = {f"forkgate_{name}_total" for name in ("live_aborted", "live_retried", "shadow_drops")}
        told.add("forkgate_pool_ready")  # its first look comes once an engine's model is known
        return bool(found["ledger"]["compared"] >= 1 and told <= (await _scrape(one)).keys())

    await eventually_async(counted, "a comparison, a drop, and all live records")


async def _a_rollback_that_one_edge_does_not_hear(one: Sidecar, new: FakeVllm) -> None:
    os.kill(one.pids("edge 1")[-1], signal.SIGSTOP)
    new.lies.add("forks at token 2")

    async def told() -> bool:
        if (await one.status())["rollouts"][0]["state"] != "rolled_back":
            async with (
                aiohttp.ClientSession() as session,
                session.post(
                    f"{one.url}/v1/completions",
                    json={"model": "m", "prompt": os.urandom(4).hex(), "max_tokens": 6, "temperature": 0},
                    headers={"x-tenant": "globex", "connection": "close"},
                ) as response,
            ):
                await response.read()
        # The fork is counted once its pair has come to its end, which may be after the flip.
        return {"forkgate_flip_unacknowledged_total", "forkgate_shadow_forks_total"} <= (
            await _scrape(one)
        ).keys()

    await eventually_async(told, "a flip that was not acknowledged")


async def _scrape(one: Sidecar) -> Exported:
    address = (await one.status())["metrics"]
    async with aiohttp.ClientSession() as session, session.get(address) as response:
        page = await response.text()
    exported: Exported = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            exported.setdefault(sample.name, set()).add(frozenset(sample.labels))
    return exported


@pytest.mark.parametrize("expression", [one for one, _ in queries()])
def test_every_query_parses(expression: str) -> None:
    assert parse(expression).selectors


@pytest.mark.parametrize(
    "expression",
    [
        "sum by (a (b)",
        "rate(a)",
        "rate(a[5])",
        "a{b=c}",
        "sum(a) by",
        "a == == 1",
        "a and on b",
        "increse(a[5m])",
        'a{b="c"',
        "a b",
        "sum(a[5m]) >",
    ],
)
def test_what_is_no_query_is_told(expression: str) -> None:
    with pytest.raises(PromqlError):
        parse(expression)


def test_every_alert_says_how_grave_it_is_and_what_to_do() -> None:
    names = [one["alert"] for one in alerts()]
    assert {
        "ForkgateRolledBack",
        "ForkgateHeld",
        "ForkgateFlipUnacknowledged",
        "ForkgateEdgesMissing",
        "ForkgateNoVerdict",
        "ForkgateEvidenceFailing",
        "ForkgateOldPoolLost",
        "ForkgateTenantsHome",
        "ForkgateHookFailing",
    } <= set(names)
    for one in alerts():
        assert one["labels"]["severity"] in ("critical", "warning")
        assert one["annotations"]["summary"]
        assert one["annotations"]["action"]


def test_panels_have_a_place_of_their_own_and_say_what_they_mean() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells
        assert panel["type"] == "row" or panel["description"]
