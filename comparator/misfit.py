"""Where a value does not fit its struct, and how: msgspec's message taken apart, to be said anew."""

from __future__ import annotations

import re

import msgspec

_MISSING = re.compile(r"Object missing required field `(\w+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")


class Misfit(msgspec.Struct, frozen=True, kw_only=True):
    """msgspec's "Expected `int`, got `str` - at `$.a.b`"."""

    path: str
    """``a.b`` or ``[0].a``; empty for the value itself."""
    text: str
    missing: str | None
    """The field that ``path`` lacks."""
    unknown: str | None
    """The field of ``path`` that no struct has."""

    @property
    def lowered(self) -> str:
        """The text as the second half of a sentence."""
        return f"{self.text[0].lower()}{self.text[1:]}"

    def field(self, name: str) -> str:
        """The place of a field of ``path``."""
        return f"{self.path}.{name}" if self.path else name


def misfit_of(error: msgspec.ValidationError) -> Misfit:
    """What ``error`` says; msgspec tells of the first misfit alone."""
    text, _, path = str(error).partition(" - at `$")
    missing, unknown = _MISSING.match(text), _UNKNOWN.match(text)
    return Misfit(
        path=path.rstrip("`").removeprefix("."),
        text=text,
        missing=None if missing is None else missing[1],
        unknown=None if unknown is None else unknown[1],
    )
