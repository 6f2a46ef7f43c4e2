"""Options that several commands share."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forkgate.cli.exits import Exit
from forkgate.cli.output import leave, say

if TYPE_CHECKING:
    from forkgate.cli.door import Door
    from forkgate.config import Config

DEFAULT_FILE = Path("forkgate.yaml")

ConfigFile = Annotated[
    Path,
    typer.Option("--config", "-c", envvar="FORKGATE_CONFIG", help="Configuration file.", show_default=True),
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        envvar="FORKGATE_STATE_DIR",
        help="The sidecar's state directory, instead of reading --config.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON value on standard output.")]


def read_config(file: Path) -> Config:
    """The configuration, or the end of the command with every problem named."""
    from forkgate.config import ConfigError, load

    try:
        return load(file)
    except ConfigError as error:
        for line in error.lines():
            say(line)
        leave(Exit.USAGE)


def named(config: Path, state_dir: Path | None) -> str:
    """What a suggested command needs to find the same sidecar: nothing, or an option."""
    if state_dir is not None:
        return f" --state-dir {shlex.quote(str(state_dir))}"
    return "" if config == DEFAULT_FILE else f" --config {shlex.quote(str(config))}"


def door(config: Path, state_dir: Path | None) -> Door:
    """The judge's admin API, found by the state directory or by the configuration that names it."""
    from forkgate.cli.door import Door
    from forkgate.state.paths import StatePaths

    if state_dir is None:
        state_dir = Path(read_config(config).state_dir)
    return Door(StatePaths(state_dir).admin_socket)
