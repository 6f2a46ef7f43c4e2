"""``forkgate rollout``: where a rollout stands, what it waits for, and the verbs that move it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from forkgate.cli.exits import Exit
from forkgate.cli.options import DEFAULT_FILE, ConfigFile, Json, StateDir, door, named
from forkgate.cli.output import data, data_json, leave, say
from forkgate.cli.status import rollout_lines

app = typer.Typer(
    no_args_is_help=True,
    help="Rollouts: where they stand, what they wait for, and the verbs that move them.\n\n"
    "Each verb wants a --reason, which is kept. One that cannot be obeyed says what stands in the way, "
    "changes nothing and exits with 3.",
)

ACT_S = 30.0
"""A step waits for the disk and for every edge's acknowledgement before it is answered."""

Name = Annotated[str, typer.Argument(help="The rollout's name.")]
Reason = Annotated[str, typer.Option("--reason", "-r", metavar="WORDS", help="Why; kept with who said it.")]
Tenant = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help="Only this tenant of it.", show_default=False)
]


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
        paused = "  PAUSED" if one["paused"] is not None else ""
        sent = ", ".join(home["tenant"] for home in one["tenants_home"])
        home = f"  sent home: {sent}" if sent else ""
        pools = f"{one['baseline']} → {one['candidate']}"
        data(f"{one['name']}  {one['place']}{held}{paused}  {pools}  {counts}{home}")
    if not rollouts:
        say("no rollouts are configured")


