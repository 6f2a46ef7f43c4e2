"""What the chart takes as values, and what it refuses."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import helm_python
import pytest

from forkgate.config.model import JudgeSection
from proxy.edge.settings import Timeouts
from tests.helm.charts import (
    CHART,
    ROOT,
    SETS,
    configuration,
    containers,
    example_chart,
    named,
    notes,
    pods,
    read_yaml,
    render,
    rendered,
    values_of,
)
from tools.chart import render as generated
from tools.chart.values import ValuesError, read_values


def first(**changes: Any) -> dict[str, Any]:
    return {**values_of("first"), **changes}


@pytest.mark.parametrize("name", [None, *SETS])
def test_helm_lint_finds_nothing(name: str | None) -> None:
    report = helm_python.lint(CHART, values_of(name) if name else None, strict=True, kube_version="v1.30.0")
    assert report["errors"] == []
    assert [one["error"] for one in report["messages"] if one["severity"] > 1] == []


def test_helm_lint_finds_nothing_in_the_example(tmp_path: Path) -> None:
    report = helm_python.lint(example_chart(tmp_path), strict=True, kube_version="v1.30.0")
    assert report["errors"] == []
    assert [one["error"] for one in report["messages"] if one["severity"] > 1] == []


def test_generated_files_are_what_their_sources_say() -> None:
    for path, text in generated().items():
        assert path.read_text() == text, f"{path}: run `make chart`"


def test_the_chart_is_of_the_version_that_it_installs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    with helm_python.Chart.load(CHART) as chart:
        assert chart.metadata["appVersion"] == project["version"]


def test_a_packaged_chart_has_all_that_its_templates_read(tmp_path: Path) -> None:
    helm_python.package(CHART, destination=tmp_path)
    (archive,) = tmp_path.iterdir()
    assert render(values_of("full"), archive) == list(rendered("full"))


def test_defaults_alone_are_refused_with_what_is_missing() -> None:
    with pytest.raises(helm_python.HelmRenderError, match=r"config\.pools: empty, name at least the pool"):
        render(None)
    with pytest.raises(helm_python.HelmRenderError, match=r'config\.home: empty.*such as "a"'):
        render({"config": {"pools": [{"name": "a", "endpoints": ["http://a:1"]}]}})


@pytest.mark.parametrize(
    ("values", "named_in_error"),
    [
        ({"replicas": 3}, "replicas"),
        ({"gateway": {"replica": 3}}, "replica"),
        ({"image": {"digest": "sha256:beef"}}, "/image/digest"),
        ({"config": {"pool": []}}, "pool"),
        ({"config": {"rollouts": [{"name": "x", "shadow": {"percents": 3}}]}}, "percents"),
        ({"config": {"timeouts": {"drain": 3}}}, "drain"),
        # What follows from other values is not overwritten in silence.
        ({"config": {"state_dir": "/data"}}, "state_dir"),
        ({"config": {"listen": {"port": 80}}}, "port"),
        ({"config": {"judge": {"address": "elsewhere:1"}}}, "address"),
        ({"config": {"telemetry": {"prometheus": {"port": 1}}}}, "prometheus"),
        ({"mode": "daemonset"}, "/mode"),
    ],
)
def test_a_value_that_would_do_nothing_is_refused(values: dict[str, Any], named_in_error: str) -> None:
    with pytest.raises(helm_python.HelmValuesError, match=named_in_error):
        render({**first(), **values, "config": {**first()["config"], **values.get("config", {})}})


def test_a_parent_charts_globals_are_no_error() -> None:
    assert render(first(**{"global": {"imageRegistry": "registry.example"}})) == list(rendered("first"))


def test_nothing_is_mirrored_until_somebody_sets_a_percent() -> None:
    for part in ("judge", "edge"):
        (config,) = read_yaml(configuration(rendered("first"), part))
        assert [one["shadow"]["percent"] for one in config["rollouts"]] == [0]
        (config,) = read_yaml(configuration(rendered("full"), part))
        shadow = config["rollouts"][0]["shadow"]
        assert (shadow["percent"], shadow["control_percent"]) == (12.5, 0)
    assert "Nothing is copied for a100-to-h100" in notes(values_of("first"))
    assert "Nothing is copied" not in notes(values_of("full"))


def test_large_whole_numbers_stay_whole_numbers() -> None:
    (config,) = read_yaml(configuration(rendered("full"), "judge"))
    assert config["evidence"]["max_bytes"] == 15_000_000_000
    assert isinstance(config["rollouts"][0]["shadow"]["tokens_per_day"], int)


def test_a_digest_counts_more_than_a_tag() -> None:
    digest = f"sha256:{'a' * 64}"
    for image, wanted in (
        ({"repository": "r", "tag": "t", "digest": digest}, f"r@{digest}"),
        ({"registry": "h:5000", "repository": "r", "tag": "t"}, "h:5000/r:t"),
        ({"repository": "r"}, "r:0.1.0"),
    ):
        images = {one["image"] for pod in pods(render(first(image=image))) for one in containers(pod)}
        assert images == {wanted}


def test_names_fit_where_they_must_whatever_the_release_is_called() -> None:
    for release in ("forkgate", "a", "x" * 53):
        with helm_python.Chart.load(CHART) as chart:
            for path, text in chart.render(values_of("full"), name=release, namespace="n").items():
                for one in read_yaml(text) if not path.endswith("NOTES.txt") else ():
                    # A StatefulSet's pods carry a revision hash of ten more characters as a label.
                    assert len(one["metadata"]["name"]) <= 52, one["metadata"]["name"]


def test_what_edges_must_restart_for_is_not_their_rollouts() -> None:
    def annotation(values: dict[str, Any], kind: str, name: str) -> str:
        found = named(render(values), kind, name)["spec"]["template"]["metadata"]["annotations"]
        return str(found["forkgate/config-sha256"])

    before, after, other = first(), first(), first()
    after["config"]["rollouts"][0]["shadow"] = {"percent": 50}
    other["config"]["pools"][0]["endpoints"] = ["http://elsewhere:8000"]
    edge, judge = ("Deployment", "forkgate-edge"), ("StatefulSet", "forkgate-judge")
    assert annotation(before, *edge) == annotation(after, *edge) != annotation(other, *edge)
    assert annotation(before, *judge) != annotation(after, *judge)


def test_time_to_stop_covers_what_the_configuration_grants() -> None:
    full = named(rendered("full"), "Deployment", "forkgate-edge")
    assert full["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 5 + 120 + 15
    edge = named(rendered("first"), "Deployment", "forkgate-edge")
    judge = named(rendered("first"), "StatefulSet", "forkgate-judge")
    assert edge["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 5 + Timeouts().drain_s + 15
    assert judge["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == JudgeSection().drain_s + 70


def test_notes_say_the_next_command_in_each_mode() -> None:
    for name in SETS:
        told = notes(values_of(name))
        assert "kubectl -n inference exec forkgate-judge-0 -- forkgate status" in told
        assert 'forkgate rollout start a100-to-h100 --reason "..."' in told
        assert "forkgate rollout show a100-to-h100" in told
    assert "helm/link-certificates --namespace inference --name forkgate" in notes(values_of("first"))
    assert "link-certificates" not in notes(values_of("full"))  # cert-manager makes them
    assert "None is published there" in notes(values_of("first"))
    assert "None is published there" not in notes(values_of("full"))


def test_notes_hold_a_sidecar_to_paste_into_a_plain_deployment() -> None:
    told = notes(values_of("sidecar"))
    pasted = read_yaml(told[told.index("labels:\n") : told.index("Next, see")])[0]
    assert pasted["labels"] == {"forkgate/edge-of": "forkgate"}
    (sidecar,) = pasted["initContainers"]
    assert (sidecar["name"], sidecar["restartPolicy"], sidecar["args"]) == ("forkgate", "Always", ["edge"])
    assert {one["name"] for one in pasted["volumes"]} == {one["name"] for one in sidecar["volumeMounts"]}


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("a: 1\n", "values.yaml: a: no comment above it, say what it is"),
        ("# A.\na:\n  b: 1\n", "values.yaml: a.b: no comment above it, say what it is"),
        ("# A.\na: []\n", "values.yaml: a: [] tells no type, add a line `# schema: {...}`"),
        ("# A.\n# schema: string\na: x\n", "values.yaml: a: its schema is not a mapping in braces"),
    ],
)
def test_a_value_that_nobody_described_is_an_error(text: str, error: str) -> None:
    with pytest.raises(ValuesError) as caught:
        read_values(text)
    assert str(caught.value) == error
