"""Reading an artifact record back: whole, of a known version, and not changed since it was made."""

from __future__ import annotations

import os
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from engines.identity.artifact import RECORD, ArtifactFile, ArtifactRecord
from engines.identity.artifact_kinds import Role
from engines.identity.canonical import CanonicalError, digest_of, parse
from engines.identity.chat_template import Template
from engines.identity.trouble import BadRecord, UnreadableFiles, shown, unreadable

_HEX = re.compile(r"[0-9a-f]{64}")
_LARGEST_BYTES = 256 << 20
_OUTSIDE_DIGEST = ("digest", "about")


def load(path: pathlib.Path) -> ArtifactRecord:
    """The record in a file.

    Raises:
        UnreadableFiles: the file cannot be read.
        BadRecord: it is no artifact record, or its digest is not that of its content.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise UnreadableFiles(unreadable(path, error)) from None
    if len(text) > _LARGEST_BYTES:
        raise BadRecord(f"{shown(path)}: no artifact record: larger than {_LARGEST_BYTES >> 20} MiB")
    try:
        return from_json(parse(text))
    except (CanonicalError, BadRecord) as error:
        raise BadRecord(f"{shown(path)}: {error}") from None


def from_json(document: Any) -> ArtifactRecord:
    """The record that :meth:`ArtifactRecord.to_json` wrote.

    Raises:
        BadRecord: another kind or version, a field of another form, or a digest that does not fit.
    """
    if not isinstance(document, Mapping) or "record" not in document:
        raise BadRecord("no artifact record: `forkgate artifact record` writes one")
    if document["record"] != RECORD:
        raise BadRecord(f'record: {document["record"]!r} is not "{RECORD}", the one kind that is read here')
    told = document.get("digest")
    body = {name: value for name, value in document.items() if name not in _OUTSIDE_DIGEST}
    made = digest_of(body)
    if told != made:
        raise BadRecord(
            f"digest: the record says {told} and its content makes {made}: it was changed after it was made; "
            "record the artifact again, or take the record from where it came"
        )
    record = ArtifactRecord(
        files=tuple(_file(one, f"files[{n}]") for n, one in enumerate(_list(document, "files"))),
        templates=tuple(
            _template(one, f"templates[{n}]") for n, one in enumerate(_list(document, "templates"))
        ),
        image=_image(document.get("image")),
        about=_about(document.get("about", {})),
    )
    paths = [file.path for file in record.files]
    if len(set(paths)) != len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise BadRecord(f"files: {shown(twice)} stands twice")
    if record.body() != body:  # the digest fits, so whoever wrote it wrote fields that are not known here
        raise BadRecord(f"it has fields that {RECORD} does not have: it was made by another version")
    return record


def _list(document: Mapping[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    if not isinstance(value, list):
        raise BadRecord(f"{name}: must be a list")
    return value


def _file(value: Any, place: str) -> ArtifactFile:
    path = _path(value, place)
    role = _text(value, "role", place)
    if role not in set(Role):
        raise BadRecord(f"{place}.role: {role!r} is not one of {', '.join(Role)}")
    size = value.get("bytes")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise BadRecord(f"{place}.bytes: {size!r} is no count")
    header = value.get("header")
    if header is not None and not isinstance(header, Mapping):
        raise BadRecord(f"{place}.header: must be an object")
    return ArtifactFile(
        path=path,
        role=Role(role),
        sha256=_sha256(value, place),
        bytes=size,
        reason=_text(value, "reason", place) if "reason" in value else None,
        header=header,
    )


def _path(value: Any, place: str) -> str:
    text = _text(value, "path", place)
    if "path_hex" in value:
        try:
            text = os.fsdecode(bytes.fromhex(_text(value, "path_hex", place)))
        except ValueError:
            raise BadRecord(f"{place}.path_hex: not hex") from None
    if not text or text.startswith("/") or "\0" in text or ".." in text.split("/"):
        raise BadRecord(f"{place}.path: {text!r} is no path under the artifact's folder")
    return text


def _template(value: Any, place: str) -> Template:
    name = _text(value, "name", place)
    files = value.get("in")
    if not isinstance(files, list) or not all(isinstance(one, str) for one in files):
        raise BadRecord(f"{place}.in: must be a list of paths")
    return Template(name=name, sha256=_sha256(value, place), files=tuple(files))


def _sha256(value: Mapping[str, Any], place: str) -> str:
    text = _text(value, "sha256", place)
    if _HEX.fullmatch(text) is None:
        raise BadRecord(f"{place}.sha256: {text!r} is not 64 lower-case hex digits")
    return text


def _text(value: Any, name: str, place: str) -> str:
    text = value.get(name) if isinstance(value, Mapping) else None
    if not isinstance(text, str):
        raise BadRecord(f"{place}.{name}: must be a text")
    return text


def _image(value: Any) -> Mapping[str, str]:
    known = isinstance(value, Mapping) and len(value) == 1 and set(value) <= {"digest", "id", "unknown"}
    if not known or not all(isinstance(one, str) for one in value.values()):
        raise BadRecord('image: must be {"digest": ...}, {"id": ...} or {"unknown": reason}')
    return dict(value)


def _about(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadRecord("about: must be an object")
    return dict(value)
