"""What the chart makes of its values, held against Kubernetes' schemas and forkgate's own reader."""

from __future__ import annotations

import ipaddress
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from policies.policy import shipped_text
from tests.helm.charts import (
    SETS,
    Manifest,
    configuration,
    containers,
    named,
    of_kind,
    pods,
    read_yaml,
    render,
    rendered,
    values_of,
)
from tests.support.certificates import Authority

ALL = (*SETS, "example")
OPERATORS_OWN = {"Certificate", "PrometheusRule", "ServiceMonitor"}
"""Kinds of cert-manager and the Prometheus operator: Kubernetes has no schema of them."""


@pytest.mark.parametrize("version", ["1.30", "1.33", "1.37"])
@pytest.mark.parametrize("name", ALL)
def test_kubernetes_takes_every_object(name: str, version: str) -> None:
    for one in rendered(name):
        if one["kind"] not in OPERATORS_OWN:
            kubernetes_validate.validate(one, version, strict=True)


def test_the_full_set_makes_every_kind_of_object() -> None:
    kinds = "ConfigMap Deployment HorizontalPodAutoscaler NetworkPolicy PodDisruptionBudget Secret Service"
    assert {one["kind"] for one in rendered("full")} == OPERATORS_OWN | {
        *kinds.split(),
        "ServiceAccount",
        "StatefulSet",
    }


