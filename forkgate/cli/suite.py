"""``forkgate suite check|run``: a suite's file, and a suite asked without a judge."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from forkgate.cli.exits import Exit
from forkgate.cli.options import File, FileOption, Json, chosen, read_config
from forkgate.cli.output import complain, data, data_json, leave, say

if TYPE_CHECKING:
    from collections.abc import Iterator

    from comparator.comparison import Comparison
    from forkgate.config import Config
    from forkgate.config.suites import LoadedSuite
    from forkgate.suites.alone import QuestionCount
    from forkgate.suites.run import SuiteReport
    from policies.suites import Suite

app = typer.Typer(no_args_is_help=True, help="Suites: frozen samples that gates read.")

SHOWN_TEMPLATES = 5


@app.command("check", short_help="Say what is wrong with a suite's file, else what it holds.")
def check(
    suite: Annotated[str, typer.Argument(help="JSON Lines; or a shipped suite's name, such as starter.")],
    scorer: Annotated[
        list[str] | None,
        typer.Option(
            "--scorer", metavar="NAME", help="A scorer that the policy will name; may be given several times."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Read a suite, name everything that is wrong with it, and count what it holds.

    Exit status: 0 it can be used; 2 it cannot.
    """
    from policies.suites import SuiteError, parse_suite, shipped

    file = Path(suite)
    try:
        content = shipped(suite) if not file.exists() and not file.suffix else file.read_bytes()
        made = parse_suite(content, suite, file.stem, scorer or ())
    except SuiteError as error:
        if not scorer and not as_json and any(".scorer: " in problem for problem in error.problems):
            say("no policy is read here: name the scorers that it will have with --scorer NAME")
        _refuse(suite, error.problems, as_json)
    except OSError as error:
        _refuse(suite, (f"{suite}: cannot be read: {error.strerror or error}",), as_json)
    if as_json:
        data_json({"suite": suite, "ok": True, "problems": [], **_counted(made)})
    else:
        data("\n".join(_lines(suite, made)))


def _refuse(suite: str, problems: tuple[str, ...], as_json: bool) -> NoReturn:
    if as_json:
        data_json({"suite": suite, "ok": False, "problems": list(problems)})
    else:
        for problem in problems:
            complain(problem)
    leave(Exit.USAGE)


def _counted(suite: Suite) -> dict[str, Any]:
    import msgspec

    summary = suite.summary()
    return {
        "digest": suite.digest,
        "sha256": suite.digest.removeprefix("sha256:"),
        **msgspec.to_builtins(summary),
        "largest_template_share": summary.largest_template_share,
    }


def _lines(name: str, suite: Suite) -> list[str]:
    summary = suite.summary()
    widest = max(len(category) for category in summary.categories)
    templates = list(summary.templates.items())
    lines = [f"{name}: ok, {summary.samples} samples", f"sha256: {suite.digest.removeprefix('sha256:')}", ""]
    lines += [f"  {category:<{widest}}  {count:>6}" for category, count in summary.categories.items()]
    largest = ", ".join(f"{template} {count}" for template, count in templates[:SHOWN_TEMPLATES])
    more = ", ..." if len(templates) > SHOWN_TEMPLATES else ""
    asked = f"with rules {summary.with_rules}, with an answer {summary.with_answer}"
    count = f"{len(templates)} template{'s' if len(templates) != 1 else ''}"
    lines += [
        "",
        f"{asked}, with structured output {summary.with_structured}; all count for length and refusal",
        f"{count}, the largest is {summary.largest_template_share:.1%}: {largest}{more}",
    ]
    return lines


@app.command("schema", short_help="Print the JSON Schema of a suite's line.")
def schema() -> None:
    """Print the JSON Schema of one line of a suite, for editors and for those who generate samples."""
    from forkgate.config.schema import suite_schema_text

    data(suite_schema_text())


@app.command("run", short_help="Ask a suite of a rollout's two pools, without a judge.")
def run(
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
    suite: Annotated[
        str | None,
        typer.Option(
            "--suite",
            metavar="NAME",
            help="Of the rollout's policy; the only one when absent.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="Write the comparisons there, for `forkgate gate evaluate --pairs`."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Ask every sample of a suite, in every pass, of baseline and candidate; score the answers and count.

    The same mirror, budgets and scorers as in a rollout, and no evidence is kept but in --out. What the
    scores mean is for the policy's gates: `forkgate gate evaluate --policy P --pairs OUT`.

    Exit status: 0 every sample was asked; 4 some were not, or nothing answered; 2 usage.
    """
    import asyncio

    from forkgate.cli.check import the_rollout
    from forkgate.fleet import FleetError
    from forkgate.suites.alone import counts_of, run_suite

    config = read_config(chosen(file, config_file))
    name = the_rollout(config, rollout)
    loaded = _loaded(config, name, suite)
    say(f"asking {loaded.name}: {len(loaded.suite.samples)} samples, {loaded.passes} passes")
    kept: list[Comparison] = []
    try:
        with _writer(out) as write:

            def keep(one: Comparison) -> None:
                kept.append(_light(one))
                write(one)

            report = asyncio.run(run_suite(config, name, loaded, keep))
    except FleetError as error:
        leave(Exit.USAGE, str(error))
    except OSError as error:
        leave(Exit.USAGE, f"--out: {out}: {error.strerror or error}")
    counts = counts_of(kept)
    if as_json:
        import msgspec

        data_json({**msgspec.to_builtins(report), "questions": msgspec.to_builtins(counts)})
    else:
        data("\n".join(_told(report, counts)))
    leave(Exit.PASS if report.whole else Exit.UNMEASURED)


def _loaded(config: Config, rollout: str, suite: str | None) -> LoadedSuite:
    from forkgate.config.policy import read_policies
    from forkgate.config.problems import did_you_mean

    suites = read_policies(config).suites[rollout]
    if suite is None and len(suites) == 1:
        return next(iter(suites.values()))
    if suite is None:
        have = f"its policy has {', '.join(suites)}" if suites else "its policy has none"
        leave(Exit.USAGE, f"--suite: missing, {have}")
    if suite not in suites:
        leave(Exit.USAGE, f"--suite: the policy has no suite {suite!r}, {did_you_mean(suite, suites)}")
    return suites[suite]


def _light(one: Comparison) -> Comparison:
    """What is counted: a whole suite's steps would not fit into memory."""
    import msgspec

    return msgspec.structs.replace(one, pairs=())


@contextlib.contextmanager
def _writer(out: Path | None) -> Iterator[Any]:
    if out is None:
        yield lambda _one: None
        return
    from forkgate.suites.alone import line_of

    with out.open("wb") as opened:
        yield lambda one: opened.write(line_of(one))


def _told(report: SuiteReport, counts: tuple[QuestionCount, ...]) -> list[str]:
    lines = [f"{'question':<12} {'arm':<10} {'n':>6} {'mean':>8} {'errors':>7}"]
    for one in counts:
        mean = "unknown" if one.mean is None else f"{one.mean:.4f}"
        line = f"{one.question:<12} {one.arm.value:<10} {one.n:>6} {mean:>8} {one.errors:>7}"
        lines.append(line + (f"  {one.first_error}" if one.first_error is not None else ""))
    return [*lines, "", report.summary]
