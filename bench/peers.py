"""The proxies under test, each as one pinned process tree with a port and the pids whose CPU counts.

Envoy gets the leanest configuration that does the job: one listener, one route for everything, one static
cluster with keep-alive connections, one worker thread, no access log, no stats sink, no tracing, no request
id of its own, no ``x-envoy-*`` headers, no stats but the few that it cannot do without. Its buffers, socket
options and timers are its defaults, save the route timeout, which a token stream must not have.

The edge gets what it has in production: tenants by the hash of an API key, limits, timers, request ids, live
records, and a judge to talk to.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import msgspec
import orjson

from bench.flipper import Flips
from bench.machine import BenchError, Cores, children
from bench.payloads import API_KEY_SHA256, TENANT
from bench.process import fetch, process, tail, told, wait_until
from bench.receiver import Counts
from policies.routes import RouteTable, TenantName
from proxy.edge.settings import EdgeSettings, Identity, Limits

_VENV = Path(__file__).resolve().parent.parent / ".venv-bench"


class Receiver:
    """:mod:`bench.receiver`: takes what one edge ships to its judge."""

    def __init__(self, child: subprocess.Popen[bytes], log: Path) -> None:
        self._child = child
        self._log = log

    def counts(self) -> Counts:
        """What has arrived so far."""
        assert self._child.stdin is not None
        self._child.stdin.write(b"counts\n")
        self._child.stdin.flush()
        return msgspec.convert(told(self._child, self._log), Counts)


class Flipper:
    """:mod:`bench.flipper`: a judge that flips ``flips`` times once its edges are there."""

    def __init__(self, child: subprocess.Popen[bytes], log: Path, address: str) -> None:
        self._child = child
        self._log = log
        self.address = address

    def flips(self) -> Flips:
        """Wait for the end; every flip's seconds."""
        return msgspec.convert(told(self._child, self._log), Flips)


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """One proxy, up and answering."""

    name: str
    port: int
    pids: tuple[int, ...]
    receiver: Receiver | None = None
    """An edge's stand-in for a judge."""


class Stub(msgspec.Struct, frozen=True, kw_only=True):
    """The stub upstream: the live one and the shadow one."""

    port: int
    shadow_port: int
    pid: int

    def counts(self) -> list[dict[str, int]]:
        """Requests seen so far, by port."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/counts", timeout=10) as answer:
            return msgspec.json.decode(answer.read(), type=list[dict[str, int]])


@contextlib.contextmanager
def stub(cores: Cores, *, period_s: float | None = None) -> Iterator[Stub]:
    """:mod:`bench.stub` with a live and a shadow port."""
    with tempfile.TemporaryDirectory(prefix="forkgate-bench-") as directory:
        log = Path(directory) / "stub.log"
        arguments = [sys.executable, "-m", "bench.stub", "--ports", "2"]
        if period_s is not None:
            arguments += ["--period-s", str(period_s)]
        with process(arguments, cores.load, log) as child:
            ports = told(child, log)["ports"]
            assert isinstance(ports, list)
            yield Stub(port=ports[0], shadow_port=ports[1], pid=child.pid)


def _binary(name: str) -> str:
    path = _VENV / "bin" / name
    if not path.exists():
        raise BenchError(f"{path} is missing: `make bench` installs the peers (requirements-bench.lock)")
    return str(path)


def envoy_config(upstream_port: int, mirror_port: int | None) -> dict[str, object]:
    """The whole of Envoy's configuration; printed by ``python -m bench --show-envoy``."""

    def cluster(name: str, port: int) -> dict[str, object]:
        endpoint = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}
        plenty = {"max_connections": 20_000, "max_pending_requests": 20_000, "max_requests": 20_000}
        return {
            "name": name,
            "type": "STATIC",
            "connect_timeout": "3s",
            "circuit_breakers": {"thresholds": [plenty]},
            "load_assignment": {
                "cluster_name": name,
                "endpoints": [{"lb_endpoints": [{"endpoint": endpoint}]}],
            },
        }

    route: dict[str, object] = {"cluster": "live", "timeout": "0s"}
    clusters = [cluster("live", upstream_port)]
    if mirror_port is not None:
        every = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
        route["request_mirror_policies"] = [{"cluster": "shadow", "runtime_fraction": every}]
        clusters.append(cluster("shadow", mirror_port))
    types = "type.googleapis.com/envoy.extensions.filters"
    manager = {
        "@type": f"{types}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "codec_type": "HTTP1",
        "generate_request_id": False,
        "route_config": {
            "virtual_hosts": [
                {"name": "all", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}
            ]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{types}.http.router.v3.Router", "suppress_envoy_headers": True},
            }
        ],
    }
    listener = {
        "name": "in",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    return {
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
        "stats_config": {"stats_matcher": {"reject_all": True}},
        "static_resources": {"listeners": [listener], "clusters": clusters},
    }


@contextlib.contextmanager
def envoy(cores: Cores, upstream_port: int, *, mirror_port: int | None = None) -> Iterator[Peer]:
    """Envoy, one worker thread; with ``mirror_port`` it mirrors every request there."""
    name = "envoy" if mirror_port is None else "envoy mirroring 100 %"
    with tempfile.TemporaryDirectory(prefix="forkgate-bench-") as directory:
        config, admin, log = (Path(directory) / leaf for leaf in ("envoy.json", "admin", "envoy.log"))
        config.write_text(json.dumps(envoy_config(upstream_port, mirror_port)))
        arguments = [
            _binary("envoy"),
            *("--config-path", str(config)),
            *("--admin-address-path", str(admin)),
            *("--concurrency", "1"),
            *("--log-level", "error"),
            "--disable-hot-restart",
        ]
        with process(arguments, cores.proxy, log) as child:
            port: list[int] = []

            def ready() -> bool:
                told = fetch(f"http://{admin.read_text()}/listeners?format=json") if admin.exists() else None
                if told is None:
                    return False
                statuses = orjson.loads(told).get("listener_statuses", [])
                port.extend(s["local_address"]["socket_address"]["port_value"] for s in statuses)
                return bool(port)

            wait_until(child, log, name, ready)
            pids = _only_server(child.pid)
            yield Peer(name=name, port=port[0], pids=pids)


def _only_server(pid: int) -> tuple[int, ...]:
    """The launcher replaces itself by the server or starts it; either way its tree is the server."""
    return (pid, *children(pid))


@contextlib.contextmanager
def vllm_router(cores: Cores, upstream_port: int) -> Iterator[Peer]:
    """vllm-router in front of the one stub; its defaults, but for the balancing and the logging."""
    name = "vllm-router"
    with tempfile.TemporaryDirectory(prefix="forkgate-bench-") as directory:
        log = Path(directory) / "router.log"
        port, metrics = _free_port(), _free_port()  # it has no way to be handed a socket, nor to tell a port
        arguments = [
            _binary("vllm-router"),
            *("--host", "127.0.0.1", "--port", str(port)),
            *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)),
            *("--worker-urls", f"http://127.0.0.1:{upstream_port}"),
            *("--policy", "round_robin", "--log-level", "error"),
        ]
        with process(arguments, cores.proxy, log) as child:
            wait_until(child, log, name, lambda: fetch(f"http://127.0.0.1:{port}/health") is not None)
            yield Peer(name=name, port=port, pids=_only_server(child.pid))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port


