"""A judge and its edges of different versions: what the older one may pass over, and what it must not.

The newer version is played by structs that know more than ours, the older one by ours as they once were.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from forkgate.state.table_file import write_table
from policies.routes import READER, MirrorRule, Pool, PoolName, PoolTLS, RouteTable, TenantName
from proxy.link.client import EdgeLink
from proxy.link.server import LinkServer
from proxy.link.values import EdgeIdentity
from proxy.link.watcher import TableWatcher
from tests.support.edge import run
from tests.support.link import ListListener, ListSink, edge_settings, route_table, unix_target
from tests.support.sidecar import Sidecar
from tests.support.waiting import PATIENCE_S, eventually

FIRST_READER = {
    RouteTable: {
        *("epoch", "home", "pools", "routes", "mirrors", "aborts", "refuges", "cause", "rolled_back"),
        "reader",
    },
    Pool: {"name", "endpoints", "tls"},
    MirrorRule: {"rollout", "percent", "tenants"},
    PoolTLS: {"ca_file", "server_name", "client_cert_file", "client_key_file"},
}
"""What readers of version 1 know."""
MAY_BE_PASSED_OVER: dict[type, set[str]] = {}
"""Fields since then that an older edge may pass over: without them it does nothing that the table forbids."""
ASKED_FOR: dict[type, set[str]] = {}
"""Fields since then that raise ``reader`` in the tables that use them; ``READER`` rose with each."""


class NewerPool(Pool, frozen=True, kw_only=True, omit_defaults=True):
    weight: int = 1


class NewerTable(RouteTable, frozen=True, kw_only=True, omit_defaults=True):
    """Of a version that obeys READER + 1."""

    pause_s: float = 0.0

    def __post_init__(self) -> None:
        assert self.reader <= READER + 1


def newer(epoch: int, *, reader: int = 1) -> NewerTable:
    plain = route_table(epoch)
    first, second = plain.pools
    values = {name: getattr(plain, name) for name in plain.__struct_fields__}
    pools = (NewerPool(name=first.name, endpoints=first.endpoints, weight=3), second)
    return NewerTable(**{**values, "pools": pools, "pause_s": 0.5, "reader": reader})


class OlderPool(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    endpoints: tuple[str, ...]
    tls: dict[str, str | None] | None = None


class OlderRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rollout: str
    percent: float
    tenants: tuple[str, ...] = ()


class OlderTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As it was read before there was a ``reader``: nothing was passed over."""

    epoch: int
    home: str
    pools: tuple[OlderPool, ...]
    routes: dict[str, str] = {}
    mirrors: tuple[OlderRule, ...] = ()
    aborts: tuple[str, ...] = ()
    refuges: dict[str, str] = {}
    cause: str = ""
    rolled_back: dict[str, int] = {}


def test_whoever_adds_a_field_says_what_an_older_edge_does_without_it() -> None:
    for struct, known in FIRST_READER.items():
        fields = set(struct.__struct_fields__)
        later = MAY_BE_PASSED_OVER.get(struct, set()) | ASKED_FOR.get(struct, set())
        assert fields == known | later, f"{struct.__name__}: read the docstring of policies.routes"
    assert (READER > 1) == bool(ASKED_FOR)


def test_an_older_edge_obeys_what_it_knows_of_a_newer_judges_table(tmp_path: Path) -> None:
    async def main() -> None:
        server = LinkServer(unix_target(tmp_path), None, ListSink(), newer(2))
        await server.start()
        listener = ListListener()
        link = EdgeLink(edge_settings(unix_target(tmp_path)), listener)
        await link.start()
        await eventually(lambda: link.epoch == 2, "the first table")
        assert (await server.publish(newer(3)).wait(PATIENCE_S)).complete
        assert listener.tables == [route_table(2), route_table(3)]
        assert listener.changes == ["lost", "back"]
        await link.close(0.0)
        await server.stop()

    run(main())


