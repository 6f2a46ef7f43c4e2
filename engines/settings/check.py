"""Was a running engine started with its settings? Met, not met, or cannot be known.

Two witnesses: the process (its command line and variables, of ``/proc``) and its endpoints, as the
environment record reads them. The command line goes first: it says what was asked for. A flag that was
not given is *not met*, even where the default may be the same: a default changes with version, device
and memory.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engines.identity.record import UnknownField
from engines.settings.values import Setting


class State(enum.StrEnum):
    MET = "met"
    NOT_MET = "not met"
    UNKNOWN = "cannot be known"


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One row against the running engine."""

    setting: str
    name: str
    state: State
    why: str


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What the witnesses told.

    ``arguments``: the engine's command line, or why it was not seen; ``variables``: the same of its
    variables; ``fields``: the environment record's fields, empty when no endpoint was asked.
    """

    arguments: tuple[str, ...] | UnknownField
    variables: Mapping[str, str] | UnknownField
    fields: Mapping[str, Any] = {}


def check(rows: Sequence[Setting], seen: Seen) -> list[Finding]:
    """One finding a row, in order."""
    return [_check(row, seen) for row in rows]


def _check(row: Setting, seen: Seen) -> Finding:
    if row.request is not None:
        return _finding(row, State.UNKNOWN, "it is in the requests, not in the engine: look at what is sent")
    by_process = _by_process(row, seen)
    by_field = _by_field(row, seen.fields)
    if by_process is not None and by_process[0] is not State.UNKNOWN:
        # What was asked for may still be overruled as the engine starts, and then its endpoint says so.
        if by_process[0] is State.MET and by_field is not None and by_field[0] is State.NOT_MET:
            return _finding(row, *by_field)
        return _finding(row, *by_process)
    if by_field is not None:
        return _finding(row, *by_field)
    if by_process is not None:
        return _finding(row, *by_process)
    if row.key is not None:
        return _finding(row, State.UNKNOWN, "it stands in a file of the engine's that no endpoint tells")
    reason = seen.variables if row.variable is not None else seen.arguments
    assert isinstance(reason, UnknownField)
    return _finding(row, State.UNKNOWN, reason.reason)


def _by_process(row: Setting, seen: Seen) -> tuple[State, str] | None:
    if row.variable is not None:
        if isinstance(seen.variables, UnknownField):
            return None
        value = seen.variables.get(row.variable)
        if value == row.value:
            return State.MET, "set in its environment"
        return State.NOT_MET, "not set in its environment" if value is None else f"set to {_cut(value)}"
    if isinstance(seen.arguments, UnknownField) or row.key is not None:
        return None
    given = _given(seen.arguments)
    if row.absent is not None:
        named = [one for one in (row.absent, *row.aliases) if _plain(one) in given]
        return (State.NOT_MET, f"{named[0]} is given") if named else (State.MET, "it is not given")
    assert row.flag is not None
    against = [one for one in row.contrary if _plain(one) in given]
    if against:
        return State.NOT_MET, f"{against[0]} is given"
    told = [given[_plain(one)] for one in (row.flag, *row.aliases) if _plain(one) in given]
    if not told:
        return State.NOT_MET, "not given: the engine's default stands"
    value = told[-1]
    if row.value is None or (value is not None and _same(value, row.value)):
        return State.MET, "given"
    return State.NOT_MET, f"given as {_cut(value or 'a switch')}"


def _by_field(row: Setting, fields: Mapping[str, Any]) -> tuple[State, str] | None:
    if row.field is None or row.field not in fields:
        return None
    value = fields[row.field]
    if isinstance(value, UnknownField):
        return State.UNKNOWN, value.reason
    wanted = row.value if row.field_value is None else row.field_value
    if row.field == "precision.kv_cache_dtype" and wanted == "auto":
        # The engine tells what auto became.
        wanted = str(fields.get("precision.dtype")).removeprefix("torch.") if value != "auto" else "auto"
    if row.field == "sampler.defaults":
        return State.UNKNOWN, "its endpoints tell the defaults, not where they come from"
    if _same(value, wanted):
        return State.MET, f"its endpoints tell {row.field} {_cut(value)}"
    return State.NOT_MET, f"its endpoints tell {row.field} {_cut(value)}"


def _given(arguments: tuple[str, ...]) -> dict[str, str | None]:
    """Flags of a command line; of one given twice the last counts, as in the engines' parsers."""
    given: dict[str, str | None] = {}
    for place, word in enumerate(arguments):
        if not word.startswith("-") or word.lstrip("-")[:1].isdigit():
            continue
        name, separator, value = word.partition("=")
        following = arguments[place + 1] if place + 1 < len(arguments) else None
        if separator:
            given[_plain(name)] = value
        elif following is not None and (not following.startswith("-") or following[1:2].isdigit()):
            given[_plain(name)] = following
        else:
            given[_plain(name)] = None
    return given


def _plain(flag: str) -> str:
    head, dot, rest = flag.partition(".")
    dashes = len(head) - len(head.lstrip("-"))
    return "-" * dashes + head.lstrip("-").replace("_", "-") + dot + rest


def _same(told: Any, wanted: Any) -> bool:
    if isinstance(told, bool) or isinstance(wanted, bool):
        return str(told).lower() == str(wanted).lower()
    return bool(told == wanted) or str(told).removeprefix("torch.") == str(wanted)


def _cut(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _finding(row: Setting, state: State, why: str) -> Finding:
    return Finding(setting=row.shown(), name=row.name, state=state, why=why)
