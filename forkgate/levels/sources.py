"""What a person names → two or more sides, and evidence.

A side is a folder that holds its records, one or two record files (``ENV.json,ARTIFACT.json``), a running
engine's URL, or the name of a pool in the configuration, whose engines are then asked. Evidence is a file of
comparisons or a rollout's store; where it brings the records along (a bundle), these are sides too.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import orjson

from comparator.comparison import Comparison
from comparator.evidence import EvidenceReader, Keyring
from comparator.evidence.export import HEAD_KEYS, read_comparisons
from comparator.misfit import misfit_of
from engines.identity import artifact, artifact_json, record
from engines.identity.artifact import ArtifactRecord
from engines.identity.canonical import CanonicalError, parse
from engines.identity.levels import Side
from engines.identity.record import Identity, UnknownField
from engines.identity.trouble import BadRecord, UnreadableFiles, shown, unreadable

_LARGEST_BYTES = 256 << 20
_RECORDS = (record.RECORD, artifact.RECORD)
_NAMED = b'"record"'
"""Stands in every record."""
_SQLITE = b"SQLite format 3\0"


class BadSource(ValueError):  # noqa: N818
    """What was named is no side, no evidence, or several; the message says what to do."""


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Where a pool's engines answer."""

    name: str
    endpoints: tuple[str, ...]
    key: str | None = None


def side_of(text: str, name: str, pools: Callable[[str], Pool]) -> Side:
    """One environment.

    Args:
        text: as a person typed it.
        name: what messages call it.
        pools: a pool of the configuration by name; raises :class:`BadSource` for none.

    Raises:
        BadSource: it names nothing, or several environments.
        ArtifactError: a record that was changed, a file that cannot be read, an engine that does not answer.
    """
    if text.startswith(("http://", "https://")):
        return _asked(Pool(name=text, endpoints=(text,)), name)
    paths = [Path(text)]
    if not paths[0].exists() and "," in text:
        paths = [Path(part) for part in text.split(",")]
    elif not paths[0].exists():
        return _asked(pools(text), name)
    return _of_documents(itertools.chain.from_iterable(map(_documents, paths)), text, name)


def _asked(pool: Pool, name: str) -> Side:
    """What a pool's engines tell of themselves; they must tell one thing."""
    from engines.identity import collect
    from engines.identity.collect_http import Endpoint

    told: dict[str, Side] = {}
    for url in pool.endpoints:
        found = collect.capture(url=url, key=pool.key)
        document = Endpoint(url, key=pool.key).document("/forkgate/artifact")
        files = None if isinstance(document, UnknownField) else artifact_json.from_json(document)
        told[url] = Side(name=name, environment=found, artifact=files)
    environments = {side.environment.digest for side in told.values() if side.environment is not None}
    if len(environments) > 1:
        raise BadSource(
            f"{pool.name}: its endpoints are not one environment: "
            + ", ".join(
                f"{url} is {side.environment.digest}" for url, side in told.items() if side.environment
            )
            + "; compare them with each other by URL"
        )
    return next(iter(told.values()))


def _documents(path: Path) -> Iterator[tuple[Path, Any]]:
    """Every record in a file, or in the files of a folder."""
    if path.is_dir():
        files = sorted(one for one in path.iterdir() if one.suffix == ".json" and one.is_file())
        for one in files:
            yield from _documents(one)
        return
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST_BYTES + 1)
    except OSError as error:
        raise UnreadableFiles(unreadable(path, error)) from None
    if len(text) > _LARGEST_BYTES:
        raise BadSource(
            f"{shown(path)}: larger than {_LARGEST_BYTES >> 20} MiB: give evidence with --evidence"
        )
    for document in _parsed(text):
        if isinstance(document, Mapping) and document.get("record") in _RECORDS:
            yield path, document


def _parsed(text: bytes) -> Iterator[Any]:
    """One JSON value, or one a line; what is neither is no record."""
    if _NAMED not in text:
        return
    try:
        yield parse(text)
    except CanonicalError:
        for line in io.BytesIO(text):
            if _NAMED not in line:
                continue  # a bundle has a hundred thousand comparisons behind two records
            try:
                yield parse(line)
            except CanonicalError:
                continue


def _of_documents(documents: Iterable[tuple[Path, Any]], text: str, name: str) -> Side:
    environments: dict[str, Identity] = {}
    artifacts: dict[str, ArtifactRecord] = {}
    for path, document in documents:
        try:
            if document["record"] == record.RECORD:
                read = record.from_json(document)
                environments[read.digest] = read
            else:
                files = artifact_json.from_json(document)
                artifacts[files.digest] = files
        except BadRecord as error:
            raise BadRecord(f"{shown(path)}: {error}") from None
    if not environments and not artifacts:
        raise BadSource(
            f"{shown(text)}: no record is in it: `forkgate environment capture -o FILE` and `forkgate "
            "artifact record DIR -o FILE` write them"
        )
    for kind, found in (("environment", environments), ("artifact", artifacts)):
        if len(found) > 1:
            raise BadSource(
                f"{shown(text)}: holds {len(found)} {kind} records, so it is not one side: name the files, "
                "or give a bundle in which each pool was one environment as --evidence alone"
            )
    return Side(
        name=name,
        environment=next(iter(environments.values()), None),
        artifact=next(iter(artifacts.values()), None),
    )


