"""Whether a folder still is what a record says: what is missing, changed, moved, extra."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from engines.identity import artifact_files
from engines.identity.artifact import ArtifactFile, ArtifactRecord, path_json
from engines.identity.artifact_files import Found
from engines.identity.hash_cache import HashCache
from engines.identity.hashing import Hashed, NotHashed, Progress, hash_files
from engines.identity.image import image
from engines.identity.trouble import UnreadableFiles


@dataclasses.dataclass(frozen=True, slots=True)
class Changed:
    """A file of the recorded name with other content. ``sha256`` is None where the size told enough."""

    file: ArtifactFile
    bytes: int
    sha256: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Moved:
    """A recorded content that lies under another name now. An engine looks for the old one."""

    file: ArtifactFile
    path: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a record and a folder have in common and what not."""

    equal: tuple[ArtifactFile, ...]
    missing: tuple[ArtifactFile, ...]
    changed: tuple[Changed, ...]
    moved: tuple[Moved, ...]
    extra: tuple[str, ...]
    image: str
    """``equal``, ``differs``, ``unknown here`` (the record has one) or ``not recorded``."""
    damage: tuple[str, ...]
    """Unfinished downloads and the like, in words; no difference by themselves."""

    @property
    def files_equal(self) -> bool:
        return not (self.missing or self.changed or self.moved or self.extra)

    def to_json(self) -> dict[str, Any]:
        return {
            "files_equal": self.files_equal,
            "image": self.image,
            "equal": len(self.equal),
            "missing": [one.to_json() for one in self.missing],
            "changed": [
                {**one.file.to_json(), "bytes_now": one.bytes, "sha256_now": one.sha256}
                for one in self.changed
            ],
            "moved": [{**one.file.to_json(), "now": path_json(one.path)} for one in self.moved],
            "extra": [path_json(path) for path in self.extra],
            "notes": list(self.damage),
        }


def verify_artifact(
    record: ArtifactRecord,
    path: str | os.PathLike[str],
    *,
    revision: str | None = None,
    image_digest: str | None = None,
    cache: HashCache | None = None,
    progress: Callable[[Progress], None] | None = None,
    threads: int | None = None,
    leave_out: frozenset[tuple[int, int]] = frozenset(),
) -> Verification:
    """Compare by path and content; a file of another size is not even read.

    Arguments as :func:`engines.identity.artifact.record_artifact`; raises
    :class:`~engines.identity.trouble.NoArtifact` where ``path`` names nothing that can be compared, and
    :class:`~engines.identity.trouble.UnreadableFiles` where a file cannot be read or did not hold still.
    """
    seen_image = _image_answer(record.image, image(image_digest))
    found = artifact_files.scan(artifact_files.find_source(os.fspath(path), revision), leave_out)
    here = {one.path: one for one in found.files}
    recorded = {file.path: file for file in record.files}
    sizes = {file.bytes for file in record.files if file.path not in here}
    # What has the recorded name and size must be read; and what might be a recorded content that has moved.
    wanted = [
        one.place
        for one in found.files
        if (one.path in recorded and one.size == recorded[one.path].bytes)
        or (one.path not in recorded and one.size in sizes)
    ]
    outcomes = hash_files(wanted, cache=cache, progress=progress, threads=threads)
    unread = [one.problem for one in outcomes.values() if isinstance(one, NotHashed)]
    if unread:
        raise UnreadableFiles(unread)
    sums = {place: one.sha256 for place, one in outcomes.items() if isinstance(one, Hashed)}
    equal, changed = _by_name(record, here, sums)
    moved, extra = _by_content(record, here, recorded, sums)
    gone = {one.file.path for one in moved}
    return Verification(
        equal=equal,
        missing=tuple(f for f in record.files if f.path not in here and f.path not in gone),
        changed=changed,
        moved=moved,
        extra=extra,
        image=seen_image,
        damage=found.damage,
    )


def _by_name(
    record: ArtifactRecord, here: Mapping[str, Found], sums: Mapping[str, str]
) -> tuple[tuple[ArtifactFile, ...], tuple[Changed, ...]]:
    equal: list[ArtifactFile] = []
    changed: list[Changed] = []
    for file in record.files:
        one = here.get(file.path)
        if one is None:
            continue
        digest = sums.get(one.place) if one.size == file.bytes else None
        if digest == file.sha256:
            equal.append(file)
        else:
            changed.append(Changed(file, one.size, digest))
    return tuple(equal), tuple(changed)


def _by_content(
    record: ArtifactRecord,
    here: Mapping[str, Found],
    recorded: Mapping[str, ArtifactFile],
    sums: Mapping[str, str],
) -> tuple[tuple[Moved, ...], tuple[str, ...]]:
    extra = [path for path in here if path not in recorded]
    moved: list[Moved] = []
    for file in record.files:
        if file.path in here:
            continue
        found = next((path for path in extra if sums.get(here[path].place) == file.sha256), None)
        if found is not None:
            moved.append(Moved(file, found))
            extra.remove(found)
    return tuple(moved), tuple(extra)


def _image_answer(recorded: Mapping[str, str], here: Mapping[str, str]) -> str:
    if "unknown" in recorded:
        return "not recorded"
    # An image ID and a manifest's digest are different sums of one image: they cannot be compared.
    if set(recorded) != set(here):
        return "unknown here"
    return "equal" if dict(recorded) == dict(here) else "differs"
