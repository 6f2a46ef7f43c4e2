"""``forkgate check-config`` and ``forkgate config schema``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forkgate.cli.exits import Exit
from forkgate.cli.options import File, FileOption, Json, chosen
from forkgate.cli.output import complain, data, data_json, leave, say

if TYPE_CHECKING:
    from forkgate.config import Config

app = typer.Typer(no_args_is_help=True, help="The configuration file.")


def check_config(file: File = None, config_file: FileOption = None, as_json: Json = False) -> None:
    """Read a configuration file and name everything that is wrong with it.

    Where its state_dir is there already, also whether home is where a promotion moved it.

    Exit status: 0 it can be used; 2 it cannot, as `forkgate serve` would say of it.
    """
    from forkgate.config import ConfigError, load

    file = chosen(file, config_file)
    try:
        config = load(file)
        note = _home(file, config)
    except ConfigError as error:
        if as_json:
            problems = [
                {"path": one.path, "line": one.line, "message": one.message} for one in error.problems
            ]
            data_json({"file": str(file), "ok": False, "problems": problems})
        else:
            for line in error.lines():
                complain(line)
        leave(Exit.USAGE)
    if note is not None:
        say(f"{file}: {note}")
    if as_json:
        data_json({"file": str(file), "ok": True, "problems": []})
    else:
        rollouts = ", ".join(one.name for one in config.rollouts) or "none"
        data(f"{file}: ok, {len(config.pools)} pools, home {config.home}, rollouts: {rollouts}")


def _home(file: Path, config: Config) -> str | None:
    """What the state directory has to say of where home is, for people; None where that is nothing.

    Raises ConfigError: a start under this file would be refused.
    """
    from forkgate.config.problems import ConfigError, Problem
    from forkgate.state.home import HomeUnclear, home_moved
    from forkgate.state.latch import LatchCorrupt, read_latch
    from forkgate.state.paths import StatePaths

    path = StatePaths(config.state_dir).latch
    try:
        moved = home_moved(
            read_latch(path), config.home, {one.name: one.candidate for one in config.rollouts}
        )
    except HomeUnclear as error:
        problem = Problem(path="home", message=f"{path}: {str(error).removeprefix('home: ')}")
        raise ConfigError(str(file), [problem]) from error
    except LatchCorrupt as error:
        return f"state_dir: {error}, so every rollout counts as rolled back until it is lifted"
    except OSError as error:
        return f"state_dir: {path}: {error.strerror or error}: where home is by now was not looked at"
    if moved is None:
        return None
    return f"home: {config.home} is the first home; rollout {moved.rollout} has moved it to {moved.pool}"


@app.command("schema", short_help="Print the JSON Schema: every key, its unit, its default.")
def schema(
    as_json: Annotated[
        bool, typer.Option("--json", help="The only form there is.", show_default=False)
    ] = True,
) -> None:
    """Print the JSON Schema of the configuration file: every key, its unit and its default."""
    from forkgate.config.schema import schema_text

    data(schema_text())


@app.command("check")
def check(file: File = None, config_file: FileOption = None, as_json: Json = False) -> None:
    """The same as `forkgate check-config`."""
    check_config(file, config_file, as_json)
