"""``forkgate settings``: launch settings with which an engine repeats itself, and whether they are met."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forkgate.cli.exits import Exit
from forkgate.cli.options import Json
from forkgate.cli.output import data, data_json, leave, say

if TYPE_CHECKING:
    from engines.settings.check import Finding, Seen
    from engines.settings.values import Sheet


def settings(
    engine: Annotated[
        str, typer.Argument(metavar="ENGINE", help="vllm, sglang, tensorrt-llm, llama.cpp or reference.")
    ],
    level: Annotated[
        str, typer.Option("--level", metavar="LEVEL", help="artifact, environment, token or statistical.")
    ] = "token",
    version: Annotated[
        str | None,
        typer.Option("--version", metavar="VERSION", help="Of the engine; the one looked up when absent."),
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", metavar="N", help="Of the engine and of PYTHONHASHSEED.")
    ] = 0,
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="DTYPE", help="float32, float16 or bfloat16.")
    ] = "bfloat16",
    batch: Annotated[
        str,
        typer.Option(
            "--batch", metavar="BATCH", help="one: a request at a time; invariant: kernels made for it."
        ),
    ] = "one",
    threads: Annotated[
        int, typer.Option("--threads", metavar="N", help="Of engines that compute on a CPU.")
    ] = 1,
    shell: Annotated[bool, typer.Option("--shell", help="A shell script that starts the engine.")] = False,
    check: Annotated[
        str | None, typer.Option("--check", metavar="URL", help="Compare a running engine at this address.")
    ] = None,
    pid: Annotated[
        int | None,
        typer.Option("--pid", metavar="PID", help="Compare the engine of this process; best with --check."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the launch flags and environment with which ENGINE repeats itself, each with its reason and cost.

    With --check or --pid, compare a running engine with them instead.

    Exit status: 0 written, or all met; 1 one is not met; 2 usage; 3 this version was not looked up, or one
    cannot be known; 4 the running engine does not answer.
    """
    from engines.settings import text
    from engines.settings.choose import NotVerified, for_level, sheet_of
    from engines.settings.values import Batch, Choice, Level

    if dtype not in ("float32", "float16", "bfloat16"):
        leave(Exit.USAGE, f"--dtype: {dtype!r} is not one of float32, float16, bfloat16")
    try:
        kind = Level(level)
    except ValueError:
        leave(Exit.USAGE, f"--level: {level!r} is not one of {', '.join(Level)}")
    try:
        kept = Batch(batch)
    except ValueError:
        leave(Exit.USAGE, f"--batch: {batch!r} is not one of {', '.join(Batch)}")
    running = check is not None or pid is not None
    if shell and (as_json or running):
        leave(Exit.USAGE, "--shell: not together with --json, --check or --pid")
    try:
        choice = Choice(seed=seed, dtype=dtype, batch=kept, threads=threads)
        sheet = sheet_of(engine, choice, version)
    except NotVerified as error:
        leave(Exit.INCONCLUSIVE, str(error))
    except ValueError as error:
        leave(Exit.USAGE, str(error))
    rows = for_level(sheet, kind)
    if not running:
        if as_json:
            data_json(text.to_json(sheet, rows, kind))
        else:
            data(text.script(sheet, rows, kind) if shell else text.table(sheet, rows, kind))
        return
    from engines.settings.check import check as compare

    # What requests must carry is their senders' to keep, and no state of the engine.
    carried = [row.request for row in rows if row.request is not None]
    found = compare([row for row in rows if row.request is None], _seen(sheet, check, pid, version))
    if as_json:
        data_json(_findings_json(sheet, kind.value, found, carried))
    else:
        data("\n".join(f"{one.state.upper():<16} {one.setting}: {one.why}" for one in found))
        for request in carried:
            say(f"not looked at: each request must carry {request}")
    _leave(found)


def _seen(sheet: Sheet, url: str | None, pid: int | None, version: str | None) -> Seen:
    """What the process and the endpoints tell; the engine must be the one that was named."""
    from engines.identity.collect import capture
    from engines.identity.collect_flags import engine_of
    from engines.identity.collect_process import process
    from engines.identity.record import UnknownField
    from engines.identity.trouble import ArtifactError
    from engines.settings.check import Seen

    far = UnknownField("only the endpoint was asked: give --pid beside the engine")
    seen = Seen(arguments=far, variables=far)
    fields: Mapping[str, Any] = {}
    try:
        if url is not None:
            fields = capture(url=url).fields
        if pid is not None:
            told = process(pid)
            seen = Seen(arguments=told.arguments, variables=told.variables)
    except ArtifactError as error:
        leave(Exit.UNMEASURED, str(error))
    except ValueError as error:
        leave(Exit.USAGE, f"--check: {error}")
    if not isinstance(seen.arguments, UnknownField):
        started = engine_of(seen.arguments)
        if started is None:
            leave(Exit.USAGE, f"--pid: the command line of process {pid} starts no engine that is known here")
        _same_engine(sheet, started, f"--pid: process {pid}")
    name, running = fields.get("engine.name"), fields.get("engine.version")
    _same_engine(sheet, name if isinstance(name, str) else None, f"--check: {url}")
    if version is None and isinstance(running, str):
        _same_version(sheet, running)
    return Seen(arguments=seen.arguments, variables=seen.variables, fields=fields)


def _same_engine(sheet: Sheet, name: str | None, where: str) -> None:
    if name is not None and name.removeprefix("forkgate-") != sheet.engine:
        leave(Exit.USAGE, f"{where} is {name}, and ENGINE is {sheet.engine}")


def _same_version(sheet: Sheet, running: str) -> None:
    from engines.settings.choose import numbers_of

    numbers, since, before = (numbers_of(one) for one in (running, sheet.since, sheet.before))
    if numbers is None or since is None or before is None or not since <= numbers < before:
        say(
            f"the engine says that it is {sheet.engine} {running}, and these rows were looked up for "
            f"{sheet.since} up to but not {sheet.before}: a flag may mean something else there"
        )
        leave(Exit.INCONCLUSIVE)


def _findings_json(sheet: Sheet, level: str, found: list[Finding], carried: list[str]) -> dict[str, Any]:
    return {
        "engine": sheet.engine,
        "level": level,
        "met": sum(one.state == "met" for one in found),
        "not_met": sum(one.state == "not met" for one in found),
        "unknown": sum(one.state == "cannot be known" for one in found),
        "settings": [
            {"setting": one.setting, "name": one.name, "state": one.state.value, "why": one.why}
            for one in found
        ],
        "requests": carried,
    }


def _leave(found: list[Finding]) -> None:
    if any(one.state == "not met" for one in found):
        raise typer.Exit(Exit.FAIL)
    if any(one.state == "cannot be known" for one in found):
        raise typer.Exit(Exit.INCONCLUSIVE)
