"""Manifests for other tools' gates, as files and on the page, name what the chart and the API really have."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.helm.charts import NAMESPACE, ROOT, named, read_yaml, rendered

PATHS: dict[str, Any] = json.loads((ROOT / "docs" / "openapi.json").read_text())["paths"]
VERDICT = "/v1/rollouts/{name}/verdict"
PAGE = (ROOT / "docs" / "hooks.md").read_text()


def example(path: str) -> dict[str, Any]:
    (one,) = read_yaml((ROOT / "helm" / "examples" / path).read_text())
    return dict(one)


def on_the_page(word: str) -> dict[str, Any]:
    (text,) = [block for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if word in block]
    return dict(read_yaml(text)[0])


def asked(url: str, method: str) -> dict[str, list[str]]:
    """The query of a URL that leads to the chart's judge and to its verdict."""
    parts = urlsplit(url.replace("{{args.rollout}}", "a100-to-h100"))
    service = named(rendered("full"), "Service", "forkgate-judge")
    (admin,) = [port["port"] for port in service["spec"]["ports"] if port["name"] == "admin"]
    assert (parts.scheme, parts.hostname, parts.port) == ("https", f"forkgate-judge.{NAMESPACE}.svc", admin)
    assert re.fullmatch(VERDICT.replace("{name}", "[a-z0-9-]+"), parts.path)
    assert method in PATHS[VERDICT]
    return parse_qs(parts.query)


def test_argo_rollouts_reads_a_word_that_a_verdict_may_be() -> None:
    template = example("argo-rollouts/analysis-template.yaml")
    assert template == on_the_page("AnalysisTemplate")
    (metric,) = template["spec"]["metrics"]
    web = metric["provider"]["web"]
    assert asked(web["url"], "get") == {}
    assert web["jsonPath"] == "{$.verdict}"
    schemas = json.loads((ROOT / "docs" / "openapi.json").read_text())["components"]["schemas"]
    assert "verdict" in schemas["VerdictAnswer"]["required"]
    words = re.findall(r'result == "([a-z]+)"', metric["successCondition"] + metric["failureCondition"])
    # What is left, "inconclusive", meets neither condition: it pauses, and is neither a pass nor a failure.
    assert {*words, "inconclusive"} == set(schemas["Answer"]["enum"])
    assert metric["inconclusiveLimit"] == metric["count"] - 1


def test_flagger_asks_for_what_the_api_expects_and_never_takes_want_of_evidence_for_a_failure() -> None:
    webhooks = example("flagger/canary.yaml")["spec"]["analysis"]["webhooks"]
    assert webhooks == on_the_page("confirm-traffic-increase")["analysis"]["webhooks"]
    (parameter,) = [one for one in PATHS[VERDICT]["post"]["parameters"] if one["name"] == "expect"]
    expected = {hook["type"]: asked(hook["url"], "post").get("expect", ["pass"])[0] for hook in webhooks}
    assert expected == {"confirm-traffic-increase": "pass", "confirm-promotion": "pass", "rollback": "fail"}
    assert set(expected.values()) <= set(parameter["schema"]["enum"])
