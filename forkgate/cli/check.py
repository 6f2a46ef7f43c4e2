"""``forkgate check self|quick``: what a rollout's first steps look at, without a judge."""

from __future__ import annotations

import enum
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forkgate.cli.exits import Exit
from forkgate.cli.options import File, FileOption, Json, chosen, read_config
from forkgate.cli.output import data, data_json, leave, say

if TYPE_CHECKING:
    from forkgate.checks import CheckReport
    from forkgate.config import Config
    from policies.policy import Level

app = typer.Typer(
    no_args_is_help=True,
    help="Before anything is compared: does an environment agree with itself, do two of them fit.\n\n"
    "No judge is needed. Exit status: 0 pass, 1 fail, 2 usage, 3 inconclusive, 4 could not measure.",
)


class LevelName(enum.StrEnum):
    """As ``policies.policy.Level``, which would take the comparator with it."""

    ARTIFACT = "artifact"
    ENVIRONMENT = "environment"
    TOKEN = "token"  # noqa: S105 - a level, not a secret
    STATISTICAL = "statistical"


LevelOption = Annotated[
    LevelName | None,
    typer.Option(
        "--level",
        metavar="LEVEL",
        help="Judge at this level instead of the policy's: artifact, environment, token or statistical.",
        show_default=False,
    ),
]


@app.command("self", short_help="Ask an environment the same five times.")
def self_(
    file: File = None,
    config_file: FileOption = None,
    pool: Annotated[
        str | None,
        typer.Option("--pool", metavar="NAME", help="The pool to ask; home when absent.", show_default=False),
    ] = None,
    level: LevelOption = None,
    as_json: Json = False,
) -> None:
    """Ask one pool the same prompts several times, one after another, and say whether it reproduces itself.

    Judged at the level of the policy whose baseline the pool is, else at level token: there any fork fails.
    At level statistical the noise floor is told and the check passes.

    Exit status: 0 pass; 1 fail; 4 could not measure; 2 usage.
    """
    from forkgate.config.first_checks import CheckSettings
    from forkgate.config.problems import did_you_mean

    config = read_config(chosen(file, config_file))
    name = pool if pool is not None else config.home
    names = [one.name for one in config.pools]
    if name not in names:
        leave(Exit.USAGE, f"--pool: no pool is called {name!r}, {did_you_mean(name, names)}")
    rollout = next((one for one in config.rollouts if one.baseline == name), None)
    settings = rollout.checks if rollout is not None else CheckSettings()
    from forkgate.checks.alone import self_check_alone

    say(f"asking {name}: {settings.prompts} prompts of {settings.tokens} tokens, {settings.self_runs} runs")
    judged_at = _level(config, rollout.name if rollout is not None else None, level)
    _tell(_run(self_check_alone(config, name, settings, judged_at)), as_json)


@app.command("quick", short_help="Ask two environments ten short things.")
def quick(
    file: File = None,
    config_file: FileOption = None,
    rollout: Annotated[
        str | None,
        typer.Option(
            "--rollout",
            metavar="NAME",
            help="Whose pools to ask; the only one when absent.",
            show_default=False,
        ),
    ] = None,
    level: LevelOption = None,
    as_json: Json = False,
) -> None:
    """Ask a rollout's baseline and candidate a few short answers, and say what no traffic would mend: another
    tokenizer or template, another setting, a candidate that fails, or another model.

    Exit status: 0 pass; 1 fail; 3 too few prompts to say; 4 could not measure; 2 usage.
    """
    config = read_config(chosen(file, config_file))
    name = the_rollout(config, rollout)
    from forkgate.checks.alone import quick_check_alone

    section = config.rollout(name)
    say(
        f"asking {section.baseline} and {section.candidate}: {section.checks.prompts} prompts of "
        f"{section.checks.tokens} tokens"
    )
    _tell(_run(quick_check_alone(config, name, _level(config, name, level))), as_json)


def the_rollout(config: Config, named: str | None) -> str:
    """The rollout that a command means, or the end of the command."""
    from forkgate.config.problems import did_you_mean

    names = [str(one.name) for one in config.rollouts]
    if named is None:
        if len(names) != 1:
            have = f"there are {', '.join(names)}" if names else "none is configured"
            leave(Exit.USAGE, f"--rollout: missing, {have}")
        return names[0]
    if named not in names:
        leave(Exit.USAGE, f"--rollout: no rollout is called {named!r}, {did_you_mean(named, names)}")
    return named


def _level(config: Config, rollout: str | None, asked: LevelName | None) -> Level:
    from forkgate.config.policy import read_policies
    from policies.policy import Level

    if asked is not None:
        return Level(asked.value)
    return read_policies(config).policies[rollout].level if rollout is not None else Level.TOKEN


def _run(check: Coroutine[Any, Any, CheckReport]) -> CheckReport:
    import asyncio

    from forkgate.fleet import FleetError

    try:
        return asyncio.run(check)
    except FleetError as error:
        leave(Exit.USAGE, str(error))


def _tell(report: CheckReport, as_json: bool) -> None:
    if as_json:
        import msgspec

        from comparator.evidence.export import json_safe

        data_json(json_safe(msgspec.to_builtins(report)))
        say(f"{report.answer.value}: {report.reason}")
    else:
        data("\n".join(lines_of(report)))
    exits = {"pass": Exit.PASS, "fail": Exit.FAIL, "inconclusive": Exit.INCONCLUSIVE}
    leave(exits.get(report.answer.value, Exit.UNMEASURED))


def lines_of(report: CheckReport) -> list[str]:
    """For a terminal."""
    name = report.check.value.replace("_", " ")
    lines = [f"{name} of {' and '.join(report.pools)} at level {report.level.value}", ""]
    if report.prompts:
        lines.append(f"{'prompt':<14} {'category':<18} {'pairs':>5} {'equal':>5}  what differs")
    for one in report.prompts:
        forks = [
            f"token {fork.fork_index}{_place(fork.run)}: {_short(fork.left_token)} / "
            f"{_short(fork.right_token)}, {fork.fork_class.replace('_', ' ')}, margins "
            f"{_nats(fork.left_margin_nats)} / {_nats(fork.right_margin_nats)}"
            for fork in one.forks
        ]
        told = [*forks, *one.set_aside, *one.failed] or [""]
        lines.append(f"{one.prompt:<14} {one.category:<18} {one.pairs:>5} {one.equal:>5}  {told[0]}".rstrip())
        lines += [f"{'':<46}{text}" for text in told[1:4]]
        if len(told) > 4:
            lines.append(f"{'':<46}... {len(told) - 4} more, --json has them all")
    if report.prompts:
        floor = report.floor
        lines += ["", f"equal    {report.equal} of {report.pairs}"]
        if report.check.value == "self_check":
            lines.append(
                f"floor    {floor.sigma_nats:.3g} nats of margin (root mean square), {floor.tv_q99:.3g} of "
                f"total variation (99 %), {floor.n} pairs"
            )
        lines.append(f"spacing  {report.spacing_nats:.3g} nats: what the precision alone moves a margin by")
    lines += [f"note     {note}" for note in report.notes]
    if report.endpoints:
        lines.append(f"asked    {', '.join(report.endpoints)}, {report.seconds:.1f} s")
    return [*lines, "", f"{report.answer.value}: {report.reason}"]


def _place(run: int) -> str:
    return f" of run {run}" if run > 1 else ""


def _nats(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _short(text: str) -> str:
    shown = repr(text)
    return shown if len(shown) <= 20 else shown[:18] + "…'"
