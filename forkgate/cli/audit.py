"""``forkgate audit show|verify``: who did what, and whether the log of it is whole."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from forkgate.cli.exits import Exit
from forkgate.cli.options import DEFAULT_FILE, ConfigFile, Json, StateDir, door, read_config
from forkgate.cli.output import complain, data, data_json, leave, say

app = typer.Typer(no_args_is_help=True, help="The audit log: who did what, from where and why.")


@app.command("show")
def show(
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, max=1_000, help="The last lines.")
    ] = 100,
    config: ConfigFile = DEFAULT_FILE,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Show the last lines of the log, oldest first."""
    answer = door(config, state_dir).get("/v1/audit", limit=limit)
    if as_json:
        data_json(answer)
        return
    for entry in answer["entries"]:
        data(line_of(entry))
    if not answer["entries"]:
        say("the audit log is empty")


@app.command("verify")
def verify(
    file: Annotated[
        Path | None,
        typer.Argument(help="The log; without it the one in the state directory.", show_default=False),
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            "--head", metavar="HASH", help="A hash that an earlier verify printed: it must be in the chain."
        ),
    ] = None,
    follows: Annotated[
        str | None,
        typer.Option(
            "--follows", metavar="HASH", help="The log begins after the line of this hash, in an older file."
        ),
    ] = None,
    config: ConfigFile = DEFAULT_FILE,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Follow the chain of hashes from the first line to the last. Needs no judge.

    Exit status: 0 it holds; 1 a line was changed, taken out or added, or the head is not in it; 2 there is no
    such file.
    """
    from forkgate.admin.audit import verify as follow
    from forkgate.state.paths import StatePaths

    if file is None:
        root = state_dir if state_dir is not None else Path(read_config(config).state_dir)
        file = StatePaths(root).audit
    try:
        found = follow(file, head, follows)
    except OSError as error:
        leave(Exit.USAGE, f"{file}: cannot be read: {error.strerror or error}")
    problems = list(found.problems)
    if found.has_head is False:
        problems.append(f"the head {head} is not in it: lines at its end were cut off, or it is another log")
    if as_json:
        data_json(
            {
                "file": str(file),
                "lines": found.lines,
                "head": found.head,
                "unfinished": found.unfinished,
                "problems": problems,
            }
        )
    else:
        for problem in problems:
            complain(f"{file}: {problem}")
        unfinished = f", {found.unfinished} actions without a result" if found.unfinished else ""
        data(
            f"{file}: {'BROKEN' if problems else 'holds'}, {found.lines} lines{unfinished}, head {found.head}"
        )
    if problems:
        leave(Exit.FAIL)


def _one_line(told: str) -> str:
    """A refusal with its list of reasons, as one line."""
    first, *reasons = (line.strip().removeprefix("- ") for line in told.splitlines() or [""])
    return f"{first} {'; '.join(reasons)}" if reasons else first


def line_of(entry: dict[str, Any]) -> str:
    """One entry for people."""
    at = datetime.datetime.fromtimestamp(entry.get("unix_s", 0.0), tz=datetime.UTC)
    what = f"{entry.get('action', '')} {entry.get('target', '')}".strip() or entry.get("detail", "")
    parts = [f"{entry.get('seq', 0):>6}  {at:%Y-%m-%dT%H:%M:%SZ}  {entry['kind']:<6}  {entry.get('who', '')}"]
    parts.append(f"({entry.get('role', '')}, {entry.get('via', '')}, {entry.get('peer', '')})  {what}")
    if entry.get("about"):
        parts.append(f"of {entry['about']}")
    if entry.get("status"):
        epoch = f", epoch {entry['epoch']}" if entry.get("epoch") else ""
        parts.append(f"→ {entry['status']} {_one_line(entry.get('result', ''))}{epoch}")
    if entry.get("why"):
        parts.append(f"because: {entry['why']}")
    if entry.get("late"):
        parts.append("[written late]")
    return "  ".join(parts)
