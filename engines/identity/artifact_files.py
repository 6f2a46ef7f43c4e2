"""The files of an artifact: a plain folder, a single GGUF, or a model in a Hugging Face hub cache.

The hub's cache keeps each content once under ``blobs`` and gives it names by links::

    models--org--name/refs/main                    one revision's hash
                      snapshots/REVISION/FILE  ->  ../../blobs/NAME
                      blobs/NAME

A snapshot and a plain copy of it have the same relative paths, so they have the same record.
"""

from __future__ import annotations

import dataclasses
import os
import re
import stat
from collections.abc import Iterator

from engines.identity.artifact_kinds import Role, ignored_folder, kind_of
from engines.identity.trouble import (
    NoArtifact,
    UnreadableFiles,
    shown,
    special,
    unreadable,
)

_HUB_FOLDER = re.compile(r"models--(?P<repo>.+)")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where an artifact lies. No part of its digest: a copy elsewhere is the same artifact."""

    root: str
    layout: str
    """``folder``, ``file`` or ``hub_cache``."""
    repo: str | None = None
    revision: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A file of the artifact. ``path`` is relative, with ``/``; ``place`` is where it is opened."""

    path: str
    place: str
    role: Role
    reason: str | None
    size: int


@dataclasses.dataclass(frozen=True, slots=True)
class Ignored:
    """A file, or a folder when ``path`` ends with ``/``, that is no part of the artifact, and why."""

    path: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Scan:
    source: Source
    files: tuple[Found, ...]
    ignored: tuple[Ignored, ...]
    damage: tuple[str, ...]
    """What shows, by names and sizes alone, that the artifact is not whole."""

    def nothing(self) -> str:
        """What to say where no file is one of a model."""
        paths = [one.path for one in self.files] + [one.path for one in self.ignored]
        held = ", ".join(map(shown, paths[:5]))
        return (
            f"{shown(self.source.root)}: no file of a model is there, {f'only {held}' if held else 'nothing'}"
            ": name the folder that holds the weights"
        )


def find_source(path: str, revision: str | None = None) -> Source:
    """What ``path`` names: a folder, a file, a snapshot, or a repository of a hub cache.

    Args:
        revision: of a hub cache: a name under ``refs``, or the hash (its beginning) of a snapshot.

    Raises:
        NoArtifact: nothing is there, or it holds several models or revisions.
        UnreadableFiles: it may not be looked at.
    """
    root = os.path.abspath(path)
    try:
        status = os.stat(root)
    except FileNotFoundError:
        raise NoArtifact(f"{shown(path)}: no such file or folder") from None
    except OSError as error:
        raise UnreadableFiles(unreadable(path, error)) from None
    if stat.S_ISREG(status.st_mode):
        return Source(root=root, layout="file")
    if not stat.S_ISDIR(status.st_mode):
        raise NoArtifact(special(path, status.st_mode))
    source = _in_hub_cache(root, revision)
    if source is None and revision is not None:
        raise NoArtifact(f"{shown(path)}: a revision was asked for, and this is no repository of a hub cache")
    return source or Source(root=root, layout="folder")


def scan(source: Source, leave_out: frozenset[tuple[int, int]] = frozenset()) -> Scan:
    """Every file of the artifact, in the order of its name's bytes.

    Args:
        leave_out: device and inode of files that are ours (a record kept beside the model).

    Raises:
        UnreadableFiles: files that cannot be reached; all of them are named.
    """
    walk = _Walk(source, leave_out)
    if source.layout == "file":
        walk.file(os.path.basename(source.root), source.root, beside_adapter=False)
    else:
        walk.folder("", source.root, ())
    if walk.unreadable:
        raise UnreadableFiles(walk.unreadable)
    return Scan(
        source,
        tuple(sorted(walk.files, key=lambda one: os.fsencode(one.path))),
        tuple(sorted(walk.ignored, key=lambda one: os.fsencode(one.path))),
        tuple(walk.damage),
    )


def _in_hub_cache(root: str, revision: str | None) -> Source | None:
    """The snapshot that ``root`` is, or that it holds as a repository; None for any other folder."""
    parent = os.path.dirname(root)
    if os.path.basename(parent) == "snapshots" and os.path.isdir(os.path.join(parent, "..", "blobs")):
        here = os.path.basename(root)
        if revision is not None and not here.startswith(revision):
            raise NoArtifact(f"{shown(root)}: this is revision {here}, and {revision} was asked for")
        return Source(root=root, layout="hub_cache", repo=_repo(os.path.dirname(parent)), revision=here)
    snapshots = os.path.join(root, "snapshots")
    if os.path.isdir(snapshots) and os.path.isdir(os.path.join(root, "blobs")):
        chosen = _revision(root, snapshots, revision)
        place = os.path.join(snapshots, chosen)
        return Source(root=place, layout="hub_cache", repo=_repo(root), revision=chosen)
    models = sorted(name for name in _names(root) if _HUB_FOLDER.fullmatch(name))
    if models:
        raise NoArtifact(
            f"{shown(root)}: a hub cache of {len(models)} models: name one of its folders, "
            f"e.g. {shown(os.path.join(root, models[0]))}"
        )
    return None


