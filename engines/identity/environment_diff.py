"""Two environment records side by side: what differs, most likely to move tokens first, and why it may."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engines.identity.canonical import digest_of
from engines.identity.environment import MOVES, row_of, unseen
from engines.identity.record import Identity, UnknownField


class NotSet:
    """The side of a difference whose group was looked at, and which is not in it."""


NOT_SET = NotSet()
_MOVES = {label: place for place, label in enumerate(MOVES)}
_PACKAGES = "python.packages_sha256"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One field that differs. A side is a JSON value, :data:`NOT_SET`, or unknown with its reason."""

    field: str
    moves: str
    a: Any
    b: Any
    why: str

    @property
    def unknown(self) -> bool:
        """Whether a side is unknown: the field was not compared, and may be equal."""
        return isinstance(self.a, UnknownField) or isinstance(self.b, UnknownField)

    def to_json(self) -> dict[str, Any]:
        return {
            "field": self.field,
            "moves_tokens": self.moves,
            "a": _plain(self.a),
            "b": _plain(self.b),
            "why": self.why,
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Everything found between two records."""

    a: Identity
    b: Identity
    differences: tuple[Difference, ...]
    unknown: tuple[Difference, ...]
    """Known on one side only, or unknown on both for different reasons."""
    unknown_in_both: tuple[str, ...]
    """Unknown on both sides for one reason: equal as far as the records go, and not compared."""

    @property
    def equal(self) -> bool:
        return not self.differences and not self.unknown

    def to_json(self) -> dict[str, Any]:
        return {
            "a": self.a.digest,
            "b": self.b.digest,
            "equal": self.equal,
            "differences": [one.to_json() for one in self.differences],
            "unknown": [one.to_json() for one in self.unknown],
            "unknown_in_both": list(self.unknown_in_both),
        }


def compare(a: Identity, b: Identity) -> Comparison:
    """Compare two records; a field that is absent where its group was looked at counts as not set."""
    found: list[tuple[int, Difference]] = []
    both: list[str] = []
    for name in a.fields.keys() | b.fields.keys():
        left, right = _side(a, name), _side(b, name)
        if _same(left, right):
            if isinstance(left, UnknownField):
                both.append(name)
            continue
        if name == _PACKAGES:
            left, right = _packages(a, b) or (left, right)
        place, row = row_of(name)
        found.append((place, Difference(field=name, moves=row.moves, a=left, b=right, why=row.why)))
    # The label leads, the table's order breaks ties: "likely" rows stand together wherever their group is.
    found.sort(key=lambda pair: (_MOVES[pair[1].moves], pair[0], pair[1].field))
    ordered = [one for _, one in found]
    return Comparison(
        a=a,
        b=b,
        differences=tuple(one for one in ordered if not one.unknown),
        unknown=tuple(one for one in ordered if one.unknown),
        unknown_in_both=tuple(sorted(both, key=lambda name: (row_of(name)[0], name))),
    )


def _packages(a: Identity, b: Identity) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The packages that differ, where both records tell them beside the digest, and tell the truth."""
    told = []
    for record in (a, b):
        listed = record.about.get("packages")
        if not isinstance(listed, Mapping) or digest_of(listed) != f"sha256:{record.fields.get(_PACKAGES)}":
            return None
        told.append(listed)
    names = sorted(name for name in told[0].keys() | told[1].keys() if told[0].get(name) != told[1].get(name))
    left, right = ({name: one[name] for name in names if name in one} for one in told)
    return left, right


def _side(record: Identity, name: str) -> Any:
    if name in record.fields:
        return record.fields[name]
    reason = unseen(record.fields, name)
    return NOT_SET if reason is None else reason


def _same(a: Any, b: Any) -> bool:
    # To Python 1 == True and 1 == 1.0; to JSON only the second two are one value.
    return bool(_typed(a) == _typed(b))


def _typed(value: Any) -> Any:
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, (list, tuple)):
        return ("list", [_typed(one) for one in value])
    if isinstance(value, dict):
        return ("dict", {name: _typed(one) for name, one in value.items()})
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, NotSet):
        return {"not_set": True}
    return {"unknown": value.reason} if isinstance(value, UnknownField) else value
