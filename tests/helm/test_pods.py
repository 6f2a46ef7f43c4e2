"""The chart, installed by hand: its manifests, certificates and image run a judge and an edge that compare.

Nothing here knows a cluster; what a kubelet does with the manifests is done by ``tests.helm.pods``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme

from tests.helm.charts import CHART, Manifest, example_chart, named, pods, read_yaml, render
from tests.helm.pods import Pod, can_mount
from tests.support.fake_vllm import FakeVllm
from tests.support.ports import free_port
from tests.support.sidecar import eventually_async
from tests.support.waiting import LIMIT_S, PATIENCE_S
from tools.rootfs import UID

pytestmark = pytest.mark.skipif(not can_mount(), reason="needs root and mount namespaces, as a kubelet does")

ROOT = Path(__file__).parents[2]


def values(old: str, new: str) -> dict[str, Any]:
    """The first value set, with engines that are there, ports that are free, and the mirror turned on."""
    link, http, metrics = (free_port() for _ in range(3))
    return {
        "config": {
            "pools": [{"name": "old", "endpoints": [old]}, {"name": "new", "endpoints": [new]}],
            "home": "old",
            "capture": {"flush_s": 0.01},
            "rollouts": [
                {
                    "name": "old-to-new",
                    "baseline": "old",
                    "candidate": "new",
                    "policy": "audit",
                    "global_seed": "s",
                    "checks": {"self_check": False, "quick_check": False},
                    "shadow": {"percent": 100, "token_only_percent": 0, "logprobs": 5},
                }
            ],
        },
        "link": {"port": link},
        "edge": {"port": http},
        "judge": {"metricsPort": metrics},
    }


def certificates() -> list[Manifest]:
    """What the script for `kubectl apply -f -` prints."""
    done = subprocess.run(
        [ROOT / "helm/link-certificates", "--namespace", "inference", "--name", "forkgate"],
        capture_output=True,
        text=True,
        check=True,
    )
    return read_yaml(done.stdout)


class Release:
    """The pods of one `helm install`."""

    def __init__(
        self,
        directory: Path,
        rootfs: Path,
        chosen: dict[str, Any],
        chart: Path = CHART,
        secrets: Sequence[Manifest] = (),
    ) -> None:
        """``secrets`` are there beside those of the link."""
        manifests = render(chosen if chart == CHART else {"forkgate": chosen}, chart)
        objects = [*manifests, *certificates(), *secrets]
        host = ["forkgate-judge.inference.svc"]
        judge = named(manifests, "StatefulSet", "forkgate-judge")["spec"]["template"]
        (edge,) = [pod for pod in pods(manifests) if pod is not judge]
        for name in ("judge", "edge"):
            (directory / name).mkdir(mode=0o755)
        self.judge = Pod(directory / "judge", rootfs, judge, objects, hosts=host)
        self.edge = Pod(directory / "edge", rootfs, edge, objects, hosts=host)
        self.url = f"http://127.0.0.1:{chosen['edge']['port']}"
        self.metrics = f"http://127.0.0.1:{chosen['judge']['metricsPort']}/metrics"
        self.processes: list[subprocess.Popen[bytes]] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.processes = [self.judge.start(), self.edge.start()]
        try:
            await eventually_async(self._ready, "a judge with an edge and two engines")
            yield
        except AssertionError as error:
            logs = "".join(pod.log_file.read_text()[-4000:] for pod in (self.judge, self.edge))
            raise AssertionError(f"{error}; logs of the pods:\n{logs}") from error
        finally:
            for process in self.processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()

    async def _ready(self) -> bool:
        for pod, process in zip((self.judge, self.edge), self.processes, strict=True):
            assert process.poll() is None, pod.log_file.read_text()[-4000:]
        with contextlib.suppress(aiohttp.ClientError, OSError):
            found = await self.status()
            edges = [one for one in found["edges"] if one["connected"] and one["epoch"] == found["epoch"]]
            return len(edges) == 1 and not found["troubles"]
        return False

    async def status(self) -> dict[str, Any]:
        path = self.judge.volumes / "state" / "state" / "admin.sock"
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session,
            session.get("http://judge/v1/status") as response,
        ):
            found: dict[str, Any] = await response.json()
            return found

    async def ask(self, prompt: str) -> int:
        body = {"model": "m", "prompt": prompt, "max_tokens": 6, "stream": True, "temperature": 0}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/v1/completions", json=body) as response,
        ):
            assert b"[DONE]" in await response.read()
            return response.status


def live(engine: FakeVllm) -> list[dict[str, Any]]:
    """What clients asked of it: everything of a judge's is marked."""
    asked = zip(engine.requests, engine.posted, strict=True)
    return [body for (_, body), headers in asked if "x-forkgate-shadow" not in headers]