def _revision(root: str, snapshots: str, asked: str | None) -> str:
    there = sorted(_names(snapshots))
    if asked is None and len(there) == 1:
        return there[0]
    name = asked or "main"
    try:
        with open(os.path.join(root, "refs", *name.split("/")), encoding="ascii", errors="replace") as file:
            told = file.read(200).strip()
    except OSError:
        told = name
    fitting = [one for one in there if one.startswith(told)] if told else []
    if len(fitting) == 1:
        return fitting[0]
    if not there:
        raise NoArtifact(f"{shown(root)}: the cache has no snapshot of this model: download it first")
    wanted = "which revision is meant is not told" if asked is None else f"revision {asked} is not here"
    raise NoArtifact(f"{shown(root)}: {wanted}: choose with --revision: {', '.join(map(shown, there))}")


def _repo(folder: str) -> str | None:
    named = _HUB_FOLDER.fullmatch(os.path.basename(folder))
    return named["repo"].replace("--", "/") if named else None


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:
        raise UnreadableFiles(unreadable(folder, error)) from None


class _Walk:
    """One walk over a folder; troubles are gathered, so that a person reads all of them at once."""

    def __init__(self, source: Source, leave_out: frozenset[tuple[int, int]]) -> None:
        self._leave_out = leave_out
        self.files: list[Found] = []
        self.ignored: list[Ignored] = []
        self.unreadable: list[str] = []
        self.damage: list[str] = []

    def folder(self, relative: str, place: str, above: tuple[tuple[int, int], ...]) -> None:
        try:
            status = os.stat(place)
            here = (status.st_dev, status.st_ino)
            if here in above:
                self.unreadable.append(
                    f"{shown(place)}: a link that leads back to a folder above it: remove it"
                )
                return
            with os.scandir(place) as listed:
                entries = sorted(listed, key=lambda entry: os.fsencode(entry.name))
        except OSError as error:
            self.unreadable.append(unreadable(place, error))
            return
        beside_adapter = any(entry.name == "adapter_config.json" for entry in entries)
        for entry in entries:
            path = f"{relative}{entry.name}"
            if _is_folder(entry):
                reason = ignored_folder(entry.name)
                if reason is not None:
                    self.ignored.append(Ignored(path + "/", reason))
                else:
                    self.folder(path + "/", entry.path, (*above, here))
            else:
                self.file(path, entry.path, beside_adapter=beside_adapter)

    def file(self, path: str, place: str, *, beside_adapter: bool) -> None:
        kind = kind_of(path.rpartition("/")[2], beside_adapter=beside_adapter)
        if kind.damage is not None:
            self.damage.append(f"{shown(place)}: {kind.damage}")
            self.ignored.append(Ignored(path, "an unfinished download"))
            return
        if kind.role is None:
            self.ignored.append(Ignored(path, kind.reason or ""))
            return
        try:
            status = os.stat(place)
        except OSError as error:
            self.unreadable.append(unreadable(place, error))
            return
        if (status.st_dev, status.st_ino) in self._leave_out:
            self.ignored.append(Ignored(path, "the record itself"))
        elif not stat.S_ISREG(status.st_mode):
            self.unreadable.append(special(place, status.st_mode))
        else:
            if kind.role in (Role.WEIGHT, Role.ADAPTER) and status.st_size == 0:
                self.damage.append(f"{shown(place)}: 0 bytes, and weights cannot be empty: download it again")
            self.files.append(
                Found(path=path, place=place, role=kind.role, reason=kind.reason, size=status.st_size)
            )


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a link into itself: told where the file would be opened


def plain_files(root: str, trouble: list[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Every plain file under ``root`` with its state; links to files are followed, links to folders not.

    What cannot be read is told in ``trouble`` and passed over: a search goes on. What has vanished meanwhile
    is no trouble: it is not there.
    """
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as listed:
                entries = sorted(listed, key=lambda entry: os.fsencode(entry.name))
        except FileNotFoundError:
            continue
        except OSError as error:
            trouble.append(unreadable(folder, error))
            continue
        for entry in entries:
            try:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                    continue
                status = entry.stat()
            except FileNotFoundError:
                continue
            except OSError as error:
                if not entry.is_symlink():
                    trouble.append(unreadable(entry.path, error))
                continue
            if stat.S_ISREG(status.st_mode):
                yield entry.path, status
