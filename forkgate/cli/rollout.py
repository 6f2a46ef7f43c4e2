"""``forkgate rollout list|show|lift``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from forkgate.cli.exits import Exit
from forkgate.cli.options import DEFAULT_FILE, ConfigFile, Json, StateDir, door, named
from forkgate.cli.output import data, data_json, leave, say
from forkgate.cli.status import rollout_lines

app = typer.Typer(no_args_is_help=True, help="Rollouts: where they stand, and lifting a rollback or a hold.")

Name = Annotated[str, typer.Argument(help="The rollout's name.")]


@app.command("list")
def list_(config: ConfigFile = DEFAULT_FILE, state_dir: StateDir = None, as_json: Json = False) -> None:
    """List every rollout, one a line."""
    rollouts = door(config, state_dir).get("/v1/rollouts")["rollouts"]
    if as_json:
        data_json(rollouts)
        return
    for one in rollouts:
        counts = f"pairs {one['pairs']}  forks {one['forks']}"
        held = "  HELD" if one["held"] is not None else ""
        data(f"{one['name']}  {one['state']}{held}  {one['baseline']} → {one['candidate']}  {counts}")
    if not rollouts:
        say("no rollouts are configured")


@app.command("show")
def show(
    name: Name,
    config: ConfigFile = DEFAULT_FILE,
    state_dir: StateDir = None,
    as_json: Json = False,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code", help="Exit 1 when rolled back, 3 while inconclusive or held, 4 on a gate's error."
        ),
    ] = False,
) -> None:
    """Show one rollout: state, policy, and each gate's verdict with value, limit and n."""
    from forkgate.cli.door import segment

    one = door(config, state_dir).get(f"/v1/rollouts/{segment(name)}")
    if as_json:
        data_json(one)
    else:
        data("\n".join(rollout_lines(one, named(config, state_dir))))
    if exit_code:
        leave(standing(one))


@app.command("lift")
def lift(
    name: Name,
    reason: Annotated[str, typer.Option("--reason", help="Why it is safe to go on; kept with the latch.")],
    config: ConfigFile = DEFAULT_FILE,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Lift a rollback or a hold: gates start anew, and what the stage starts with is done again.

    After a rollback the rollout begins again with its checks; canary tenants go to the candidate once those
    have passed (at once where there are none). A hold in a check makes the check again.
    """
    from forkgate.cli.door import segment

    if not reason.strip():
        leave(Exit.USAGE, "--reason: is empty, say why it is safe to go on")
    answer = door(config, state_dir).post(f"/v1/rollouts/{segment(name)}/lift", {"reason": reason})
    if as_json:
        data_json(answer)
    else:
        data(f"{name}: lifted, {answer['rollout']['state']} at epoch {answer['epoch']}")


def standing(rollout: dict[str, Any]) -> Exit:
    """Where a rollout stands, as an exit status."""
    answers = {verdict["answer"] for verdict in rollout["verdicts"]}
    if rollout["latched"] is not None or "fail" in answers:
        return Exit.FAIL
    if "error" in answers:
        return Exit.UNMEASURED
    if rollout["held"] is not None or rollout["state"] in ("self_check", "quick_check"):
        return Exit.INCONCLUSIVE  # whatever the gates say, nothing goes on from here by itself
    return Exit.PASS if answers == {"pass"} else Exit.INCONCLUSIVE
