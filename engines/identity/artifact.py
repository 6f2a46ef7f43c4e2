"""The artifact record: what exactly was served, as SHA-256 sums under one digest.

::

    find_source ─▶ scan ─▶ hash_files ─▶ headers, templates ─▶ whole? ─▶ ArtifactRecord ─▶ JSON
    (artifact_files)       (hashing)     (artifact_headers)   (artifact_whole)

The document is ``{"record": "artifact/1", "digest": ..., "model_digest": ..., "image": ..., "files": [...],
"templates": [...], "about": {...}}``; docs/artifact-record.md describes each field. ``digest`` covers the
canonical JSON of all of it but itself and ``about``, which says where the files lay and what was left out.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from engines.identity import artifact_files, artifact_whole
from engines.identity.artifact_files import Found, Scan
from engines.identity.artifact_headers import header_facts
from engines.identity.artifact_kinds import Role
from engines.identity.canonical import digest_of
from engines.identity.chat_template import Template, gather, may_hold_templates, templates_in
from engines.identity.hash_cache import FileKey, HashCache
from engines.identity.hashing import Hashed, NotHashed, Progress, hash_files
from engines.identity.image import image
from engines.identity.trouble import DamagedArtifact, NoArtifact, UnreadableFiles, changed, shown, unreadable

RECORD = "artifact/1"
_BLOB_NAME = re.compile(r"[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ArtifactFile:
    """One file: its path under the artifact's root, what it is for, and what it holds."""

    path: str
    """As the operating system gives it (``os.fsdecode``); in JSON see :func:`path_json`."""
    role: Role
    sha256: str
    bytes: int
    reason: str | None = None
    header: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {**path_json(self.path), "role": self.role.value}
        document |= {"sha256": self.sha256, "bytes": self.bytes}
        if self.reason is not None:
            document["reason"] = self.reason
        if self.header is not None:
            document["header"] = dict(self.header)
        return document


@dataclasses.dataclass(frozen=True, kw_only=True)
class ArtifactRecord:
    """A record. :func:`record_artifact` makes one, :func:`engines.identity.artifact_json.load` reads one."""

    files: tuple[ArtifactFile, ...]
    templates: tuple[Template, ...]
    image: Mapping[str, str]
    about: Mapping[str, Any]

    @functools.cached_property
    def digest(self) -> str:
        """One digest over everything but ``about``."""
        return digest_of(self.body())

    @functools.cached_property
    def model_digest(self) -> str:
        """Of the files alone, by path and content: the same model under any runtime image."""
        return digest_of([{**path_json(file.path), "sha256": file.sha256} for file in self.files])

    def to_json(self) -> dict[str, Any]:
        """The document, its digest near the top."""
        body = self.body()
        return {"record": body.pop("record"), "digest": self.digest, **body, "about": dict(self.about)}

    def body(self) -> dict[str, Any]:
        """What the digest covers."""
        return {
            "record": RECORD,
            "model_digest": self.model_digest,
            "image": dict(self.image),
            "files": [file.to_json() for file in self.files],
            "templates": [
                {
                    "name": one.name,
                    "sha256": one.sha256,
                    "in": [path_json(path)["path"] for path in one.files],
                }
                for one in self.templates
            ],
        }


def path_json(path: str) -> dict[str, str]:
    """A path for JSON, which knows only Unicode: other bytes read ``\\xff``, and the whole path is in hex."""
    raw = os.fsencode(path)
    try:
        return {"path": raw.decode("utf-8")}
    except UnicodeDecodeError:
        return {"path": raw.decode("utf-8", "backslashreplace"), "path_hex": raw.hex()}


