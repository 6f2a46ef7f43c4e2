"""What of two artifacts stands in the way: their files, and the runtime image that serves them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from engines.identity import artifact_diff
from engines.identity.artifact import ArtifactRecord
from engines.identity.artifact_diff import Moves
from engines.identity.levels_fields import advice
from engines.identity.levels_values import (
    ARTIFACT,
    DIGEST,
    ENVIRONMENT,
    IMAGE,
    LEVELS,
    TOKEN,
    Obstacle,
    Side,
    Weight,
)
from engines.identity.trouble import shown

_OF_FILES = {Moves.SURELY: Weight.NATURE, Moves.LIKELY: Weight.LIKELY, Moves.PERHAPS: Weight.PERHAPS}


def obstacles(a: Side, b: Side) -> Iterator[Obstacle]:
    """By the records, and by what the engines say that they serve."""
    yield from _served(a)
    yield from _served(b)
    if a.artifact is not None and b.artifact is not None:
        yield from _files(a.artifact, b.artifact)
    else:
        yield from _digests(a, b)
    yield from _image(a, b)


def _served(side: Side) -> Iterator[Obstacle]:
    """Is the side's artifact record that of what its engine serves, where the engine says what it serves?"""
    told = side.fields.get(DIGEST)
    if side.artifact is None or not isinstance(told, str) or told == side.artifact.digest:
        return
    yield Obstacle(
        weight=Weight.UNKNOWN,
        levels=LEVELS,
        what=f"artifact record of {side.name}",
        a=side.artifact.digest,
        b=told,
        why="the record is not the one that the engine says it serves (the second digest)",
        todo="record the folder that the engine serves, with the image digest that it was given; or take the "
        "engine's own from GET /forkgate/artifact",
    )


def _files(a: ArtifactRecord, b: ArtifactRecord) -> Iterator[Obstacle]:
    kept = [Counter((file.sha256, file.bytes) for file in one.files) for one in (a, b)]
    same_bytes = kept[0] == kept[1]
    for one in artifact_diff.diff_artifacts(a, b):
        if one.path == "image" and one.what == "runtime image":
            continue  # environment records may tell it too: _image
        # Of equal content, only what it is called or how it is laid out differs.
        levels: tuple[str, ...] = () if same_bytes else (ARTIFACT,)
        weight = Weight.RARELY
        if one.moves is not Moves.NO:
            weight, levels = _OF_FILES[one.moves], LEVELS
        yield Obstacle(
            weight=weight,
            levels=levels,
            what=f"{one.what}: {shown(one.path)}",
            a=one.a,
            b=one.b,
            why=one.meaning,
            todo="serve the same files: `forkgate artifact locate RECORD ROOT...` finds them by content",
        )


def _digests(a: Side, b: Side) -> Iterator[Obstacle]:
    """Without both records: what the engines say themselves."""
    digests = [_digest(side) for side in (a, b)]
    missing = [side.name for side, digest in zip((a, b), digests, strict=True) if digest is None]
    todo = (
        "give the artifact records: `forkgate artifact record DIR -o FILE`, or an engine's /forkgate/artifact"
    )
    if missing:
        yield Obstacle(
            weight=Weight.UNKNOWN,
            levels=LEVELS,
            what=f"artifact record of {' and '.join(missing)}",
            why="which weights, tokenizer and template are served is not known",
            todo=todo,
        )
    elif digests[0] != digests[1]:
        # Which file differs, and whether it is one that matters, only the records can tell.
        for weight, levels in ((Weight.LIKELY, (ARTIFACT, ENVIRONMENT)), (Weight.UNKNOWN, (TOKEN,))):
            yield Obstacle(
                weight=weight,
                levels=levels,
                what=DIGEST,
                a=digests[0],
                b=digests[1],
                why="other files or another image: which ones, two digests cannot tell",
                todo=todo,
            )


def _digest(side: Side) -> str | None:
    if side.artifact is not None:
        return side.artifact.digest
    told = side.fields.get(DIGEST)
    return told if isinstance(told, str) else None


def _image(a: Side, b: Side) -> Iterator[Obstacle]:
    left, right = _image_of(a), _image_of(b)
    todo = "give --image-digest when recording, or set FORKGATE_IMAGE_DIGEST where the engine is started"
    if left is None or right is None or left[0] != right[0]:
        if left is not None and right is not None:
            why = "a registry's digest and a local image's ID cannot be compared"
        else:
            who = " and ".join(side.name for side, told in ((a, left), (b, right)) if told is None)
            why = f"not told by {who}: another image holds other libraries and kernels"
        yield Obstacle(
            weight=Weight.UNKNOWN,
            levels=(ARTIFACT, ENVIRONMENT),
            what=IMAGE,
            a=_told_image(left),
            b=_told_image(right),
            why=why,
            todo=todo,
            vouchable=True,
        )
    elif left != right:
        told_apart = a.environment is not None and b.environment is not None
        yield Obstacle(
            weight=Weight.PERHAPS if told_apart else Weight.LIKELY,
            levels=LEVELS,
            what=IMAGE,
            a=_told_image(left),
            b=_told_image(right),
            why="another image holds other libraries and kernels: the environment records tell which",
            todo=advice(IMAGE),
        )


def _image_of(side: Side) -> tuple[str, str] | None:
    told = [{} if side.artifact is None else side.artifact.image, side.fields.get(IMAGE)]
    for kind in ("digest", "id"):
        for one in told:
            if isinstance(one, Mapping) and isinstance(one.get(kind), str):
                return kind, one[kind]
    return None


def _told_image(image: tuple[str, str] | None) -> str:
    return "unknown" if image is None else f"{image[0]} {image[1]}"
