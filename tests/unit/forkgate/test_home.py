"""Where home is, by the latch's file, the last table and the configuration, which may disagree."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from forkgate.cli.app import app
from forkgate.config import Config, loads
from forkgate.judge.checkpoint import File, Kept
from forkgate.judge.tally import Tally
from forkgate.state.home import HomeUnclear, home_moved
from forkgate.state.latch import Latch, LatchFile, Moved
from forkgate.supervisor.plan import first_home, first_table, pools
from policies.rollout import Latch as Rollback
from policies.rollout import Stage, start
from policies.routes import PoolName, RolloutName, RouteTable, TenantName
from policies.verdict import Answer, Verdict
from tests.unit.policies.test_rollout import plan

TEXT = """
state_dir: /nowhere
pools: [{name: old, endpoints: ["http://o:1"]}, {name: new, endpoints: ["http://n:1"]}]
home: %s
identity: {tenant_header: x-tenant, trusted_peers: ["127.0.0.0/8"]}
tenants: [{name: acme}, {name: globex}]
"""
ROLLOUTS = """
rollouts:
  - {name: r, baseline: old, candidate: new, policy: audit, global_seed: s, steps: [{percent: 100}]}
"""
MOVED = Latch(epoch=8).with_home(Moved(rollout="r", pool="new", epoch=9, unix_s=1.0))
VERDICT = Verdict(gate="g", answer=Answer.FAIL, value=None, limit=None, n=0, reason="x")
BREACH = Rollback(
    rollout=RolloutName("r"), verdict=VERDICT, policy_digest="", from_stage=Stage.PROMOTED, unix_s=1.0
)
CANDIDATES = {RolloutName("r"): PoolName("new")}


def configured(home: str = "old", rollouts: str = ROLLOUTS) -> Config:
    return loads(TEXT % home + rollouts)


def last(home: str, epoch: int = 10, **rest: object) -> RouteTable:
    return RouteTable(epoch=epoch, home=PoolName(home), pools=pools(configured()), **rest)  # type: ignore[arg-type]


def test_home_is_where_the_latch_says_that_a_promotion_moved_it() -> None:
    assert home_moved(Latch(), PoolName("old"), CANDIDATES) is None
    assert home_moved(MOVED, PoolName("old"), CANDIDATES) == MOVED.moved
    assert first_home(configured(), last("old"), MOVED) == "new"
    assert first_table(configured(), last("old"), MOVED).home == "new"
    assert first_table(configured(), None, MOVED).home == "new"


def test_a_file_that_names_the_new_home_and_no_such_rollout_has_caught_up() -> None:
    assert home_moved(MOVED, PoolName("new"), {}) is None
    assert first_table(configured("new", ""), last("new"), MOVED).home == "new"


def test_a_file_that_forgot_the_rollout_that_moved_home_moves_nobody_by_surprise() -> None:
    with pytest.raises(HomeUnclear, match="Write `home: new` to keep it there"):
        home_moved(MOVED, PoolName("old"), {})
    with pytest.raises(HomeUnclear):
        first_table(configured("old", ""), last("new"), MOVED)


def test_another_candidate_under_that_name_moves_nobody_either() -> None:
    with pytest.raises(HomeUnclear, match="names with candidate 'newer', moved it to 'new'"):
        home_moved(MOVED, PoolName("old"), {RolloutName("r"): PoolName("newer")})


def test_a_rollback_whose_table_never_went_out_is_home_from_the_first_request() -> None:
    latch = MOVED.with_latched(BREACH, 11)
    table = first_table(configured(), last("new"), latch)
    assert (table.home, table.epoch) == ("old", 12)


def test_edges_without_a_latch_of_their_own_go_by_the_last_table() -> None:
    assert first_home(configured(), last("new"), Latch()) == "new"
    assert first_home(configured(), last("new", rolled_back={RolloutName("r"): 9}), Latch()) == "old"
    assert first_home(configured("old", ""), last("new"), Latch()) == "old", "nobody moved it there"
    assert first_home(configured(), None, Latch()) == "old"


def test_a_tenant_that_was_sent_home_is_routed_there_before_any_judge_speaks() -> None:
    routes = {TenantName("acme"): PoolName("new"), TenantName("globex"): PoolName("new")}
    latch = Latch().with_tenant("acme", BREACH, 11)
    table = first_table(configured(), last("old", routes=routes), latch)
    assert (table.routes, table.epoch) == ({"globex": "new"}, 12)


def checked(tmp_path: Path, home: str, rollouts: str, latch: Latch | None) -> tuple[int, str]:
    """What ``forkgate check-config`` makes of a file whose state directory holds this latch."""
    state = tmp_path / "state"
    state.mkdir(parents=True, exist_ok=True)
    if latch is not None:
        file = LatchFile(state / "rollback.latch")
        file.open()
        file.write(latch)
        file.close()
    config = tmp_path / "f.yaml"
    config.write_text((TEXT % home + rollouts).replace("/nowhere", str(state)))
    done = CliRunner().invoke(app, ["check-config", str(config)])
    return done.exit_code, done.stderr


def test_check_config_refuses_what_serve_would_refuse_for_an_unclear_home(tmp_path: Path) -> None:
    status, told = checked(tmp_path, "old", "", MOVED)
    assert status == 2
    assert "f.yaml: home: " in told
    assert "Write `home: new` to keep it there" in told
    assert checked(tmp_path, "new", "", MOVED) == (0, "")


def test_check_config_says_where_home_is_by_now(tmp_path: Path) -> None:
    status, told = checked(tmp_path, "old", ROLLOUTS, MOVED)
    assert status == 0
    assert told.endswith("home: old is the first home; rollout r has moved it to new\n")
    assert checked(tmp_path / "fresh", "old", ROLLOUTS, None) == (0, "")


def test_check_config_of_a_damaged_latch_says_what_it_means(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "rollback.latch").write_bytes(b"x" * 200_000)
    status, told = checked(tmp_path, "old", ROLLOUTS, None)
    assert status == 0
    assert "so every rollout counts as rolled back until it is lifted" in told


@pytest.mark.parametrize("name", [(), ("r",)])
def test_a_plan_under_a_file_that_forgets_who_moved_home_says_that_it_would_be_refused(
    tmp_path: Path, name: tuple[str, ...]
) -> None:
    checked(tmp_path, "old", ROLLOUTS, MOVED)
    now, edited = tmp_path / "f.yaml", tmp_path / "edited.yaml"
    edited.write_text(now.read_text().replace(ROLLOUTS, ""))
    kept = Kept(state=start(replace(plan(), name=RolloutName("r"))), tally=Tally())
    file = File(unix_s=1.0, rollouts=(kept,))
    (tmp_path / "state" / "rollouts.json").write_bytes(msgspec.json.encode(file))
    asked = ["rollout", "plan", *name, "--file", str(edited), "--config", str(now)]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 2
    assert "rollout r  " in done.stdout
    assert "a restart would be refused: home: is 'old', and rollout 'r'" in done.stdout