def family(pid: int) -> Iterator[int]:
    """A process and all below it."""
    yield pid
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield from family(int(child))


def facts(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def test_the_manifests_of_the_chart_run_from_the_images_files_to_a_rollback(rootfs: Path) -> None:
    asyncio.run(asyncio.wait_for(_whole_road(rootfs), LIMIT_S))


async def _whole_road(rootfs: Path) -> None:
    directory = rootfs.parent / "release"
    directory.mkdir(mode=0o755)
    async with FakeVllm().serving() as old, FakeVllm("forks at token 2").serving() as new:
        release = Release(directory, rootfs, values(old.url, new.url))
        async with release.running():
            await _confined(release)
            assert await release.ask("before") == 200
            await _started_by_command(release)
            assert await release.ask("does it fork") == 200

            async def rolled_back() -> bool:
                return bool((await release.status())["rollouts"][0]["state"] == "rolled_back")

            await eventually_async(rolled_back, "the rollback of a candidate that forks")
            # No client met the candidate: it was a copy that forked.
            assert [body["prompt"] for body in live(old)] == ["before", "does it fork"]
            assert live(new) == []
            await _seen_from_outside(release)
            assert await release.ask("after") == 200
            for process in reversed(release.processes):
                process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0
        state = release.judge.volumes / "state" / "state"
        assert {"rollback.latch", "evidence.db"} <= {path.name for path in state.iterdir()}
        assert (state.stat().st_mode & 0o777, state.stat().st_uid) == (0o700, UID)


async def _confined(release: Release) -> None:
    """Every process is the image's user with nothing more, and runs the image's files alone."""
    for process in release.processes:
        pids = list(family(process.pid))
        assert len(pids) == 2  # the supervisor and its one child
        for pid in pids:
            found = facts(pid)
            assert set(found["Uid"].split()) == {str(UID)}
            assert (found["CapEff"], found["CapBnd"], found["NoNewPrivs"]) == ("0" * 16, "0" * 16, "1")
            maps = Path(f"/proc/{pid}/maps").read_text()
            assert "/opt/forkgate/lib/" in maps
            assert ".venv" not in maps
    for pod in (release.judge, release.edge):
        for path in ("/opt/forkgate/x", "/etc/forkgate/config/x", "/etc/x", "/x"):
            refused = await asyncio.to_thread(pod.execute, "touch", path)
            assert "Read-only file system" in refused.stderr or "Permission denied" in refused.stderr
        assert (await asyncio.to_thread(pod.execute, "touch", "/tmp/x")).returncode == 0


async def _started_by_command(release: Release) -> None:
    """A rollout waits for a person, as the chart leaves it; then copies are made."""
    assert (await release.status())["rollouts"][0]["state"] == "pending"
    verb = ("forkgate", "rollout", "start", "old-to-new", "--reason", "first look")
    started = await asyncio.to_thread(release.judge.execute, *verb)
    assert started.returncode == 0, started.stderr

    async def copies() -> bool:
        found = await release.status()
        mirrors = [one["epoch"] == found["epoch"] for one in found["edges"]]
        return bool(found["rollouts"][0]["state"] == "shadow" and all(mirrors))

    await eventually_async(copies, "a rollout that makes copies")


async def _seen_from_outside(release: Release) -> None:
    """What NOTES.txt tells people to type, and what Prometheus reads."""
    judge = release.judge
    version = await asyncio.to_thread(judge.execute, "forkgate", "--version")
    assert version.stdout.startswith("forkgate ")
    for pod in (judge, release.edge):
        checked = await asyncio.to_thread(pod.execute, "forkgate", "check-config")
        assert (checked.returncode, "ok, 2 pools" in checked.stdout) == (0, True), checked.stderr
    status = await asyncio.to_thread(judge.execute, "forkgate", "status")
    assert (status.returncode, "old-to-new" in status.stdout) == (0, True), status.stderr
    shown = await asyncio.to_thread(judge.execute, "forkgate", "rollout", "show", "old-to-new", "--exit-code")
    assert (shown.returncode, "rolled" in shown.stdout) == (1, True), shown.stderr
    listed = await asyncio.to_thread(judge.execute, "forkgate", "evidence", "list", "--forked", "--json")
    assert len(json.loads(listed.stdout)) == 1, listed.stdout + listed.stderr
    async with aiohttp.ClientSession() as session, session.get(release.metrics) as response:
        page = await response.text()
    assert 'forkgate_rollout_rolled_back{forkgate_rollout="old-to-new"} 1.0' in page


def test_an_edge_runs_as_a_sidecar_in_somebody_elses_pod(rootfs: Path, tmp_path: Path) -> None:
    """Of the example chart, whose pod has no fsGroup: the engine beside it is reached on loopback."""

    async def main() -> None:
        directory = rootfs.parent / "sidecar"
        directory.mkdir(mode=0o755)
        async with FakeVllm().serving() as old, FakeVllm().serving() as new:
            chosen = {"mode": "sidecar", **values(old.url, new.url)}
            chosen["config"]["pools"][0]["shadow_endpoints"] = [old.url]
            release = Release(directory, rootfs, chosen, example_chart(tmp_path))
            assert release.edge.group == 0
            async with release.running():
                await _confined(release)
                await _started_by_command(release)
                assert await release.ask("to be copied") == 200

                async def compared() -> bool:
                    return bool((await release.status())["ledger"]["compared"] == 1)

                await eventually_async(compared, "a copy of what the sidecar passed on")

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))