def listening_socket() -> socket.socket:
    """What the supervisor would own and hand to its workers."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(4096)
    listener.setblocking(False)
    return listener


@contextlib.contextmanager
def edge(
    cores: Cores,
    table: RouteTable,
    *,
    name: str = "edge",
    worker: int = 0,
    judge: str | None = None,
) -> Iterator[Peer]:
    """One edge worker, started as the supervisor starts it.

    Args:
        judge: where its judge listens; None starts a :class:`Receiver` for it, on the load's core.
    """
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forkgate-bench-")))
        log = directory / "edge.log"
        receiver = None
        if judge is None:
            judge = f"unix:{directory}/link.sock"
            receiver = stack.enter_context(_receiver(cores, judge, table, directory / "receiver.log"))
        own = stack.enter_context(listening_socket())
        ready_read, ready_write = os.pipe()
        stack.callback(os.close, ready_read)
        settings = EdgeSettings(
            sidecar="bench",
            worker=worker,
            incarnation=f"019b0000-0000-7000-8000-{worker:012x}",
            listen_fds=(own.fileno(),),
            ready_fd=ready_write,
            limits=Limits(connections=20_000, upstream_idle_connections=1_000),
            identity=Identity(api_keys={API_KEY_SHA256: TenantName(TENANT)}),
            judge=judge,
            ledger_file=str(directory / "ledger"),
            initial_table=table,
        )
        try:
            child = stack.enter_context(
                process(
                    [sys.executable, "-m", "proxy.edge"],
                    cores.proxy,
                    log,
                    stdin=msgspec.json.encode(settings),
                    pass_fds=(own.fileno(), ready_write),
                )
            )
        finally:
            os.close(ready_write)
        if os.read(ready_read, 16) != b"ready\n":
            raise BenchError(f"the edge ended before it was ready:\n{tail(log)}")
        yield Peer(name=name, port=own.getsockname()[1], pids=(child.pid,), receiver=receiver)


@contextlib.contextmanager
def _receiver(cores: Cores, bind: str, table: RouteTable, log: Path) -> Iterator[Receiver]:
    with process([sys.executable, "-m", "bench.receiver", "--bind", bind], cores.load, log) as child:
        assert child.stdin is not None
        child.stdin.write(msgspec.json.encode(table) + b"\n")
        child.stdin.flush()
        told(child, log)
        yield Receiver(child, log)


@contextlib.contextmanager
def flipper(cores: Cores, upstream: Stub, *, directory: Path, edges: int, flips: int) -> Iterator[Flipper]:
    """The judge's part of a rollback, on the load's core."""
    address, log = f"unix:{directory}/link.sock", directory / "flipper.log"
    arguments = [
        *(sys.executable, "-m", "bench.flipper", "--bind", address, "--latch", str(directory / "latch")),
        *("--edges", str(edges), "--flips", str(flips)),
        *("--live", str(upstream.port), "--candidate", str(upstream.shadow_port)),
    ]
    with process(arguments, cores.load, log) as child:
        told(child, log)
        yield Flipper(child, log, address)