class _Answered(msgspec.Struct, frozen=True, kw_only=True):
    """Who answered on one arm, as a bundle's head tells it."""

    pools: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    artifacts: tuple[str, ...] = ()


class _OfPolicy(msgspec.Struct, frozen=True, kw_only=True):
    name: str | None = None
    digest: str | None = None
    gates: tuple[str, ...] = ()


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of a bundle's first line; other keys are for other readers."""

    bundle: Literal["evidence/1"] = "evidence/1"
    baseline: _Answered = _Answered()
    candidate: _Answered = _Answered()
    policy: _OfPolicy | None = None
    verdicts: tuple[dict[str, Any], ...] = ()


class Evidence:
    """Comparisons, and what was written before them. Use as ``with``.

    Raises:
        BadSource: no such file or rollout, a head that is none.
        EvidenceError: kinds of it, for a store.
    """

    def __init__(self, path: Path, rollout: str | None, keys: Callable[[], Keyring]) -> None:
        """``keys`` is asked where the file is a store, whose values may be sealed."""
        self.path = path
        self._reader: EvidenceReader | None = None
        if path.exists() and not path.is_file() and not path.is_dir():
            raise BadSource(
                f"--evidence {shown(path)}: is a pipe or a device, and it is read several times: "
                "write it to a file first"
            )
        try:
            with path.open("rb") as file:
                is_store = file.read(len(_SQLITE)) == _SQLITE
        except OSError as error:
            raise BadSource(f"--evidence {shown(path)}: cannot be read: {error.strerror or error}") from None
        if is_store:
            self._reader = EvidenceReader(path, keys())
        self.rollout = self._rollout(rollout)
        self.head = _Head()
        self._documents: list[Mapping[str, Any]] = []
        self._read_head()

    def __enter__(self) -> Evidence:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()

    def _rollout(self, asked: str | None) -> str | None:
        """None: all that are in it."""
        if self._reader is None:
            return asked
        known = self._reader.rollouts()
        if asked is not None and asked not in known:
            raise BadSource(
                f"--rollout: {self.path} knows no rollout {asked!r}; it knows {', '.join(known) or 'none'}"
            )
        return known[0] if asked is None and len(known) == 1 else asked

    def comparisons(
        self, on_pruned: Callable[[int], None], on_hashed: Callable[[int, Comparison], None]
    ) -> Iterator[Comparison]:
        """Those of the rollout, else of all, oldest first. Raises ExportLineError for a line that is none.

        Args:
            on_pruned, on_hashed: see :func:`comparator.evidence.export.read_comparisons`.
        """
        for one in read_comparisons(self._lines(), on_pruned, on_hashed):
            if self.rollout is None or one.rollout == self.rollout:
                yield one

    def verdicts(self) -> tuple[list[Mapping[str, Any]], Mapping[str, Any] | None]:
        """Stored verdicts, as plain data, and the policy that they are of."""
        policy = self.head.policy
        return list(self.head.verdicts), None if policy is None else msgspec.to_builtins(policy)

    def side(self, arm: str) -> Side:
        """``baseline`` or ``candidate`` of a bundle: the environment that its answers were signed by."""
        if not self._documents:
            raise BadSource(
                f"--evidence {shown(self.path)}: brings no records along, so A and B must be given: folders, "
                "record files, URLs or pools"
            )
        if self._reader is not None and self.rollout is None:
            known = ", ".join(self._reader.rollouts())
            raise BadSource(f"--rollout: {self.path} knows {known}: whose baseline and candidate are meant?")
        told = self.head.baseline if arm == "baseline" else self.head.candidate
        environments, artifacts = (
            [(self.path, one) for one in self._documents if one.get("digest") in digests]
            for digests in (told.environments, told.artifacts)
        )
        if len(environments) == 1 and len(artifacts) > 1:
            # A pool's files were recorded more than once: those count that its engine says it serves.
            fields = environments[0][1].get("fields")
            served = fields.get("artifact.digest") if isinstance(fields, Mapping) else None
            artifacts = [one for one in artifacts if one[1]["digest"] == served]
        if not environments and not artifacts:
            raise BadSource(
                f"--evidence {shown(self.path)}: has no record of the {arm}: give A and B; or let the engine "
                "serve its record (the reference engine, or forkgate's plugin)"
            )
        name = told.pools[0] if len(told.pools) == 1 else arm
        return _of_documents([*environments, *artifacts], f"{self.path} ({arm})", name)

    def _lines(self) -> Iterator[bytes]:
        if self._reader is not None:
            yield from self._reader.export(rollout=self.rollout)
            return
        with self.path.open("rb") as file:
            yield from file

    def _head(self, document: Mapping[str, Any]) -> _Head:
        try:
            return msgspec.convert(document, _Head)
        except msgspec.ValidationError as error:
            found = misfit_of(error)
            raise BadSource(
                f"--evidence {shown(self.path)}: its head is none: {found.path}: {found.text}; "
                "`forkgate evidence export` writes one"
            ) from error

    def _read_head(self) -> None:
        for line in filter(bytes.strip, self._lines()):
            document = _head_line(line)
            if document is None:
                return
            if "bundle" in document:
                self.head = self._head(document)
            elif "record" in document:
                self._documents.append(document)


def _head_line(line: bytes) -> Mapping[str, Any] | None:
    """A line that stands before comparisons, or None for any other."""
    try:
        document = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    return document if isinstance(document, dict) and not HEAD_KEYS.isdisjoint(document) else None