def test_an_older_edge_counts_a_judge_as_away_that_asks_for_a_newer_reader(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        server = LinkServer(unix_target(tmp_path), None, ListSink(), route_table(2))
        await server.start()
        listener = ListListener()
        link = EdgeLink(edge_settings(unix_target(tmp_path)), listener)
        await link.start()
        await eventually(lambda: listener.changes == ["lost", "back"], "the judge")
        flip = server.publish(newer(3, reader=READER + 1))
        await eventually(lambda: listener.changes[-1] == "lost", "its loss")
        assert not flip.complete
        assert link.epoch == 2
        said = [one for one in caplog.records if one.levelno == logging.ERROR]
        assert "unusable" in said[0].getMessage()
        assert f"asks for a reader of version {READER + 1}" in said[0].error  # type: ignore[attr-defined]
        # A table that makes no use of what is new is obeyed again.
        server.publish(newer(4))
        await eventually(lambda: listener.changes[-1] == "back", "its return")
        assert listener.tables[-1] == route_table(4)
        await link.close(0.0)
        await server.stop()

    run(main())


def test_nothing_new_about_whom_to_trust_is_passed_over() -> None:
    pool = {"name": "old", "endpoints": ["https://h:1"], "tls": {"pinned": "sha256:0"}}
    with pytest.raises(msgspec.ValidationError, match=r"unknown field `pinned` - at `\$\.pools\[0\]\.tls`"):
        msgspec.json.decode(
            msgspec.json.encode({"epoch": 1, "home": "old", "pools": [pool]}), type=RouteTable
        )


@pytest.mark.parametrize("full", [False, True])
def test_edges_that_pass_nothing_over_read_what_is_written_today(full: bool) -> None:
    plain = route_table(7)
    if full:
        old, new = plain.pools
        plain = msgspec.structs.replace(
            plain,
            pools=(old, msgspec.structs.replace(new, tls=PoolTLS(ca_file="ca.pem"))),
            aborts=(PoolName("new"),),
            refuges={TenantName("globex"): PoolName("new")},
            cause="a rollback",
            rolled_back={"old-to-new": 6},
        )
    read = msgspec.json.decode(msgspec.json.encode(plain), type=OlderTable)
    assert msgspec.to_builtins(msgspec.convert(msgspec.to_builtins(read), RouteTable)) == (
        msgspec.to_builtins(plain)
    )


def test_a_newer_edge_reads_an_older_judges_table() -> None:
    pools = tuple(OlderPool(name=pool.name, endpoints=pool.endpoints) for pool in route_table(7).pools)
    written = msgspec.json.encode(OlderTable(epoch=7, home="old", pools=pools))
    read = msgspec.json.decode(written, type=RouteTable)
    assert (read.epoch, read.home, read.reader) == (7, "old", 1)
    assert read.pools == route_table(7).pools


def test_a_supervisor_keeps_what_it_does_not_know_for_the_one_that_comes_next(tmp_path: Path) -> None:
    async def main() -> None:
        server = LinkServer(unix_target(tmp_path), None, ListSink(), newer(2))
        await server.start()
        identity = EdgeIdentity(sidecar="host", worker=0, incarnation="supervisor")
        file = tmp_path / "routes.json"
        watcher = TableWatcher(
            unix_target(tmp_path),
            None,
            identity,
            route_table(1),
            lambda table, encoded: write_table(file, encoded),
        )
        await watcher.start()
        await eventually(file.exists, "the table on disk")
        await watcher.close()
        await server.stop()
        assert msgspec.json.decode(file.read_bytes(), type=NewerTable).pause_s == 0.5

    run(main())


def test_a_restart_without_a_judge_leaves_a_newer_judges_table_as_it_is(tmp_path: Path) -> None:
    """An edge's machine went back a version for a moment: the version after it finds all of the table."""

    async def main() -> None:
        one = Sidecar(tmp_path, "http://127.0.0.1:1", "http://127.0.0.1:2", workers=1)
        kept = one.state / "routes.json"

        def starts() -> int:
            return sum(line["event"] == "ready" for line in one.log())

        async def served() -> None:
            before = starts() if one.log_file.exists() else 0
            with one.log_file.open("ab") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", "forkgate", "edge", str(one.file)], stdout=log, stderr=log
                )
            try:
                await eventually(lambda: starts() > before, "the edge to be ready")
            finally:
                process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0

        await served()
        table = msgspec.json.decode(kept.read_bytes())
        written = msgspec.json.encode({**table, "pause_s": 0.5})
        write_table(kept, written)
        await served()
        assert kept.read_bytes() == written

    run(main())
