"""``forkgate environment``: capture what an engine runs in, show a record, compare two."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from forkgate.cli.exits import Exit
from forkgate.cli.options import Json
from forkgate.cli.output import data, data_json, leave, say

if TYPE_CHECKING:
    from engines.identity.environment_diff import Difference
    from engines.identity.record import Identity

app = typer.Typer(
    no_args_is_help=True, help="Who answered: GPU, driver, libraries, engine and settings, under one digest."
)

_SHOWN_CHARACTERS = 120


@app.command("capture", short_help="Write the environment record of an engine.")
def capture(
    pid: Annotated[
        int | None,
        typer.Option(
            "--pid", metavar="PID", help="The engine's process on this machine.", show_default=False, min=1
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            "--url", metavar="URL", help="The engine's HTTP address. Alone, it says nothing of this machine."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write the record here instead of standard output."),
    ] = None,
    image_digest: Annotated[
        str | None,
        typer.Option(
            "--image-digest",
            metavar="DIGEST",
            help="Of the engine's container image: sha256:... or name@sha256:...; else the engine's "
            "$FORKGATE_IMAGE_DIGEST.",
            show_default=False,
        ),
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option("--api-key-env", metavar="NAME", help="Variable that holds the engine's API key."),
    ] = None,
    torch: Annotated[
        bool, typer.Option("--torch", help="Import torch and ask it too; for this Python only, and slow.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Capture beside an engine (--pid, best with --url), from afar (--url alone), or of this Python.

    With -o, standard output gets a summary, as JSON with --json. What could not be known says why.

    Exit status: 0 captured; 2 PID or URL is none; 4 nobody answers there, or what answers is no record.
    """
    from engines.identity import collect
    from engines.identity.capture_command import document, key_of, write_whole
    from engines.identity.collect_process import NoProcess
    from engines.identity.trouble import ArtifactError, NoArtifact

    try:
        made = collect.capture(
            pid=pid, url=url, image_digest=image_digest, ask_torch=torch, key=key_of(api_key_env)
        )
    except (NoProcess, NoArtifact, ValueError) as error:
        leave(Exit.USAGE, str(error))
    except ArtifactError as error:
        leave(Exit.UNMEASURED, str(error))
    for note in made.about.get("notes", ()):
        say(note)
    text = document(made, one_line=as_json and out is None)
    if out is None:
        data(text)
        return
    try:
        write_whole(out, text)
    except OSError as error:
        leave(Exit.UNMEASURED, f"{out}: the record cannot be written: {error.strerror or error}")
    counts = _counts(made)
    if as_json:
        data_json({"record": str(out), "digest": made.digest, **counts})
    else:
        data(f"{made.digest}\n{_plain(out)}: {counts['known']} fields, {counts['unknown']} unknown")


@app.command("show", short_help="Print a record.")
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that `capture` wrote.")],
    as_json: Json = False,
) -> None:
    """Check a record's digest and print its fields, those most likely to move tokens first.

    Exit status: 0 shown; 2 it is no record, or was changed; 4 it cannot be read.
    """
    from engines.identity.environment import row_of
    from engines.identity.record import UnknownField

    record = _load(file)
    if as_json:
        data_json(record.to_json())
        return
    lines = [record.digest, *_about(record)]
    unknown = []
    for name in sorted(record.fields, key=lambda name: (row_of(name)[0], name)):
        value = record.fields[name]
        if isinstance(value, UnknownField):
            unknown.append(f"  {name}: {_plain(value.reason)}")
        else:
            lines.append(f"  {name:<34} {_value(value)}")
    lines += ["unknown:", *unknown] if unknown else []
    data("\n".join(lines))


@app.command("diff", short_help="What differs between two records, and why it may move tokens.")
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A file that `capture` wrote.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The same.")],
    as_json: Json = False,
) -> None:
    """Order the differences of two environments by how likely they move tokens, and say why each may.

    Exit status: 0 equal; 1 they differ; 2 A or B is no record; 3 nothing differs but what is unknown on a
    side; 4 a file cannot be read.
    """
    from engines.identity.environment_diff import compare

    left, right = _load(a), _load(b)
    found = compare(left, right)
    if as_json:
        data_json(found.to_json())
    else:
        lines = [f"A {left.digest}", f"B {right.digest}"]
        for one in found.differences:
            lines += _difference(one.moves.upper(), one)
        if found.unknown:
            lines.append("not compared, unknown on a side:")
        for one in found.unknown:
            lines += _difference("unknown", one)
        if found.unknown_in_both:
            lines.append(f"unknown on both sides: {', '.join(found.unknown_in_both)}")
        data("\n".join([*lines, *(["equal"] if found.equal else [])]))
    if found.differences:
        raise typer.Exit(Exit.FAIL)
    if found.unknown:
        raise typer.Exit(Exit.INCONCLUSIVE)


def _load(path: Path) -> Identity:
    from engines.identity.record import load
    from engines.identity.trouble import BadRecord, UnreadableFiles

    if not os.path.lexists(path):
        leave(
            Exit.USAGE,
            f"{_plain(path)}: no record is there: `forkgate environment capture -o FILE` writes one",
        )
    try:
        return load(path)
    except UnreadableFiles as error:
        leave(Exit.UNMEASURED if path.exists() else Exit.USAGE, str(error))
    except BadRecord as error:
        leave(Exit.USAGE, str(error))


def _counts(record: Identity) -> dict[str, int]:
    from engines.identity.record import UnknownField

    unknown = sum(isinstance(value, UnknownField) for value in record.fields.values())
    return {"known": len(record.fields) - unknown, "unknown": unknown}


def _about(record: Identity) -> list[str]:
    """What is told beside the digest, by whoever captured it; a record from elsewhere may lack any of it."""
    told = [_plain(f"captured {record.about['captured_at']}")] if "captured_at" in record.about else []
    notes = record.about.get("notes")
    return [*told, *(_plain(f"note: {one}") for one in notes if isinstance(notes, list))] if notes else told


def _difference(head: str, one: Difference) -> list[str]:
    return [
        f"{head:<8} {one.field}",
        f"         A {_value(one.a)}",
        f"         B {_value(one.b)}",
        f"         {one.why}",
    ]


def _value(value: Any) -> str:
    import json

    from engines.identity.environment_diff import NotSet
    from engines.identity.record import UnknownField

    if isinstance(value, UnknownField):
        return _plain(f"unknown: {value.reason}")
    if isinstance(value, NotSet):
        return "not set"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    text = _plain(text)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + " ..."


def _plain(text: Path | str) -> str:
    from engines.identity.trouble import shown

    return shown(text)
