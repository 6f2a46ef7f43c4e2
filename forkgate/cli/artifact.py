"""``forkgate artifact``: record what is served, verify it, compare two, find one again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from forkgate.cli.exits import Exit
from forkgate.cli.options import Json
from forkgate.cli.output import data, data_json, leave, say

if TYPE_CHECKING:
    from engines.identity.artifact import ArtifactRecord
    from engines.identity.artifact_verify import Verification
    from engines.identity.hash_cache import HashCache
    from engines.identity.hashing import Progress
    from engines.identity.locate import Search
    from engines.identity.trouble import ArtifactError

app = typer.Typer(
    no_args_is_help=True, help="Who answered: the weights, tokenizer and template, as SHA-256 sums."
)

Revision = Annotated[
    str | None,
    typer.Option(
        "--revision", metavar="REF", help="Of a hub cache with several: a ref, or a hash's beginning."
    ),
]
ImageDigest = Annotated[
    str | None,
    typer.Option(
        "--image-digest",
        metavar="DIGEST",
        help="Of the runtime image: sha256:... or name@sha256:...; else $FORKGATE_IMAGE_DIGEST.",
        show_default=False,
    ),
]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Hash every file, whatever was hashed before.")]
Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N", min=1, help="Hash with so many; all cores by default.")
]
Record = Annotated[
    Path, typer.Argument(metavar="RECORD", help="A file that `forkgate artifact record` wrote.")
]
_PLACES = 3
"""Places of one file that a person is shown; --json has them all."""


@app.command("record", short_help="Hash and describe a model's files.")
def record(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A model's folder, one GGUF file, or a model in a hub cache."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write the record here instead of standard output."),
    ] = None,
    revision: Revision = None,
    image_digest: ImageDigest = None,
    no_cache: NoCache = False,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Write the artifact record of DIR: JSON, on standard output or in the file of -o.

    With -o, standard output gets a summary (its digest, and what is in it), as JSON with --json.

    Exit status: 0 recorded; 1 the artifact is damaged or not whole; 2 DIR is none; 4 a file could not be
    read, or changed meanwhile.
    """
    from engines.identity.artifact import record_artifact
    from engines.identity.trouble import ArtifactError

    cache = _cache(no_cache)
    try:
        made = record_artifact(
            directory,
            revision=revision,
            image_digest=image_digest,
            cache=cache,
            progress=_Bar(),
            threads=threads,
            leave_out=_itself(out),
        )
    except ArtifactError as error:
        _leave_with(error)
    _tell(cache, made.about.get("notes", ()))
    if out is None:
        data_json(made.to_json()) if as_json else data(_pretty(made))
        return
    try:
        _write(out, _pretty(made) + "\n")
    except OSError as error:
        leave(Exit.UNMEASURED, f"{out}: the record cannot be written: {error.strerror or error}")
    summary = _summary(made)
    data_json({"record": str(out), **summary}) if as_json else data(_summary_text(summary, out))