@pytest.mark.parametrize("name", ALL)
def test_objects_say_their_namespace_and_whose_they_are(name: str) -> None:
    for one in rendered(name):
        assert one["metadata"]["namespace"] == "inference", one["metadata"]["name"]
        if "forkgate" in one["metadata"]["name"]:
            assert one["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "Helm"
    keys = [(one["kind"], one["metadata"]["name"]) for one in rendered(name)]
    assert len(keys) == len(set(keys))


def _ours(name: str) -> Iterator[tuple[Manifest, Manifest]]:
    """Pods and forkgate's containers in them."""
    for pod in pods(rendered(name)):
        for one in containers(pod):
            if one["args"] in (["edge"], ["judge"]):
                yield pod, one


@pytest.mark.parametrize("name", ALL)
def test_every_container_of_ours_is_hardened_in_itself(name: str) -> None:
    """Not by its pod alone: a sidecar lives in somebody else's."""
    found = list(_ours(name))
    assert len(found) == (1 if name == "sidecar" else 2)
    for pod, one in found:
        security = one["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] == security["runAsGroup"] == 65532
        assert security["readOnlyRootFilesystem"] is True
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert one["resources"]["requests"]
        assert one["resources"]["limits"]["memory"]
        assert pod["spec"]["automountServiceAccountToken"] is False
        for forbidden in ("hostNetwork", "hostPID", "hostIPC"):
            assert forbidden not in pod["spec"]
        assert not any("hostPath" in volume for volume in pod["spec"]["volumes"])
    for account in of_kind(rendered(name), "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


@pytest.mark.parametrize("name", ALL)
def test_every_mount_has_its_volume_and_every_port_its_name(name: str) -> None:
    for pod in pods(rendered(name)):
        volumes = {one["name"] for one in pod["spec"]["volumes"]}
        volumes |= {"state"} if "judge" in str(pod["metadata"]["labels"]) else set()  # from its claim
        mounted = [one["name"] for each in containers(pod) for one in each.get("volumeMounts", ())]
        assert set(mounted) == volumes
        for each in containers(pod):
            paths = [one["mountPath"] for one in each.get("volumeMounts", ())]
            assert len(paths) == len(set(paths))
            assert not any(a != b and b.startswith(f"{a}/") for a in paths for b in paths)
            ports = {one["name"] for one in each["ports"]}
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                for probe in each.get(kind, {}).values():
                    assert not isinstance(probe, dict) or probe["port"] in ports


@pytest.mark.parametrize("name", ALL)
def test_services_policies_and_budgets_select_the_pods_that_they_are_for(name: str) -> None:
    manifests = rendered(name)
    labels = [pod["metadata"]["labels"] for pod in pods(manifests)]

    def matching(selector: dict[str, str]) -> list[Manifest]:
        return [
            pod for pod, has in zip(pods(manifests), labels, strict=True) if selector.items() <= has.items()
        ]

    for service in of_kind(manifests, "Service"):
        (pod,) = matching(service["spec"]["selector"])
        ports = {value for one in containers(pod) for port in one["ports"] for value in port.values()}
        assert {one["targetPort"] for one in service["spec"]["ports"]} <= ports
    for kind in ("Deployment", "StatefulSet"):
        for one in of_kind(manifests, kind):
            assert len(matching(one["spec"]["selector"]["matchLabels"])) == 1
    for policy in of_kind(manifests, "NetworkPolicy"):
        (pod,) = matching(policy["spec"]["podSelector"]["matchLabels"])
        ports = {port["name"] for one in containers(pod) for port in one["ports"]}
        assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} == ports
    for budget in of_kind(manifests, "PodDisruptionBudget"):
        assert len(matching(budget["spec"]["selector"]["matchLabels"])) == 1
    # Whoever runs an edge is let through to the judge's link, in whichever Deployment it is.
    judge = named(manifests, "NetworkPolicy", "forkgate-judge")
    (allowed,) = judge["spec"]["ingress"][0]["from"]
    if name != "sidecar":
        edges = [pod for pod in pods(manifests) if ["edge"] in [one["args"] for one in containers(pod)]]
        assert matching(allowed["podSelector"]["matchLabels"]) == edges
        assert len(edges) == 1


@pytest.mark.parametrize("name", ALL)
def test_a_rollout_has_one_writer_whose_latch_outlives_the_release(name: str) -> None:
    judge = named(rendered(name), "StatefulSet", "forkgate-judge")["spec"]
    assert judge["replicas"] == 1
    (claim,) = judge["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert judge["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Retain"


def test_an_autoscaler_alone_sets_the_number_of_edges() -> None:
    assert "replicas" not in named(rendered("full"), "Deployment", "forkgate-edge")["spec"]
    scaler = of_kind(rendered("full"), "HorizontalPodAutoscaler")[0]["spec"]
    assert (scaler["scaleTargetRef"]["name"], scaler["minReplicas"], scaler["maxReplicas"]) == (
        "forkgate-edge", 2, 20,
    )  # fmt: skip
    assert named(rendered("first"), "Deployment", "forkgate-edge")["spec"]["replicas"] == 2


def test_a_sidecar_starts_before_its_engine_and_ends_after_it() -> None:
    spec = named(rendered("example"), "Deployment", "vllm")["spec"]["template"]["spec"]
    (edge,) = spec["initContainers"]
    assert (edge["restartPolicy"], edge["args"]) == ("Always", ["edge"])
    assert edge["startupProbe"]
    clients = named(rendered("example"), "Service", "vllm")["spec"]["ports"][0]["targetPort"]
    assert clients == edge["ports"][0]["containerPort"] != spec["containers"][0]["ports"][0]["containerPort"]


def test_a_kubelet_asks_for_readiness_where_it_can() -> None:
    def probe(admin: dict[str, Any]) -> Any:
        manifests = render({**values_of("first"), "admin": admin})
        judge = named(manifests, "StatefulSet", "forkgate-judge")["spec"]["template"]
        return containers(judge)[0].get("readinessProbe")

    assert probe({}) is None
    assert probe({"tlsSecret": "x"})["httpGet"] == {"path": "/readyz", "port": "admin", "scheme": "HTTPS"}
    assert probe({"tlsSecret": "x", "tlsClientCa": True}) is None


def test_sidecar_mode_leaves_the_gateways_objects_out() -> None:
    assert not of_kind(rendered("sidecar"), "Deployment")
    assert [one["metadata"]["name"] for one in of_kind(rendered("sidecar"), "Service")] == ["forkgate-judge"]


@pytest.mark.parametrize("name", ALL)
def test_no_secret_stands_in_a_manifest(name: str) -> None:
    """Keys, tokens and credentials come from Secrets that the chart only names."""
    for one in rendered(name):
        if one["kind"] == "Secret":
            assert list(one["stringData"]) == ["forkgate.yaml"]
            assert one["metadata"]["name"] in ("forkgate-judge", "forkgate-edge")
        assert "PRIVATE KEY" not in str(one)
    for _, container in _ours(name):
        for variable in container["env"]:
            assert variable["name"] == "FORKGATE_CONFIG" or "valueFrom" in variable


def test_edges_are_not_given_what_only_the_judge_reads() -> None:
    (edge,) = read_yaml(configuration(rendered("full"), "edge"))
    (judge,) = read_yaml(configuration(rendered("full"), "judge"))
    assert {"admin", "evidence", "telemetry", "hooks"} <= judge.keys()
    assert {"admin", "evidence", "telemetry", "hooks"}.isdisjoint(edge.keys())
    assert "credential_file" in str(judge)
    assert "credential_file" not in str(edge)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("part", ["judge", "edge"])
def test_forkgate_takes_the_configuration_that_the_chart_makes(name: str, part: str, tmp_path: Path) -> None:
    text = configuration(rendered(name), part)
    (config,) = read_yaml(text)
    authority = Authority(tmp_path)
    certificate = authority.issue("judge")
    # The files that the pod would mount; the reader asks that they exist. Policies are read in full.
    pod = next(pod for pod, one in _ours(name) if one["args"] == [part]) if name != "sidecar" else None
    for file in sorted(set(re.findall(r"/etc/forkgate/[\w./-]+", text))):
        target = tmp_path / file.removeprefix("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if "/policies/" in file:
            target.write_text(shipped_text("audit"))
        elif "/admin/" in file and target.suffix in (".crt", ".key"):  # the reader loads them
            given = {"tls.crt": certificate.cert_file, "tls.key": certificate.key_file}
            target.write_bytes(Path(given.get(target.name, authority.cert_file)).read_bytes())
        else:
            target.write_text("x")
        if pod is not None:
            mounts = [mount["mountPath"] for one in containers(pod) for mount in one.get("volumeMounts", ())]
            assert any(file.startswith(f"{mount}/") for mount in mounts), f"{file} is mounted nowhere"
    file = tmp_path / "forkgate.yaml"
    file.write_text(text.replace("/etc/forkgate/", f"{tmp_path}/etc/forkgate/"))
    done = subprocess.run(
        [sys.executable, "-m", "forkgate", "check-config", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert config["state_dir"] == "/var/lib/forkgate/state"
    _addresses_fit(name, part, config)


def _addresses_fit(name: str, part: str, config: dict[str, Any]) -> None:
    host, _, port = config["judge"]["address"].rpartition(":")
    service = named(rendered(name), "Service", "forkgate-judge")
    assert int(port) in [one["port"] for one in service["spec"]["ports"] if one["name"] == "link"]
    if part == "judge":
        assert ipaddress.ip_address(host.strip("[]")).is_unspecified
    else:
        assert host == f"{service['metadata']['name']}.inference.svc"


def test_pods_that_have_ipv6_only_are_listened_on() -> None:
    manifests = render({**values_of("first"), "listenAddress": "::"})
    (judge,) = read_yaml(configuration(manifests, "judge"))
    (edge,) = read_yaml(configuration(manifests, "edge"))
    assert judge["judge"]["address"] == "[::]:9466"
    assert judge["telemetry"]["prometheus"]["host"] == edge["listen"]["host"] == "::"


def test_cert_manager_makes_certificates_for_the_names_that_are_asked_for() -> None:
    judge = named(rendered("full"), "Certificate", "forkgate-judge-link")["spec"]
    edge = named(rendered("full"), "Certificate", "forkgate-edge-link")["spec"]
    (config,) = read_yaml(configuration(rendered("full"), "edge"))
    assert judge["dnsNames"] == [config["judge"]["address"].rpartition(":")[0]]
    assert ("server auth" in judge["usages"], "client auth" in edge["usages"]) == (True, True)
    for part, certificate in (("judge", judge), ("edge", edge)):
        assert certificate["issuerRef"] == {"name": "inference-ca", "kind": "Issuer"}
        (pod,) = [pod for pod, one in _ours("full") if one["args"] == [part]]
        volume = next(one for one in pod["spec"]["volumes"] if one["name"] == "link")
        assert volume["secret"]["secretName"] == certificate["secretName"]


def test_alerts_know_how_many_edges_there_must_be() -> None:
    def expression(values: dict[str, Any]) -> str:
        (rule,) = of_kind(render(values), "PrometheusRule")
        alerts = {one["alert"]: one for group in rule["spec"]["groups"] for one in group["rules"]}
        return str(alerts["ForkgateEdgesMissing"]["expr"])

    full, sidecar = values_of("full"), values_of("sidecar")
    assert expression(full) == "forkgate_edges_connected < 4"  # two pods at least, two workers each
    assert "max_over_time" in expression(sidecar)
    sidecar["metrics"]["prometheusRule"]["edgesAtLeast"] = 7
    assert expression(sidecar) == "forkgate_edges_connected < 7"
