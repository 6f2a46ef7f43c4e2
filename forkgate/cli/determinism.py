"""``forkgate determinism``: does a model run the same way twice?"""

from __future__ import annotations

import typer

from forkgate.cli.exits import Exit
from forkgate.cli.output import leave
from forkgate.cli.processes import PASS_THROUGH

app = typer.Typer(
    no_args_is_help=True, help="Does a model run the same way twice? PyTorch's strict settings, audited."
)


@app.callback()
def root() -> None:
    """Commands on deterministic running."""


@app.command(
    "audit",
    short_help="List every operator without a deterministic implementation, compare runs, and time them.",
    context_settings=PASS_THROUGH,
    add_help_option=False,
)
def audit(context: typer.Context) -> None:
    """List every operator without a deterministic implementation that a model meets; compare, and time it."""
    import importlib.util
    import os
    import sys

    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        leave(
            Exit.UNMEASURED,
            f"forkgate determinism audit: {' and '.join(missing)} not installed, "
            "run: pip install 'forkgate[torch]'",
        )
    # Becomes that process: the front door itself never imports torch.
    os.execv(sys.executable, [sys.executable, "-m", "engines.determinism", *context.args])  # noqa: S606