def secret(name: str, **files: str) -> Manifest:
    return {"kind": "Secret", "metadata": {"name": name}, "stringData": files}


def with_admin_api(chosen: dict[str, Any]) -> list[Manifest]:
    """Turns it on, and gives the edge's pod what an operator has. Returns the Secrets that are named."""
    authority = trustme.CA()
    issued = authority.issue_cert("forkgate-judge.inference.svc")
    port = free_port()
    token = "t" * 40
    chosen["admin"] = {"port": port, "tlsSecret": "admin-tls", "tokensSecret": "admin-tokens"}
    chosen["config"]["admin"] = {
        "tokens": [{"name": "oncall", "role": "viewer", "file": "/etc/forkgate/tokens/oncall"}]
    }
    chosen["edge"]["extraVolumes"] = [{"name": "operator", "secret": {"secretName": "operator"}}]
    chosen["edge"]["extraVolumeMounts"] = [
        {"name": "operator", "mountPath": "/etc/forkgate/operator", "readOnly": True}
    ]
    chain = "".join(one.bytes().decode() for one in issued.cert_chain_pems)
    files = {"tls.crt": chain, "tls.key": issued.private_key_pem.bytes().decode()}
    trusted = {"ca.crt": authority.cert_pem.bytes().decode(), "token": token, "wrong": "w" * 40}
    return [
        secret("admin-tls", **files),
        secret("admin-tokens", oncall=token),
        secret("operator", **trusted),
    ]


async def _operated_from_another_pod(release: Release, chosen: dict[str, Any]) -> None:
    server = f"https://forkgate-judge.inference.svc:{chosen['admin']['port']}"

    async def run(token: str, *words: str) -> subprocess.CompletedProcess[str]:
        where = ("--server", server, "--ca-file", "/etc/forkgate/operator/ca.crt")
        told = ("--token-file", f"/etc/forkgate/operator/{token}")
        return await asyncio.to_thread(release.edge.execute, "forkgate", *where, *told, *words)

    seen = await run("token", "status")
    assert (seen.returncode, "old-to-new" in seen.stdout) == (0, True), seen.stderr
    for token, verb in (("wrong", ("status",)), ("token", ("rollout", "start", "old-to-new", "-r", "x"))):
        refused = await run(token, *verb)
        assert refused.returncode != 0
    assert (await release.status())["rollouts"][0]["state"] == "pending"
    # What a kubelet asks, which has neither token nor authority.
    ready = f"https://127.0.0.1:{chosen['admin']['port']}/readyz"
    async with aiohttp.ClientSession() as session, session.get(ready, ssl=False) as response:
        assert response.status == 200


def greeting(port: int, authority: Path, identity: Path) -> bytes:
    """The first bytes that the judge's link says to whoever shows this certificate."""
    context = ssl.create_default_context(cafile=authority / "ca.crt")
    context.load_cert_chain(identity / "tls.crt", identity / "tls.key")
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="forkgate-judge.inference.svc") as one,
    ):
        return one.recv(9)


def test_the_link_wants_a_certificate_and_the_admin_api_a_token(rootfs: Path) -> None:
    async def main() -> None:
        directory = rootfs.parent / "link"
        directory.mkdir(mode=0o755)
        async with FakeVllm().serving() as old, FakeVllm().serving() as new:
            chosen = values(old.url, new.url)
            secrets = with_admin_api(chosen)
            release = Release(directory, rootfs, chosen, secrets=secrets)
            (directory / "other").mkdir()
            stranger = Release(directory / "other", rootfs, chosen, secrets=secrets).edge.volumes / "link"
            edge = release.edge.volumes / "link"
            async with release.running():
                port = chosen["link"]["port"]
                assert await asyncio.to_thread(greeting, port, edge, edge)
                # It knows whom to trust, and even so is nobody: the link closes without a word.
                assert await asyncio.to_thread(greeting, port, edge, stranger) == b""
                with pytest.raises(ssl.SSLCertVerificationError):
                    await asyncio.to_thread(greeting, port, stranger, edge)
                await _operated_from_another_pod(release, chosen)

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))