def record_artifact(
    path: str | os.PathLike[str],
    *,
    revision: str | None = None,
    image_digest: str | None = None,
    cache: HashCache | None = None,
    progress: Callable[[Progress], None] | None = None,
    threads: int | None = None,
    leave_out: frozenset[tuple[int, int]] = frozenset(),
) -> ArtifactRecord:
    """Hash and describe the artifact at ``path``: a folder, one GGUF file, or a model in a hub cache.

    Args:
        revision: of a hub cache with several.
        image_digest: of the runtime image; see :func:`engines.identity.image.image`.
        cache, progress, threads: see :func:`engines.identity.hashing.hash_files`.
        leave_out: device and inode of files that are no part of it (a record kept beside the model).

    Raises:
        NoArtifact: nothing to record is there, or several things.
        UnreadableFiles: some file cannot be read, or changed meanwhile. All of them are named.
        DamagedArtifact: truncated or empty weights, shards that are not there. All of them are named.
    """
    runtime = image(image_digest)
    found = artifact_files.scan(artifact_files.find_source(os.fspath(path), revision), leave_out)
    if found.damage:
        raise DamagedArtifact(found.damage)
    if all(one.role is Role.OTHER for one in found.files):
        raise NoArtifact(found.nothing())
    outcomes = hash_files((one.place for one in found.files), cache=cache, progress=progress, threads=threads)
    unread = [outcome.problem for outcome in outcomes.values() if isinstance(outcome, NotHashed)]
    if unread:
        raise UnreadableFiles(unread)
    reading = _Reading(found, {place: one for place, one in outcomes.items() if isinstance(one, Hashed)})
    return reading.record(runtime)


class _Reading:
    """The second look, at headers and templates, of files whose sums are known."""

    def __init__(self, found: Scan, hashed: Mapping[str, Hashed]) -> None:
        self._found = found
        self._hashed = hashed
        self._unreadable: list[str] = []
        self._damage: list[str] = []
        self._templates: list[tuple[str, Mapping[str, str]]] = []
        self._tensors: dict[str, frozenset[str]] = {}
        self._notes: list[str] = []

    def record(self, runtime: Mapping[str, str]) -> ArtifactRecord:
        files = tuple(self._file(one) for one in self._found.files)
        if self._unreadable:
            raise UnreadableFiles(self._unreadable)
        self._damage += artifact_whole.missing_parts(self._found, self._tensors)
        if self._damage:
            raise DamagedArtifact(self._damage)
        templates = gather(self._templates)
        names = [one.name for one in templates]
        for name in sorted({name for name in names if names.count(name) > 1}):
            places = "; ".join(", ".join(map(shown, one.files)) for one in templates if one.name == name)
            self._notes.append(
                f"the chat template {name!r} differs between files ({places}): which one is taken depends on "
                "the engine"
            )
        return ArtifactRecord(files=files, templates=templates, image=runtime, about=self._about())

    def _about(self) -> dict[str, Any]:
        source = self._found.source
        told = {"layout": source.layout, "repo": source.repo, "revision": source.revision}
        return {
            "source": {name: value for name, value in told.items() if value is not None},
            "ignored": [{**path_json(one.path), "reason": one.reason} for one in self._found.ignored],
            "notes": self._notes,
        }

    def _file(self, one: Found) -> ArtifactFile:
        hashed = self._hashed[one.place]
        self._check_blob(one, hashed)
        facts: dict[str, Any] = {}
        try:
            facts = header_facts(one.place, one.path, one.role) or {}
            if may_hold_templates(one.path):
                content = pathlib.Path(one.place).read_bytes()
                facts["templates"] = templates_in(one.path, content)
            if FileKey.of(os.stat(one.place)) != hashed.key:
                self._unreadable.append(changed(one.place, "it was written after it was hashed"))
        except OSError as error:
            self._unreadable.append(unreadable(one.place, error))
        except ValueError as error:
            self._damage.append(f"{shown(one.place)}: {error}: download it again, or mend it")
        templates = facts.pop("templates", None)
        if templates:
            self._templates.append((one.path, templates))
        names = facts.pop("names", None)
        if names is not None:
            self._tensors[one.path] = names
        role = one.role
        if role is Role.WEIGHT and facts.get("type") == "adapter":  # a GGUF's own word
            role = Role.ADAPTER
        return ArtifactFile(
            path=one.path,
            role=role,
            sha256=hashed.sha256,
            bytes=hashed.bytes,
            reason=one.reason,
            header=facts or None,
        )

    def _check_blob(self, one: Found, hashed: Hashed) -> None:
        # The hub names a large file's blob by its SHA-256, so a rotten one can be told.
        if self._found.source.layout != "hub_cache":
            return
        blob = os.path.basename(os.path.realpath(one.place))
        if _BLOB_NAME.fullmatch(blob) and blob != hashed.sha256:
            self._damage.append(
                f"{shown(one.place)}: its blob is named {blob} and holds {hashed.sha256}: "
                "remove the blob and download it again"
            )