@app.command("verify", short_help="Is a folder still what a record says?")
def verify(
    record_file: Record,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="As for `forkgate artifact record`.")],
    revision: Revision = None,
    image_digest: ImageDigest = None,
    files_only: Annotated[
        bool, typer.Option("--files-only", help="Say nothing of the runtime image.")
    ] = False,
    no_cache: NoCache = False,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Name every file that is missing, changed, moved or extra in DIR.

    Exit status: 0 all is there and equal; 1 something differs; 2 RECORD or DIR is none; 3 the files are
    equal, and the recorded runtime image cannot be compared here; 4 a file could not be read, or changed
    meanwhile.
    """
    from engines.identity.artifact_verify import verify_artifact
    from engines.identity.trouble import ArtifactError

    cache = _cache(no_cache)
    try:
        told = _load(record_file)
        seen = verify_artifact(
            told,
            directory,
            revision=revision,
            image_digest=image_digest,
            cache=cache,
            progress=_Bar(),
            threads=threads,
            leave_out=_itself(record_file),
        )
    except ArtifactError as error:
        _leave_with(error)
    _tell(cache, seen.damage)
    if as_json:
        data_json({"digest": told.digest, **seen.to_json()})
    else:
        data(_verified_text(seen, told))
    if not seen.files_equal or (seen.image == "differs" and not files_only):
        raise typer.Exit(Exit.FAIL)
    if seen.image == "unknown here" and not files_only:
        leave(
            Exit.INCONCLUSIVE,
            "the record names a runtime image, and which one runs here is not known: give --image-digest, or "
            "ask for --files-only",
        )


@app.command("diff", short_help="What differs between two records, and what it means.")
def diff(
    a: Annotated[Path, typer.Argument(metavar="A", help="A record, or a folder to record now.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The same.")],
    as_json: Json = False,
) -> None:
    """Order the differences of two artifacts by how surely they move tokens, and say why.

    Exit status: 0 they are equal; 1 they differ; 2 A or B is no record; 4 a file could not be read.
    """
    from engines.identity.artifact import record_artifact
    from engines.identity.artifact_diff import diff_artifacts
    from engines.identity.trouble import ArtifactError

    cache = _cache(False)
    try:
        left, right = (
            record_artifact(one, cache=cache, progress=_Bar())
            if one.is_dir() or one.suffix.lower() == ".gguf"
            else _load(one)
            for one in (a, b)
        )
    except ArtifactError as error:
        _leave_with(error)
    _tell(cache, ())
    found = diff_artifacts(left, right)
    if as_json:
        data_json(
            {
                "a": left.digest,
                "b": right.digest,
                "equal": left.digest == right.digest,
                "model_equal": left.model_digest == right.model_digest,
                "differences": [one.to_json() for one in found],
            }
        )
    else:
        lines = [f"A {left.digest}", f"B {right.digest}"]
        for one in found:
            lines.append(f"{one.moves.upper():<8} {one.what}: {_shown(one.path)}")
            lines += [f"         {side} {told}" for side, told in (("A", one.a), ("B", one.b)) if told]
            lines.append(f"         {one.meaning}")
        data("\n".join([*lines, *([] if found else ["equal"])]))
    raise typer.Exit(Exit.PASS if left.digest == right.digest else Exit.FAIL)


@app.command("locate", short_help="Find a record's files again, by content.")
def locate(
    record_file: Record,
    roots: Annotated[
        list[Path], typer.Argument(metavar="ROOT...", help="Folders to search in, all the way down.")
    ],
    no_cache: NoCache = False,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Find exactly the files of RECORD anywhere under the ROOTs, by content and never by name.

    Exit status: 0 every file was found, and is equal; 1 some are gone; 2 RECORD or a ROOT is none; 4 some
    were not found, and not every place could be read.
    """
    from engines.identity.locate import locate_artifact
    from engines.identity.trouble import ArtifactError

    cache = _cache(no_cache)
    try:
        told = _load(record_file)
        bar = _Bar()
        search = locate_artifact(told, roots, cache=cache, progress=bar, looking=bar.looking, threads=threads)
    except ArtifactError as error:
        _leave_with(error)
    _tell(cache, search.trouble)
    if as_json:
        data_json({"digest": told.digest, **search.to_json()})
    else:
        data(_located_text(search))
    if search.gone:
        raise typer.Exit(Exit.UNMEASURED if search.trouble else Exit.FAIL)


def _load(path: Path) -> ArtifactRecord:
    from engines.identity.artifact_json import load
    from engines.identity.trouble import NoArtifact

    if not path.is_file():
        raise NoArtifact(
            f"{_shown(path)}: no record is there: `forkgate artifact record DIR -o FILE` writes one"
        )
    return load(path)


def _leave_with(error: ArtifactError) -> NoReturn:
    from engines.identity.trouble import DamagedArtifact, UnreadableFiles

    if isinstance(error, DamagedArtifact):
        leave(Exit.FAIL, str(error))
    leave(Exit.UNMEASURED if isinstance(error, UnreadableFiles) else Exit.USAGE, str(error))


def _cache(without: bool) -> HashCache | None:
    from engines.identity.hash_cache import HashCache

    if without:
        return None
    cache = HashCache.default()
    if cache is None:
        say("no home directory: sums are not kept from one run to the next")
    return cache


def _tell(cache: HashCache | None, notes: Any) -> None:
    for note in notes:
        say(str(note))
    if cache is not None and cache.trouble is not None:
        say(cache.trouble)


