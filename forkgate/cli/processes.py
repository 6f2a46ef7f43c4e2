"""Commands that become a long-lived process: serve, edge, judge, engine, demo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from forkgate.cli.exits import Exit
from forkgate.cli.options import File, FileOption, chosen, read_config
from forkgate.cli.output import leave

if TYPE_CHECKING:
    from forkgate.supervisor import Parts

PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""The command behind parses its own options, and answers its own ``--help``."""


def serve(file: File = None, config: FileOption = None) -> None:
    """Run the sidecar: edge workers and a judge under one supervisor, until SIGTERM."""
    from forkgate.supervisor import Parts

    _supervise(chosen(file, config), Parts())


def edge(file: File = None, config: FileOption = None) -> None:
    """Run edge workers alone, with the judge that `judge.address` names."""
    from forkgate.supervisor import Parts

    _supervise(chosen(file, config), Parts(judge=False))


def judge(file: File = None, config: FileOption = None) -> None:
    """Run a judge alone, listening for edges on `judge.address`."""
    from forkgate.supervisor import Parts

    _supervise(chosen(file, config), Parts(edges=False))


def _supervise(file: Path, parts: Parts) -> None:
    import asyncio

    from forkgate.config.policy import read_policies
    from forkgate.state.home import HomeUnclear
    from forkgate.state.lock import Locked
    from forkgate.supervisor import ListenError, Supervisor
    from proxy.logs import log_to_stderr

    config = read_config(file)
    log_to_stderr("supervisor")
    supervisor = Supervisor(config, read_policies(config).sources, parts)
    try:
        status = asyncio.run(supervisor.run())
    except Locked as error:
        who = f"process {error.holder}" if error.holder is not None else "another process"
        leave(
            Exit.USAGE,
            f"state_dir: {config.state_dir} is in use by {who}, stop it or choose another",
        )
    except (ListenError, HomeUnclear) as error:
        leave(Exit.USAGE, str(error))
    except OSError as error:
        leave(Exit.USAGE, f"state_dir: {config.state_dir}: {error.strerror or error}")
    raise typer.Exit(status)


def engine(context: typer.Context) -> None:
    """Run the reference engine (torch + transformers). Needs `pip install 'forkgate[torch]'`."""
    import importlib.util
    import os
    import sys

    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        leave(
            Exit.USAGE,
            f"forkgate engine: {' and '.join(missing)} not installed, run: pip install 'forkgate[torch]'",
        )
    # Becomes that process: the front door itself never imports torch.
    os.execv(sys.executable, [sys.executable, "-m", "engines.reference", *context.args])  # noqa: S606


def demo(context: typer.Context) -> None:
    """Watch two real models fork and a tenant's traffic go back to the old pool."""
    from forkgate.demo.run import main

    raise typer.Exit(main(context.args))
