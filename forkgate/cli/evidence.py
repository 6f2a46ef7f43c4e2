"""``forkgate evidence list|show|export|replay|records|erase|erasures|rekey``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forkgate.cli.exits import Exit
from forkgate.cli.options import DEFAULT_FILE, ConfigFile, Json, StateDir, door, named
from forkgate.cli.output import data, data_json, leave, say

if TYPE_CHECKING:
    from forkgate.cli.door import Door

app = typer.Typer(no_args_is_help=True, help="What was compared: list, show, export, run again, erase.")

CaptureId = Annotated[
    str,
    typer.Argument(
        help="The capture's ID, as `evidence list` prints it; or its beginning, 8 characters at least, where "
        "no other begins so. IDs of one minute begin alike."
    ),
]
Rollout = Annotated[str | None, typer.Option("--rollout", metavar="NAME", help="Only this rollout's.")]
Tenant = Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Only this tenant's.")]
ForkedOnly = Annotated[bool, typer.Option("--forked", help="Only pairs that forked.")]

REKEY_TIMEOUT_S = 60.0
"""Of one request, in which the judge works for some seconds."""

PAGE_PAIRS = 1_000
"""What the admin API answers at once, at most."""

CAPTURE_LINE = b'{"capture_id"'
"""How the line of a capture begins; other lines are of the bundle's head."""

REPLAY_EXIT = {"stands": Exit.PASS, "moved": Exit.FAIL, "vanished": Exit.FAIL, "appeared": Exit.FAIL}


@app.command("list")
def list_(
    rollout: Rollout = None,
    tenant: Tenant = None,
    forked: ForkedOnly = False,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="At most this many, newest first.")
    ] = 50,
    config: ConfigFile = DEFAULT_FILE,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """List pairs, newest first, one a line. A captured request has several: one for each replicate, with the
    candidate and, where one ran, with the control."""
    pairs = _pages(door(config, state_dir), limit, rollout, tenant, forked)
    if as_json:
        data_json(pairs)
        return
    for one in pairs:
        data(one["summary"])
    if not pairs:
        say("no pairs match")


@app.command("show", short_help="Show one capture: both continuations around the fork.")
def show(
    capture_id: CaptureId,
    config: ConfigFile = DEFAULT_FILE,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Show one capture, pair by pair: both continuations around the fork, its class with the noise floor that
    it was held against, and what differs between the two sides."""
    from forkgate.cli.door import segment

    answer = door(config, state_dir).get(f"/v1/evidence/{segment(capture_id)}")
    if as_json:
        data_json(answer)
        return
    text = answer["text"]
    for one in answer["explanations"]:
        if one["replay"] is not None:
            hint = f"\nrun again: {one['replay']}"
            text = text.replace(f"{hint}\n", f"{hint}{named(config, state_dir)}\n")
    data(text)


@app.command("export", short_help="Write it to standard output, an object a line.")
def export(
    rollout: Rollout = None,
    tenant: Tenant = None,
    forked: ForkedOnly = False,
    config: ConfigFile = DEFAULT_FILE,
    state_dir: StateDir = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The only form there is, a JSON object a line.", show_default=False)
    ] = True,
) -> None:
    """Write a bundle to standard output, one JSON object a line: who answered, what was erased, then every
    matching capture, oldest first (docs/evidence-format.md)."""
    query = {"rollout": rollout, "tenant": tenant, "forked": "true" if forked else None}
    count = 0
    for line in door(config, state_dir).lines("/v1/evidence/export", **query):
        sys.stdout.buffer.write(line)
        if not line.startswith(CAPTURE_LINE):
            continue
        count += 1
        if count % 1_000 == 0:
            say(f"{count} captures")
    sys.stdout.buffer.flush()
    say(f"{count} captures exported")


@app.command("replay", short_help="Run both arms again: does the fork stand?")
def replay(
    capture_id: CaptureId,
    replicate: Annotated[
        int,
        typer.Option(
            "--replicate", metavar="N", min=0, help="Which of its replicates, where it has several."
        ),
    ] = 0,
    arm: Annotated[
        str, typer.Option("--arm", metavar="ARM", help="Compared with the baseline: candidate, or control.")
    ] = "candidate",
    config: ConfigFile = DEFAULT_FILE,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Run a pair's arms again, with the same token IDs, parameters and seed, and say whether the fork stands.

    Exit status: 0 the same as before; 1 the fork moved, vanished or appeared; 4 an engine failed.
    """
    from forkgate.cli.door import REPLAY_TIMEOUT_S, segment

    if arm not in ("candidate", "control"):
        leave(Exit.USAGE, f"--arm: {arm!r} is neither candidate nor control")
    say("running both arms again ...")
    answer = door(config, state_dir).post(
        f"/v1/evidence/{segment(capture_id)}/replay?replicate={replicate}&arm={arm}",
        timeout_s=REPLAY_TIMEOUT_S,
    )
    if as_json:
        data_json(answer)
    else:
        data(answer["text"])
    leave(REPLAY_EXIT[answer["verdict"]])


@app.command("records", short_help="List the records of who answered.")
def records(
    rollout: Annotated[
        str | None, typer.Option("--rollout", metavar="NAME", help="Only of pools that answered in it.")
    ] = None,
    config: ConfigFile = DEFAULT_FILE,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """List the environment and artifact records of who answered; --json has them whole."""
    found = door(config, state_dir).get("/v1/evidence/records", rollout=rollout)["records"]
    if as_json:
        data_json(found)
        return
    for one in found:
        places = ", ".join(dict.fromkeys(f"{sight['pool']} {sight['endpoint']}" for sight in one["seen"]))
        data(f"{one['kind']:<14} {one['digest']}  {places}")
    if not found:
        say("no record: engines gave none, and the configuration declares none (environment_record)")


@app.command("erase", short_help="Erase one tenant's or one request's.")
def erase(
    reason: Annotated[
        str,
        typer.Option(
            "--reason",
            metavar="WORDS",
            help="Why: stands in the erasure log for ever, so a ticket's number, nobody's name.",
        ),
    ],
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="NAME", help="All evidence of this tenant.")
    ] = None,
    capture_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="One request's: its capture ID, or its beginning."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask. Needed where no terminal is there to ask.")
    ] = False,
    config: ConfigFile = DEFAULT_FILE,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Erase what is kept of one tenant or one request, pinned evidence included. There is no way back.

    What stays: counts, verdicts and the numbers of the journal, which hold no prompt and no token, and a line
    in the erasure log. `verdict recompute` says of everything that rested on it that it is gone. Copies
    outside the store (exports, backups) are yours to erase. Safe to repeat.
    """
    from forkgate.cli.door import REPLAY_TIMEOUT_S

    if (tenant is None) == (capture_id is None):
        leave(Exit.USAGE, "say what to erase: exactly one of --tenant and --id")
    what = f"tenant {tenant}" if tenant is not None else f"capture {capture_id}"
    if not yes:
        if not sys.stdin.isatty():
            leave(Exit.USAGE, f"no terminal to ask whether {what} goes for good: say it with --yes")
        typer.confirm(f"erase all evidence of {what}? There is no way back", abort=True, err=True)
    asked = {"reason": reason} | ({"tenant": tenant} if tenant is not None else {"id": capture_id})
    answer = door(config, state_dir).post("/v1/evidence/erase", asked, timeout_s=REPLAY_TIMEOUT_S)
    if as_json:
        data_json(answer)
    else:
        data(_erased(answer))
    if not answer["done"]:
        leave(Exit.UNMEASURED)


@app.command("erasures", short_help="Print the erasure log, and check it.")
def erasures(config: ConfigFile = DEFAULT_FILE, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Print the erasure log, oldest first, and check its chain of hashes.

    Exit status: 0 the chain holds; 1 a line was changed or taken out.
    """
    answer = door(config, state_dir).get("/v1/evidence/erasures")
    if as_json:
        data_json(answer)
    else:
        for line in answer["erasures"]:
            data(f"{line['erasure']:>4}  {_erased({**line, 'done': True, 'again': False})}  {line['hash']}")
        if not answer["erasures"]:
            say("nothing was ever erased")
    for fault in answer["faults"]:
        say(fault)
    if answer["faults"]:
        leave(Exit.FAIL)