def _itself(path: Path | None) -> frozenset[tuple[int, int]]:
    """A record that is kept in the folder it describes is no part of it."""
    try:
        status = path.stat() if path is not None else None
    except OSError:
        return frozenset()
    return frozenset() if status is None else frozenset({(status.st_dev, status.st_ino)})


def _write(path: Path, text: str) -> None:
    """Whole or not at all: a record that was cut off proves nothing."""
    import os
    import tempfile

    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _pretty(made: ArtifactRecord) -> str:
    import json

    return json.dumps(made.to_json(), indent=2, ensure_ascii=False)


def _summary(made: ArtifactRecord) -> dict[str, Any]:
    return {
        "digest": made.digest,
        "model_digest": made.model_digest,
        "files": len(made.files),
        "bytes": sum(file.bytes for file in made.files),
        "ignored": len(made.about["ignored"]),
        "image": dict(made.image),
    }


def _summary_text(summary: dict[str, Any], out: Path) -> str:
    kind, value = next(iter(summary["image"].items()))
    return (
        f"{summary['digest']}\n{_shown(out)}: {summary['files']} files, {summary['bytes']:,} bytes, "
        f"{summary['ignored']} ignored; runtime image {kind}: {value}"
    )


def _verified_text(seen: Verification, told: ArtifactRecord) -> str:
    lines = [f"missing  {_shown(one.path)}" for one in seen.missing]
    for change in seen.changed:
        now = f"sha256 {change.sha256}" if change.sha256 else f"{change.bytes:,} bytes"
        was = f"sha256 {change.file.sha256}" if change.sha256 else f"{change.file.bytes:,} bytes"
        lines.append(f"changed  {_shown(change.file.path)}: recorded {was}, here {now}")
    lines += [f"moved    {_shown(one.file.path)}: its content is in {_shown(one.path)}" for one in seen.moved]
    lines += [f"extra    {_shown(path)}" for path in seen.extra]
    word = "equal" if seen.files_equal else "differs"
    lines.append(
        f"{word}: {len(seen.equal)} of {len(told.files)} files as recorded, image {seen.image}, {told.digest}"
    )
    return "\n".join(lines)


def _located_text(search: Search) -> str:
    lines: list[str] = []
    for one in search.located:
        if not one.places:
            lines.append(f"gone     {_shown(one.file.path)}: {one.file.bytes:,} bytes, {one.file.sha256}")
            continue
        lines.append(f"found    {_shown(one.file.path)}")
        lines += [f"         {_shown(place)}" for place in one.places[:_PLACES]]
        if len(one.places) > _PLACES:
            lines.append(f"         and {len(one.places) - _PLACES} more places")
    found = sum(bool(one.places) for one in search.located)
    lines.append(f"{found} of {len(search.located)} files found, among {search.looked_at_files} looked at")
    return "\n".join(lines)


def _shown(path: Path | str) -> str:
    from engines.identity.trouble import shown

    return shown(path)


class _Bar:
    """Progress on standard error: a line that is rewritten on a terminal, elsewhere one every ten seconds."""

    _EVERY_S = 10.0

    def __init__(self) -> None:
        import time

        self._clock = time.monotonic
        self._began_s = self._told_s = time.monotonic()
        self._terminal = sys.stderr.isatty()
        self._clear = "\r\x1b[K" if self._terminal else ""

    def looking(self, files: int) -> None:
        self._line(f"looked at {files} files")

    def __call__(self, progress: Progress) -> None:
        if progress.done_files == progress.files:
            text = (
                f"{progress.files} files, {progress.bytes / 2**30:.2f} GiB: "
                f"{progress.files - progress.cached_files} hashed in {self._clock() - self._began_s:.1f} s, "
                f"{progress.cached_files} known from before"
            )
            sys.stderr.write(f"{self._clear}{text}\n")
            sys.stderr.flush()
        else:
            self._line(
                f"hashed {progress.done_files} of {progress.files} files, "
                f"{progress.done_bytes / 2**30:.2f} of {progress.bytes / 2**30:.2f} GiB"
            )

    def _line(self, text: str) -> None:
        now_s = self._clock()
        if self._terminal or now_s - self._told_s >= self._EVERY_S:
            self._told_s = now_s
            sys.stderr.write(self._clear + text + ("" if self._terminal else "\n"))
            sys.stderr.flush()
