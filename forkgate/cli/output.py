"""Where words go: data to standard output, everything else to standard error. Plain text, no colours."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

from forkgate.brief import brief
from forkgate.cli.exits import Exit


def data(text: str) -> None:
    """What was asked for, as text."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")


def data_json(value: Any) -> None:
    """What was asked for, as one line of JSON."""
    import orjson

    sys.stdout.buffer.write(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))
    sys.stdout.flush()


def say(text: str) -> None:
    """A word to the person in front of the screen."""
    sys.stderr.write(text if text.endswith("\n") else text + "\n")


def complain(text: str) -> None:
    """What is wrong, to the same person; what was typed is repeated in short."""
    say(brief(text))


def leave(status: Exit, text: str = "") -> NoReturn:
    """End the command, and say why."""
    import typer

    if text:
        complain(text)
    raise typer.Exit(status)
