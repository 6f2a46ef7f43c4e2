"""Options that several commands share."""

from __future__ import annotations

import os
import shlex
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forkgate.cli.exits import Exit
from forkgate.cli.output import complain, leave

if TYPE_CHECKING:
    from collections.abc import Iterable

    from comparator.evidence import Keyring
    from forkgate.cli.door import Door, Remote
    from forkgate.config import Config

DEFAULT_FILE = Path("forkgate.yaml")

REMOTE: ContextVar[Remote | None] = ContextVar("remote", default=None)
"""The judge that ``--server`` names; set once, before the command runs."""

File = Annotated[
    Path | None,
    typer.Argument(
        help="Configuration file, as with --config. Without either $FORKGATE_CONFIG, else forkgate.yaml.",
        show_default=False,
    ),
]
FileOption = Annotated[
    Path | None, typer.Option("--config", "-c", metavar="FILE", help="The same as FILE.", show_default=False)
]
"""Of the commands that read a whole file, beside :data:`File`; see :func:`chosen`."""

ConfigFile = Annotated[
    Path,
    typer.Option(
        "--config",
        "-c",
        metavar="FILE",
        envvar="FORKGATE_CONFIG",
        help="Configuration file.",
        show_default=True,
    ),
]
StateDir = Annotated[
    Path | None,
    typer.Option(
        "--state-dir",
        metavar="DIR",
        envvar="FORKGATE_STATE_DIR",
        help="The sidecar's state directory, instead of reading --config.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON value on standard output.")]


def chosen(file: Path | None, option: Path | None) -> Path:
    """The one configuration file that a command means: FILE or ``--config``, else the environment's, else
    ``forkgate.yaml``. Two different files end the command."""
    if file is not None and option is not None and file != option:
        leave(Exit.USAGE, f"FILE is {file} and --config is {option}: name one configuration file")
    typed = file if file is not None else option
    if typed is not None:
        return typed
    named = os.environ.get("FORKGATE_CONFIG")
    return Path(named) if named else DEFAULT_FILE


def read_config(file: Path) -> Config:
    """The configuration, or the end of the command with every problem named."""
    from forkgate.config import ConfigError, load

    try:
        return load(file)
    except ConfigError as error:
        for line in error.lines():
            complain(line)
        leave(Exit.USAGE)


def named(config: Path, state_dir: Path | None) -> str:
    """What a suggested command needs to find the same sidecar: nothing, or an option."""
    if state_dir is not None:
        return f" --state-dir {shlex.quote(str(state_dir))}"
    return "" if config == DEFAULT_FILE else f" --config {shlex.quote(str(config))}"


def door(config: Path, state_dir: Path | None) -> Door:
    """The judge's admin API: where ``--server`` of the command itself says, else found by the state directory
    or by the configuration that names it."""
    from forkgate.cli.door import Door, RemoteDoor
    from forkgate.state.paths import StatePaths

    remote = REMOTE.get()
    if remote is not None:
        if state_dir is not None:
            leave(Exit.USAGE, "--server and --state-dir name two judges, give one of them")
        return RemoteDoor(remote)
    if state_dir is None:
        state_dir = Path(read_config(config).state_dir)
    return Door(StatePaths(state_dir).admin_socket)


def evidence_keys(config: Path | None, key_files: Iterable[Path]) -> Keyring:
    """What sealed evidence is read with, where a command reads a store by itself."""
    from comparator.evidence import Keyring
    from forkgate.evidence_keys import EvidenceKeyError, key_from_file, keyring_of

    try:
        own = keyring_of(read_config(config).evidence) if config is not None else Keyring()
        more = tuple(key_from_file(path) for path in key_files)
    except EvidenceKeyError as error:
        leave(Exit.USAGE, str(error))
    return Keyring(current=own.current, old=(*own.old, *more))
