"""Which table edges start from, and what a worker is told."""

from __future__ import annotations

import msgspec

from forkgate.config import Config, loads
from forkgate.state.latch import Latch
from forkgate.state.unreadable import all_latched
from forkgate.supervisor.plan import canary_routes, edge_settings, first_table, mirror_rules, pools
from policies.routes import RouteTable

TEXT = """
state_dir: /tmp/forkgate-plan
pools:
  - {name: old, endpoints: ["http://127.0.0.1:9001/"]}
  - {name: new, endpoints: ["http://127.0.0.1:9002"]}
home: old
identity: {tenant_header: X-Tenant, trusted_peers: ["127.0.0.0/8"]}
tenants:
  - {name: acme, api_key_sha256: ["%s"]}
  - {name: globex}
rollouts:
  - {name: r, baseline: old, candidate: new, policy: audit, global_seed: s, steps: [{tenants: [acme]}]}
""" % ("ab" * 32)


def config() -> Config:
    return loads(TEXT)


def latched(epoch: int = 0) -> Latch:
    return msgspec.structs.replace(all_latched(["r"], "test"), epoch=epoch)


def published(epoch: int = 5) -> RouteTable:
    """What a judge publishes while nothing is stopped."""
    return RouteTable(
        epoch=epoch,
        home=config().home,
        pools=pools(config()),
        routes=canary_routes(config(), frozenset()),
        mirrors=mirror_rules(config(), frozenset()),
        cause="judge",
    )


def test_a_pool_that_leaves_the_file_after_its_rollback_is_no_refuge_and_stops_no_start() -> None:
    """The pool that a rollback came from stands in the last table; taking it out is what people do next."""
    after = msgspec.structs.replace(
        published(5), routes={}, refuges={"acme": "new"}, aborts=("new",), rolled_back={"r": 5}
    )
    assert first_table(config(), after, latched()).refuges == {"acme": "new"}
    lines = TEXT.splitlines()
    gone = loads("\n".join(lines[: lines.index("rollouts:")]).replace(lines[4], ""))
    assert [pool.name for pool in gone.pools] == ["old"]
    table = first_table(gone, after, latched())
    assert (table.refuges, table.aborts, table.epoch) == ({}, (), 6)


def test_first_start_sends_everybody_home() -> None:
    table = first_table(config(), None, Latch())
    assert (table.epoch, table.routes, table.mirrors) == (1, {}, ())


def test_restart_keeps_the_last_table_as_it_was() -> None:
    assert first_table(config(), published(), Latch()) == published()


def test_restart_takes_a_latched_rollouts_tenants_home_under_a_new_epoch() -> None:
    table = first_table(config(), published(5), latched())
    assert (table.epoch, table.routes, table.mirrors) == (6, {}, ())


def test_epoch_rises_above_the_latch_even_when_the_table_on_disk_is_older() -> None:
    assert first_table(config(), published(5), latched(epoch=9)).epoch == 10
    assert first_table(config(), None, latched(epoch=9)).epoch == 10


def test_tenant_that_the_configuration_no_longer_names_goes_home() -> None:
    smaller = msgspec.structs.replace(config(), rollouts=())
    table = first_table(smaller, published(5), Latch())
    assert (table.epoch, table.routes, table.mirrors) == (6, {}, ())


def test_nobody_becomes_a_canary_without_a_judge() -> None:
    at_home = RouteTable(epoch=3, home=published().home, pools=published().pools)
    assert first_table(config(), at_home, Latch()).routes == {}


def test_moved_pool_is_published_under_a_new_epoch() -> None:
    moved = loads(TEXT.replace("9002", "9003"))
    table = first_table(moved, published(5), Latch())
    assert table.epoch == 6
    assert table.routes == published().routes


def test_worker_is_told_keys_header_and_judge() -> None:
    settings = edge_settings(
        config(),
        worker=1,
        incarnation="i",
        listen_fds=(7,),
        ready_fd=9,
        table=first_table(config(), None, Latch()),
    )
    assert settings.identity.api_keys == {"ab" * 32: "acme"}
    assert settings.identity.tenants == tuple(tenant.name for tenant in config().tenants)
    assert settings.identity.tenant_header == "x-tenant"
    assert settings.judge == "unix:/tmp/forkgate-plan/link.sock"
    assert settings.ledger_file == "/tmp/forkgate-plan/ledgers/i.ledger"
    assert settings.initial_table.pools[0].endpoints == ("http://127.0.0.1:9001",)
