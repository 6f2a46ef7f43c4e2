"""``forkgate check-config`` and ``forkgate config schema``."""

from __future__ import annotations

import typer

from forkgate.cli.exits import Exit
from forkgate.cli.options import File, FileOption, Json, chosen
from forkgate.cli.output import data, data_json, leave, say

app = typer.Typer(no_args_is_help=True, help="The configuration file.")


def check_config(file: File = None, config_file: FileOption = None, as_json: Json = False) -> None:
    """Read a configuration file and name everything that is wrong with it.

    Exit status: 0 it can be used; 2 it cannot, as `forkgate serve` would say of it.
    """
    from forkgate.config import ConfigError, load

    file = chosen(file, config_file)
    try:
        config = load(file)
    except ConfigError as error:
        if as_json:
            problems = [
                {"path": one.path, "line": one.line, "message": one.message} for one in error.problems
            ]
            data_json({"file": str(file), "ok": False, "problems": problems})
        else:
            for line in error.lines():
                say(line)
        leave(Exit.USAGE)
    if as_json:
        data_json({"file": str(file), "ok": True, "problems": []})
    else:
        rollouts = ", ".join(one.name for one in config.rollouts) or "none"
        data(f"{file}: ok, {len(config.pools)} pools, home {config.home}, rollouts: {rollouts}")


@app.command("schema", short_help="Print the JSON Schema: every key, its unit, its default.")
def schema(as_json: Json = True) -> None:
    """Print the JSON Schema of the configuration file: every key, its unit and its default."""
    from forkgate.config.schema import schema_text

    data(schema_text())


@app.command("check")
def check(file: File = None, config_file: FileOption = None, as_json: Json = False) -> None:
    """The same as `forkgate check-config`."""
    check_config(file, config_file, as_json)