@app.command("show", short_help="Show one rollout: where it stands, each gate's verdict.")
def show(
    name: Name,
    config: ConfigFile = DEFAULT_FILE,
    state_dir: StateDir = None,
    as_json: Json = False,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code",
            help="Exit 1 when rolled back or aborted, 3 while inconclusive, held or paused, 4 on an error.",
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


@app.command("plan", short_help="Print the steps, where it stands, what each waits for.")
def plan(
    name: Annotated[
        str | None, typer.Argument(help="The rollout's name; every one when absent.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            "-f",
            metavar="FILE",
            help="An edited configuration: say what a restart under it would change. Nothing is changed now.",
            show_default=False,
        ),
    ] = None,
    config: ConfigFile = DEFAULT_FILE,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Print a rollout's steps, where it stands, and what each step waits for, with numbers.

    With --file: what an edited configuration would change, before any restart. Exit status then: 0; 2 where a
    restart under it would be refused.
    """
    if file is not None:
        _edited(name, file, config, state_dir, as_json)
        return
    from forkgate.cli.door import segment
    from forkgate.cli.plan_text import plan_lines

    judge = door(config, state_dir)
    names = [name] if name is not None else [one["name"] for one in judge.get("/v1/rollouts")["rollouts"]]
    told = [judge.get(f"/v1/rollouts/{segment(one)}/plan") for one in names]
    if as_json:
        data_json(told if name is None else told[0])
    elif told:
        option = named(config, state_dir)
        data("\n\n".join("\n".join(plan_lines(one, option)) for one in told))
    else:
        say("no rollouts are configured")


def _edited(name: str | None, file: Path, config: Path, state_dir: Path | None, as_json: bool) -> None:
    from comparator.evidence.keys import SealedKeyError
    from forkgate.cli.options import evidence_keys, read_config
    from forkgate.cli.plan_text import edit_lines
    from forkgate.judge.checkpoint import NewerStatesError
    from forkgate.judge.edited import edited
    from forkgate.state.paths import StatePaths

    new = read_config(file)
    paths = StatePaths(state_dir if state_dir is not None else Path(read_config(config).state_dir))
    try:
        told = edited(new, paths, lambda: evidence_keys(file, ()))
    except SealedKeyError as error:
        leave(
            Exit.USAGE,
            f"{paths.rollouts}: {error}. A judge would not start under {file}: name the key in it, if only "
            "under evidence.encryption.old_keys",
        )
    except NewerStatesError as error:
        leave(Exit.USAGE, f"{paths.rollouts}: {error}")
    except OSError as error:
        leave(Exit.USAGE, f"{paths.rollouts}: {error.strerror or error}")
    refused = [one for one in told if "refused" in one]
    if name is not None:
        told = [one for one in told if one["name"] == name]
        if not told:
            leave(Exit.USAGE, f"no rollout is called {name!r}, neither in {file} nor in {paths.root}")
        told += refused  # whatever was asked about, nothing of it would come to pass
    if as_json:
        data_json(told)
    else:
        data("\n".join(line for one in told for line in edit_lines(one)) or "nothing would change")
    if refused:
        leave(Exit.USAGE)


@app.command("start", short_help="Begin a rollout, with its checks.")
def start(
    name: Name,
    reason: Reason,
    config: ConfigFile = DEFAULT_FILE,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Begin a rollout that is pending, or one that was aborted: its checks first, then copies."""
    _act("start", name, reason, config, state_dir, as_json)


@app.command("pause")
def pause(
    name: Name,
    reason: Reason,
    config: ConfigFile = DEFAULT_FILE,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Let nothing advance. Traffic stays where it is, gates go on, and a breach still rolls back."""
    _act("pause", name, reason, config, state_dir, as_json)


@app.command("resume")
def resume(
    name: Name,
    reason: Reason,
    config: ConfigFile = DEFAULT_FILE,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """End a pause; the evidence of the pause counts."""
    _act("resume", name, reason, config, state_dir, as_json)


@app.command("promote", short_help="Go one step on; at the last one, home moves.")
def promote(
    name: Name,
    reason: Reason,
    look: Annotated[
        str | None,
        typer.Option(
            "--look",
            metavar="LOOK",
            help="Only out of this stage or step, as `rollout show` names it: shadow-1, canary-2.",
            show_default=False,
        ),
    ] = None,
    config: ConfigFile = DEFAULT_FILE,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Go one step on: shadow, each canary step, observing, and at last home moves.

    Refused unless every condition of the present step holds; `forkgate rollout plan NAME` lists them. With
    --look a promote that is sent twice moves once.
    """
    _act("promote", name, reason, config, state_dir, as_json, look=look)


@app.command("rollback", short_help="Send all traffic home, or one tenant. Latched.")
def rollback(
    name: Name,
    reason: Reason,
    tenant: Tenant = None,
    config: ConfigFile = DEFAULT_FILE,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Send all traffic home at once, from any stage; with --tenant one tenant's. Latched until lifted."""
    _act("rollback", name, reason, config, state_dir, as_json, tenant)


@app.command("abort", short_help="End the rollout: all traffic home.")
def abort(
    name: Name,
    reason: Reason,
    config: ConfigFile = DEFAULT_FILE,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """End the rollout: all traffic home, nothing copied. It begins again by `rollout start` alone."""
    _act("abort", name, reason, config, state_dir, as_json)


@app.command("lift", short_help="Lift a rollback or a hold.")
def lift(
    name: Name,
    reason: Reason,
    tenant: Tenant = None,
    config: ConfigFile = DEFAULT_FILE,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Lift a rollback or a hold: gates start anew, and what the stage starts with is done again.

    After a rollback the rollout begins again with its checks. A hold in a check makes the check again.
    With --tenant, one tenant that was sent home leaves it again, and nothing else changes.
    """
    _act("lift", name, reason, config, state_dir, as_json, tenant)


def _act(
    verb: str,
    name: str,
    reason: str,
    config: Path,
    state_dir: Path | None,
    as_json: bool,
    tenant: str | None = None,
    look: str | None = None,
) -> None:
    from forkgate.cli.door import segment

    if not reason.strip():
        leave(Exit.USAGE, f"--reason: is empty, say why to {verb} it")
    named_too = {"tenant": tenant, "look": look}
    body = {"reason": reason} | {key: value for key, value in named_too.items() if value is not None}
    answer = door(config, state_dir).post(f"/v1/rollouts/{segment(name)}/{verb}", body, ACT_S)
    if as_json:
        data_json(answer)
        return
    whom = "" if tenant is None else f" for {tenant}"
    one = answer["rollout"]
    data(f"{name}: {_DONE[verb]}{whom}, {one['place']} at epoch {answer['epoch']}")
    for trouble in answer["troubles"]:
        say(trouble)
    if one["next"] is not None:
        say(f"next: {one['next']}{named(config, state_dir)}")


_DONE = {
    "start": "started",
    "pause": "paused",
    "resume": "resumed",
    "promote": "one step on",
    "rollback": "rolled back",
    "abort": "aborted",
    "lift": "lifted",
}


def standing(rollout: dict[str, Any]) -> Exit:
    """Where a rollout stands, as an exit status."""
    answers = {verdict["answer"] for verdict in rollout["verdicts"]}
    if rollout["state"] in ("rolled_back", "aborted") or "fail" in answers:
        return Exit.FAIL
    if "error" in answers:
        return Exit.UNMEASURED
    stopped = rollout["held"] is not None or rollout["paused"] is not None
    if stopped or rollout["state"] in ("pending", "self_check", "quick_check"):
        return Exit.INCONCLUSIVE  # whatever the gates say, nothing goes on from here by itself
    return Exit.PASS if answers == {"pass"} else Exit.INCONCLUSIVE
