"""Help names what is wanted of an argument, in the words of its command: never the type that it becomes.

Options say it by their ``metavar``; for arguments typer has no such switch, so the tree is gone through once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from typer.core import TyperArgument, TyperGroup


class PlainHelp(TyperGroup):
    """The root of the tree of commands."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for command in _below(self):
            for one in command.params:
                if isinstance(one, TyperArgument):
                    _name_plainly(one)


def _below(command: Any) -> Iterator[Any]:
    yield command
    for one in getattr(command, "commands", {}).values():
        yield from _below(one)


def _name_plainly(argument: Any) -> None:
    """``NAME``, ``[FILE]``, ``ROOT...``, without a type beside it."""
    if argument.metavar is None:
        argument.metavar = argument.name.upper()
    many = "..." if argument.nargs != 1 and not argument.metavar.endswith("...") else ""
    named = f"{argument.metavar}{many}"
    argument.get_usage_pieces = _always([named if argument.required else f"[{named}]"])
    argument.display_type_rich = _always(None)


def _always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value
