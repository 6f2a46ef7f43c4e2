"""``forkgate evidence list|show|export|replay``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forkgate.cli.exits import Exit
from forkgate.cli.options import DEFAULT_FILE, ConfigFile, Json, StateDir, door, named
from forkgate.cli.output import data, data_json, leave, say

if TYPE_CHECKING:
    from forkgate.cli.door import Door

app = typer.Typer(no_args_is_help=True, help="What was compared: list, show, export, run again.")

CaptureId = Annotated[
    str,
    typer.Argument(
        help="The capture's ID, as `evidence list` prints it; its first 8 characters or more will do."
    ),
]
Rollout = Annotated[str | None, typer.Option("--rollout", help="Only this rollout's.")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.")]
ForkedOnly = Annotated[bool, typer.Option("--forked", help="Only pairs that forked.")]

PAGE_PAIRS = 1_000
"""What the admin API answers at once, at most."""

REPLAY_EXIT = {"stands": Exit.PASS, "moved": Exit.FAIL, "vanished": Exit.FAIL, "appeared": Exit.FAIL}


@app.command("list")
def list_(
    rollout: Rollout = None,
    tenant: Tenant = None,
    forked: ForkedOnly = False,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=10_000, help="At most this many, newest first.")
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


@app.command("show")
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


@app.command("export")
def export(
    rollout: Rollout = None,
    tenant: Tenant = None,
    forked: ForkedOnly = False,
    config: ConfigFile = DEFAULT_FILE,
    state_dir: StateDir = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The only form there is, a JSON object a line.")
    ] = True,
) -> None:
    """Write every matching capture to standard output, one JSON object a line, oldest first
    (docs/evidence-format.md)."""
    query = {"rollout": rollout, "tenant": tenant, "forked": "true" if forked else None}
    count = 0
    for line in door(config, state_dir).lines("/v1/evidence/export", **query):
        sys.stdout.buffer.write(line)
        count += 1
        if count % 1_000 == 0:
            say(f"{count} captures")
    sys.stdout.buffer.flush()
    say(f"{count} captures exported")


@app.command("replay")
def replay(
    capture_id: CaptureId,
    replicate: Annotated[
        int, typer.Option("--replicate", min=0, help="Which of its replicates, where it has several.")
    ] = 0,
    arm: Annotated[
        str, typer.Option("--arm", help="Compared with the baseline: candidate, or control.")
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
