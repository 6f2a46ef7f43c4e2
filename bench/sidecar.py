"""``forkgate serve`` as an operator starts it, in front of stubs: edge worker, judge and supervisor."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import orjson

from bench import machine
from bench.engine_stub import Mode
from bench.machine import BenchError, Cores
from bench.payloads import API_KEY_SHA256, TENANT
from bench.process import fetch, process, tail, told, wait_until
from bench.routes import CANDIDATE, LIVE, ROLLOUT


class EngineStub(msgspec.Struct, frozen=True, kw_only=True):
    """:mod:`bench.engine_stub`, up."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def counts(self) -> dict[str, int]:
        """What it served so far."""
        answer = fetch(f"{self.url}/counts")
        if answer is None:
            raise BenchError(f"the engine stub at {self.url} does not answer")
        return msgspec.json.decode(answer, type=dict[str, int])

    def become(self, mode: Mode) -> None:
        """Answer completions this way from now on."""
        urllib.request.urlopen(f"{self.url}/control", data=mode.value.encode(), timeout=10).close()


@contextlib.contextmanager
def engine_stub(cores: Cores, *, step_s: float) -> Iterator[EngineStub]:
    """An engine on the load's core, with a token a request every ``step_s``."""
    with tempfile.TemporaryDirectory(prefix="forkgate-bench-") as directory:
        log = Path(directory) / "engine.log"
        arguments = [sys.executable, "-m", "bench.engine_stub", "--step-s", str(step_s)]
        with process(arguments, cores.load, log) as child:
            port = told(child, log)["port"]
            assert isinstance(port, int)
            yield EngineStub(port=port, pid=child.pid)


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=10)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._path)


class Sidecar(msgspec.Struct, frozen=True, kw_only=True):
    """A running ``forkgate serve`` or ``forkgate judge``."""

    port: int
    """Where clients connect; 0 for a judge alone."""
    judge_pid: int
    edge_pids: tuple[int, ...]
    state_dir: Path
    log: Path

    def ask(self, path: str) -> Any:
        """GET on the admin API. Raises OSError while nobody listens."""
        connection = _UnixConnection(self.state_dir / "admin.sock")
        try:
            connection.request("GET", path)
            return orjson.loads(connection.getresponse().read())
        finally:
            connection.close()

    def check(self) -> None:
        """Raises BenchError when a process of it has died or a rollout is not what the bench set up."""
        status = self.ask("/v1/status")
        trouble = [*status["troubles"]]
        if status["judge"]["pid"] != self.judge_pid:
            trouble.append("the judge was started again")
        for rollout in status["rollouts"]:
            if rollout["latched"] is not None:
                trouble.append(f"{rollout['name']} was rolled back: {rollout['latched']['reason']}")
        if trouble:
            raise BenchError("; ".join(trouble) + "\n" + tail(self.log))


_ENGINE: dict[str, object] = {"kind": "vllm", "first_chunk_timeout_s": 600}
"""Patient: a stalled arm stays stalled as long as a case lasts."""

_PATIENT_POLICY = """\
level: token
alpha: 0.05
on_fail: rollback
gates:
  never: {kind: ttft, source: live, maximum_s: 1000000}
"""


_WATCHING_POLICY = """\
level: statistical
alpha: 0.05
gates:
  token_equality: {minimum_pairs: 1000000000}
  fork_hazard: {}
  logit_error: {maximum_nats: 2}
  distribution_shift: {}
  sampling: {}
  shadow_errors: {kind: error_rate, source: shadow, maximum: 0.05}
  live_errors: {kind: error_rate, source: live, maximum: 0.02}
  ttft: {source: live, maximum_s: 1000000}
"""


def watching_policy(directory: Path) -> str:
    """A policy with every gate that reads comparisons of drawn answers, and the live ones beside them."""
    file = directory / "watching.yaml"
    file.write_text(_WATCHING_POLICY)
    return str(file)


