"""The chart and its example, rendered by Helm's own engine without a cluster."""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import helm_python
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "forkgate"
EXAMPLE = ROOT / "helm" / "examples" / "vllm-sidecar"
SETS = ("first", "full", "sidecar")
"""Files of values in ``helm/forkgate/ci``."""
RELEASE = "forkgate"
NAMESPACE = "inference"

Manifest = dict[str, Any]


def read_yaml(text: str) -> list[Any]:
    """Every document that is not empty."""
    return [one for one in YAML(typ="safe", pure=True).load_all(text) if one is not None]


def values_of(name: str) -> dict[str, Any]:
    """A fresh copy of one value set."""
    values: dict[str, Any] = read_yaml((CHART / "ci" / f"{name}-values.yaml").read_text())[0]
    return values


def templates(values: dict[str, Any] | None, chart: Path = CHART) -> dict[str, str]:
    """Path of a template → what it renders to."""
    with helm_python.Chart.load(chart) as one:
        return one.render(values, name=RELEASE, namespace=NAMESPACE)


def notes(values: dict[str, Any]) -> str:
    return templates(values)["forkgate/templates/NOTES.txt"]


def render(values: dict[str, Any] | None, chart: Path = CHART) -> list[Manifest]:
    """Every object."""
    return [
        manifest
        for path, text in sorted(templates(values, chart).items())
        if not path.endswith("NOTES.txt")
        for manifest in read_yaml(text)
    ]


@functools.cache
def rendered(name: str) -> tuple[Manifest, ...]:
    """Objects of a value set, or of the ``example`` chart."""
    if name == "example":
        with tempfile.TemporaryDirectory() as directory:
            return tuple(render(None, example_chart(Path(directory))))
    return tuple(render(values_of(name)))


def example_chart(directory: Path) -> Path:
    """A copy of the example with its dependency packaged into it, by ``helm dependency update``."""
    copy = directory / "helm"
    shutil.copytree(ROOT / "helm", copy)
    chart = copy / "examples" / EXAMPLE.name
    helm_python.dependency_update(chart)
    return chart


def of_kind(manifests: Any, kind: str) -> list[Manifest]:
    return [one for one in manifests if one["kind"] == kind]


def named(manifests: Any, kind: str, name: str) -> Manifest:
    found = [one for one in of_kind(manifests, kind) if one["metadata"]["name"] == name]
    assert len(found) == 1, f"{kind} {name}: {len(found)} of them"
    return found[0]


def pods(manifests: Any) -> list[Manifest]:
    """Pod templates of everything that makes pods."""
    return [one["spec"]["template"] for one in manifests if one["kind"] in ("Deployment", "StatefulSet")]


def containers(pod: Manifest) -> list[Manifest]:
    spec = pod["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]


def configuration(manifests: Any, part: str) -> str:
    """The forkgate.yaml that this part's pods mount."""
    for one in manifests:
        if one["kind"] in ("Secret", "ConfigMap") and one["metadata"]["name"] == f"{RELEASE}-{part}":
            text: str = one.get("stringData", one.get("data"))["forkgate.yaml"]
            return text
    raise AssertionError(f"no configuration for {part}")
