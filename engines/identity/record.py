"""The environment record: flat names, JSON values, one digest. Standard library only.

The document is ``{"record": "environment/1", "digest": ..., "fields": {...}, "about": {...}}``. ``digest``
covers the canonical JSON of all of it but itself and ``about``, which holds what differs from one start of
the same environment to the next (the time, clocks, free memory) and where each field was read.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from engines.identity.canonical import CanonicalError, digest_of, parse
from engines.identity.trouble import BadRecord, UnreadableFiles, shown, unreadable

IDENTITY_HEADER = "x-forkgate-environment"
"""Response header in which an engine tells the digest of the environment that answers."""
RECORD = "environment/1"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")
_LARGEST_BYTES = 16 << 20
_PARTS = frozenset({"record", "digest", "fields", "about"})


@dataclasses.dataclass(frozen=True, slots=True)
class UnknownField:
    """A field of the record that could not be read here, and why. It is part of the digest all the same,
    so the reason holds nothing that differs between two starts: no PID, port, path or time."""

    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """An environment, as name → JSON value or :class:`UnknownField`.

    ``about`` is told along and never part of the digest.

    Raises:
        TypeError: from :attr:`digest`, when a value is not JSON.
        CanonicalError: from :attr:`digest`, when a value has no canonical form.
    """

    fields: Mapping[str, Any]
    about: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def digest(self) -> str:
        """``sha256:`` and 64 hex digits over the canonical JSON of the fields."""
        return digest_of({"record": RECORD, "fields": self._plain()})

    def to_json(self) -> dict[str, Any]:
        """The document; an unknown field reads ``{"unknown": reason}``."""
        return {
            "record": RECORD,
            "digest": self.digest,
            "fields": self._plain(),
            "about": dict(self.about),
        }

    def _plain(self) -> dict[str, Any]:
        return {
            name: {"unknown": value.reason} if isinstance(value, UnknownField) else value
            for name, value in sorted(self.fields.items())
        }


def load(path: str | pathlib.Path) -> Identity:
    """The record in a file.

    Raises:
        UnreadableFiles: the file cannot be read.
        BadRecord: it is no environment record, or its digest is not that of its content.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise UnreadableFiles(unreadable(path, error)) from None
    if len(text) > _LARGEST_BYTES:
        raise BadRecord(f"{shown(path)}: no environment record: larger than {_LARGEST_BYTES >> 20} MiB")
    try:
        return from_json(parse(text))
    except (CanonicalError, BadRecord) as error:
        raise BadRecord(f"{shown(path)}: {error}") from None


def from_json(document: Any) -> Identity:
    """The record that :meth:`Identity.to_json` wrote.

    Raises:
        BadRecord: another kind or version, a field of another form, or a digest that does not fit.
    """
    if not isinstance(document, Mapping) or "record" not in document:
        raise BadRecord("no environment record: `forkgate environment capture` writes one")
    if document["record"] != RECORD:
        raise BadRecord(f'record: {document["record"]!r} is not "{RECORD}", the one kind that is read here')
    more = sorted(set(document) - _PARTS)
    if more:
        raise BadRecord(f"{more[0]}: {RECORD} has no such part: it was made by another version")
    fields = document.get("fields")
    if not isinstance(fields, Mapping):
        raise BadRecord("fields: must be an object")
    about = document.get("about", {})
    if not isinstance(about, Mapping):
        raise BadRecord("about: must be an object")
    identity = Identity(fields={name: _field(name, fields[name]) for name in fields}, about=dict(about))
    try:
        made = identity.digest
    except CanonicalError as error:
        raise BadRecord(f"fields: {error}") from None
    if document.get("digest") != made:
        raise BadRecord(
            f"digest: the record says {document.get('digest')} and its fields make {made}: it was changed "
            "after it was made; capture the environment again, or take the record from where it came"
        )
    return identity


def _field(name: str, value: Any) -> Any:
    if _NAME.fullmatch(name) is None:
        raise BadRecord(f"fields: {shown(name[:80])} is no name of a field")
    if not isinstance(value, Mapping) or "unknown" not in value:
        return value
    reason = value["unknown"]
    if len(value) != 1 or not isinstance(reason, str) or not reason:
        raise BadRecord(f'fields.{name}: an unknown field is {{"unknown": reason}} and nothing else')
    return UnknownField(reason)