def patient_policy(directory: Path) -> str:
    """A policy that no candidate of the bench breaches: its trouble goes on as long as it is watched."""
    file = directory / "patient.yaml"
    file.write_text(_PATIENT_POLICY)
    return str(file)


def configuration(
    state_dir: Path,
    *,
    live_url: str,
    baseline: EngineStub,
    candidate: EngineStub | None,
    shadow: dict[str, object],
    policy: str = "audit",
    canary: bool = False,
) -> dict[str, object]:
    """A configuration file. Without a candidate there is no rollout: plain pass-through with a judge."""
    home = {
        "name": LIVE,
        "endpoints": [live_url],
        "shadow_endpoints": [baseline.url],
        "engine": _ENGINE,
    }
    pools = [home]
    rollouts: list[dict[str, object]] = []
    if candidate is not None:
        pools.append({"name": CANDIDATE, "endpoints": [candidate.url], "engine": _ENGINE})
        rollouts.append(
            {
                "name": ROLLOUT,
                "baseline": LIVE,
                "candidate": CANDIDATE,
                "policy": policy,
                "global_seed": "bench",
                "checks": {"self_check": False, "quick_check": False},
                "shadow": shadow,
                "start": "on_load",
                "shadow_stage": {"skip": canary},
                "steps": [{"tenants": [TENANT]}] if canary else [],
            }
        )
    return {
        "listen": {"port": 0, "workers": 1},
        "state_dir": str(state_dir),
        "pools": pools,
        "home": LIVE,
        "tenants": [{"name": TENANT, "api_key_sha256": [API_KEY_SHA256]}],
        "rollouts": rollouts,
        "timeouts": {"drain_s": 1.0},
        "judge": {"drain_s": 1.0},
        "telemetry": {"prometheus": {"host": "127.0.0.1", "port": 0}},
    }


@contextlib.contextmanager
def sidecar(cores: Cores, command: str, directory: Path, config: dict[str, object]) -> Iterator[Sidecar]:
    """``forkgate serve`` or ``forkgate judge``, once its engines are probed and its edges are in.

    A judge alone has the proxy's core. Beside edges, which are pinned there, judge and supervisor run where
    there is room, as in life.
    """
    file, log = directory / "forkgate.yaml", directory / f"{command}.log"
    file.write_bytes(orjson.dumps(config))  # JSON is YAML
    state_dir = Path(str(config["state_dir"]))
    room = (cores.proxy,) if command == "judge" else (cores.proxy, cores.load)
    with process([sys.executable, "-m", "forkgate", command, str(file)], room, log) as child:
        up = Sidecar(port=0, judge_pid=0, edge_pids=(), state_dir=state_dir, log=log)
        workers = 1 if command == "serve" else 0
        skips = b'"skip":true' in file.read_bytes()

        def ready() -> bool:
            try:
                status, readiness = up.ask("/v1/status"), up.ask("/readyz")
            except OSError:
                return False
            connected = sum(edge["connected"] for edge in status["edges"])
            # A rollout that skips its shadow stage takes its first step once the old pool has been looked at.
            begun = not (skips and any(one["state"] == "shadow" for one in status["rollouts"]))
            return bool(readiness["ready"]) and connected >= workers and begun

        wait_until(child, log, f"forkgate {command}", ready)
        status = up.ask("/v1/status")
        judge_pid = status["judge"]["pid"]
        port = int(status["listen"][0].rsplit(":", 1)[1]) if status["listen"] else 0
        edges = tuple(pid for pid in machine.children(child.pid) if pid != judge_pid)
        assert len(edges) == workers, f"{edges} are not {workers} edge workers of {os.getpid()}'s sidecar"
        for pid in edges:
            machine.pin(pid, cores.proxy)
        yield Sidecar(port=port, judge_pid=judge_pid, edge_pids=edges, state_dir=state_dir, log=log)