@app.command("rekey", short_help="Bring what is stored to the present key.")
def rekey(config: ConfigFile = DEFAULT_FILE, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Bring everything stored to the key that the configuration names now, also what was written before there
    was one. Safe to stop and to repeat: it goes on where it was.

    Put the new key under evidence.encryption and the old one under old_keys, restart, run this, and only then
    take the old key away.
    """
    judge = door(config, state_dir)
    while True:
        answer = judge.post("/v1/evidence/rekey", timeout_s=REKEY_TIMEOUT_S)
        if answer["done"]:
            break
        say(f"{answer['looked_at']} rows looked at, {answer['rows']} written anew")
    if as_json:
        data_json(answer)
        return
    key = answer["key_id"]
    now = "is not sealed any more" if key is None else f"is sealed with key {key}"
    data(f"everything stored {now}: {answer['rows']} of {answer['looked_at']} rows written anew")
    for old in answer["retired"]:
        data(f"key {old} is not needed any more: take it out of evidence.encryption.old_keys")


def _erased(answer: dict[str, Any]) -> str:
    """One erasure in a line."""
    import datetime

    gone = f"{answer['captures']} captures, {answer['exchanges']} answers"
    what = f"{answer['scope']} {answer['name']}"
    if not answer["done"]:
        return (
            f"{what}: {gone} deleted; a reader still holds old pages of the file, so the line in the erasure "
            "log follows by itself: look again with `forkgate evidence erasures`"
        )
    at = datetime.datetime.fromtimestamp(answer["unix_s"], tz=datetime.UTC)
    said = f"{at:%Y-%m-%dT%H:%M:%SZ}  {what}  {gone}  by {answer['who']}: {answer['reason']}"
    return f"erased before, nothing was left: {said}" if answer["again"] else said


def _pages(
    judge: Door, limit: int, rollout: str | None, tenant: str | None, forked: bool
) -> list[dict[str, Any]]:
    """Newest first, as many pages as ``limit`` takes."""
    query = {"rollout": rollout, "tenant": tenant, "forked": "true" if forked else None}
    pairs: list[dict[str, Any]] = []
    cursor = None
    while len(pairs) < limit:
        size = min(limit - len(pairs), PAGE_PAIRS)
        page = judge.get("/v1/evidence", **query, limit=size, cursor=cursor)
        pairs += page["pairs"]
        cursor = page["cursor"]
        if cursor is None:
            break
    return pairs
