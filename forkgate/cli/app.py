"""The tree of commands. Each lives in a module of its own, imported with nothing heavy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from forkgate.cli import (
    artifact,
    audit,
    check,
    compare,
    determinism,
    environment,
    evidence,
    gate,
    policy,
    processes,
    rollout,
    settings,
    status,
    suite,
    verdict,
)
from forkgate.cli import config as config_commands
from forkgate.cli.exits import Exit
from forkgate.cli.help import PlainHelp
from forkgate.cli.options import REMOTE
from forkgate.cli.output import data

app = typer.Typer(
    name="forkgate",
    cls=PlainHelp,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Gate a release on where two environments' token streams first fork.\n\n"
    "Exit status: 0 pass, 1 fail, 2 usage, 3 inconclusive, 4 could not measure.",
)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        data(f"forkgate {version('forkgate')}")
        raise typer.Exit(Exit.PASS)


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            envvar="FORKGATE_SERVER",
            metavar="URL",
            help="Ask the judge at this address instead of the unix socket: https://HOST:PORT.",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE", envvar="FORKGATE_TOKEN_FILE", help="The token for --server."
        ),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(
            "--ca-file",
            metavar="FILE",
            envvar="FORKGATE_CA_FILE",
            help="PEM authorities of --server; else the system's.",
        ),
    ] = None,
    client_cert: Annotated[
        Path | None,
        typer.Option(
            "--client-cert",
            metavar="FILE",
            envvar="FORKGATE_CLIENT_CERT",
            help="PEM certificate and key, for mutual TLS.",
        ),
    ] = None,
) -> None:
    """Options of the command itself; those of the server stand before the command's name."""
    from forkgate.cli.door import Remote

    if server is not None:
        REMOTE.set(Remote(server=server, token_file=token_file, ca_file=ca_file, client_cert=client_cert))


app.command("serve", short_help="Run the sidecar: edge workers and a judge.")(processes.serve)
app.command("edge", short_help="Run edge workers alone.")(processes.edge)
app.command("judge", short_help="Run a judge alone.")(processes.judge)
app.command("check-config", short_help="Say what is wrong with a configuration file.")(
    config_commands.check_config
)
app.command("status", short_help="Show edges, engines, ledger and rollouts.")(status.status)
app.command(
    "demo",
    short_help="Watch two models fork, and traffic go back.",
    context_settings=processes.PASS_THROUGH,
    add_help_option=False,
)(processes.demo)
app.command("engine", context_settings=processes.PASS_THROUGH, add_help_option=False)(processes.engine)
app.command("settings", short_help="Launch settings with which an engine repeats itself.")(settings.settings)
app.command("compare", short_help="Which level of equality environments can reach, and have shown.")(
    compare.compare
)
app.add_typer(config_commands.app, name="config")
app.add_typer(
    rollout.app, name="rollout", short_help="Rollouts: where they stand, and the verbs that move them."
)
app.add_typer(policy.app, name="policy")
app.add_typer(gate.app, name="gate")
app.add_typer(evidence.app, name="evidence")
app.add_typer(check.app, name="check", short_help="Does an environment agree with itself, do two fit?")
app.add_typer(audit.app, name="audit")
app.add_typer(suite.app, name="suite")
app.add_typer(verdict.app, name="verdict")
app.add_typer(artifact.app, name="artifact", short_help="Who answered: the weights, tokenizer and template.")
app.add_typer(determinism.app, name="determinism", short_help="Does a model run the same way twice?")
app.add_typer(
    environment.app, name="environment", short_help="Who answered: GPU, driver, libraries and settings."
)


def run() -> None:
    """Parse ``sys.argv`` and exit."""
    try:
        app()
    except BrokenPipeError:
        # Whoever read our output has seen enough (``forkgate evidence export | head``).
        sys.stderr.close()
        sys.exit(Exit.PASS)
