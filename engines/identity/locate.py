"""Finding a record's files again, anywhere, by what they hold and never by what they are called.

Sizes first, which cost nothing; then only files of a wanted size are hashed. Names, folders and times are
never looked at: a weight that was renamed, scattered or unpacked elsewhere is found, and another file under
the old name is not.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from typing import Any

from engines.identity.artifact import ArtifactFile, ArtifactRecord, path_json
from engines.identity.artifact_files import plain_files
from engines.identity.hash_cache import HashCache
from engines.identity.hashing import Hashed, NotHashed, Progress, hash_files
from engines.identity.trouble import NoArtifact, shown

_TELL_EVERY = 1000


@dataclasses.dataclass(frozen=True, slots=True)
class Located:
    """A recorded file and every place where exactly its content lies, in the order of the walk."""

    file: ArtifactFile
    places: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What a search found. ``trouble``: places that could not be looked at, so that "gone" is not certain."""

    located: tuple[Located, ...]
    looked_at_files: int
    trouble: tuple[str, ...]

    @property
    def gone(self) -> tuple[ArtifactFile, ...]:
        return tuple(one.file for one in self.located if not one.places)

    def to_json(self) -> dict[str, Any]:
        return {
            "found_all": not self.gone,
            "looked_at_files": self.looked_at_files,
            "files": [
                {**one.file.to_json(), "places": [path_json(place) for place in one.places]}
                for one in self.located
            ],
            "gone": [path_json(file.path) for file in self.gone],
            "not_looked_at": list(self.trouble),
        }


def locate_artifact(
    record: ArtifactRecord,
    roots: Iterable[str | os.PathLike[str]],
    *,
    cache: HashCache | None = None,
    progress: Callable[[Progress], None] | None = None,
    looking: Callable[[int], None] | None = None,
    threads: int | None = None,
) -> Search:
    """Look for every file of ``record`` under ``roots``.

    Args:
        looking: called every thousand files of the walk with their number; the hashing comes after it.
        cache, progress, threads: see :func:`engines.identity.hashing.hash_files`.

    Links to files are followed, links to folders are not; a root may be either, or a single file. Files of
    one content share the places where it lies.

    Raises:
        NoArtifact: a root is not there.
    """
    sizes = {file.bytes for file in record.files}
    trouble: list[str] = []
    candidates: dict[str, None] = {}
    looked_at: set[tuple[int, int]] = set()
    for root in roots:
        top = os.path.abspath(root)
        if not os.path.exists(top):
            raise NoArtifact(f"{shown(root)}: no such file or folder to look in")
        if os.path.isfile(top):
            status = os.stat(top)
            looked_at.add((status.st_dev, status.st_ino))
            candidates.update({top: None} if status.st_size in sizes else {})
            continue
        for path, status in plain_files(top, trouble):
            looked_at.add((status.st_dev, status.st_ino))
            if status.st_size in sizes:
                candidates[path] = None
            if looking is not None and len(looked_at) % _TELL_EVERY == 0:
                looking(len(looked_at))
    outcomes = hash_files(candidates, cache=cache, progress=progress, threads=threads)
    places: dict[tuple[int, str], list[str]] = {}
    for path in candidates:
        outcome = outcomes[path]
        if isinstance(outcome, NotHashed):
            trouble.append(outcome.problem)
        elif isinstance(outcome, Hashed):
            places.setdefault((outcome.bytes, outcome.sha256), []).append(path)
    return Search(
        located=tuple(
            Located(file, tuple(places.get((file.bytes, file.sha256), ()))) for file in record.files
        ),
        looked_at_files=len(looked_at),
        trouble=tuple(trouble),
    )
