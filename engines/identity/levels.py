"""Which levels of equality two environments can reach, as far as records tell, and what stands in the way.

- *artifact*: the same files are served by the same runtime image.
- *environment*: the same artifact, and no difference in any field that can move tokens.
- *token*: the same token IDs in give the same token IDs out. Records never show it, they say whether it
  can be.

The fourth level, *statistical*, is a question to evidence alone, and so is whether tokens *were* equal; both
are asked outside this package. What a record does not know counts neither as equal nor as different: then it
is not known whether the level is reached.
"""

from __future__ import annotations

import dataclasses
import enum
import fnmatch
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from engines.identity import artifact_diff, environment_diff
from engines.identity.artifact import ArtifactRecord
from engines.identity.artifact_diff import Moves
from engines.identity.environment import LIKELY, PERHAPS, RARELY
from engines.identity.levels_fields import advice, batch_invariant, by_nature, idle, moves, of_batches
from engines.identity.record import Identity, UnknownField
from engines.identity.trouble import shown

ARTIFACT = "artifact"
ENVIRONMENT = "environment"
TOKEN = "token"  # noqa: S105 - a level, not a secret
_ALL = (ARTIFACT, ENVIRONMENT, TOKEN)
_IMAGE = "container.image"
_DIGEST = "artifact.digest"
_SHOWN_CHARACTERS = 100


class Can(enum.StrEnum):
    """Whether a level can be reached."""

    YES = "yes"
    UNLIKELY = "unlikely"  # of tokens: only evidence can say that it is
    UNKNOWN = "unknown"  # nothing known stands in the way, and something is not known
    NO = "no"


class Weight(enum.StrEnum):
    """How heavily an obstacle weighs; the heaviest first."""

    SEEN = "seen"  # evidence shows it
    NATURE = "by nature"  # other numbers at every step
    LIKELY = "likely"
    PERHAPS = "perhaps"
    MISSING = "missing"  # evidence that would show it
    UNKNOWN = "unknown"  # nobody knows whether it differs
    RARELY = "rarely"


_WEIGHTS = {weight: place for place, weight in enumerate(Weight)}
_OF_FILES = {Moves.SURELY: Weight.NATURE, Moves.LIKELY: Weight.LIKELY, Moves.PERHAPS: Weight.PERHAPS}
_OF_LABEL = {LIKELY: Weight.LIKELY, PERHAPS: Weight.PERHAPS, RARELY: Weight.RARELY}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """What is known of one environment. ``name`` is what messages call it."""

    name: str
    environment: Identity | None = None
    artifact: ArtifactRecord | None = None

    @property
    def fields(self) -> Mapping[str, Any]:
        """Of the environment record; none without one."""
        return {} if self.environment is None else self.environment.fields


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """One thing that stands in the way of ``levels``; of no level: it is told, and bars nothing."""

    weight: Weight
    levels: tuple[str, ...]
    what: str
    a: str | None = None
    b: str | None = None
    why: str
    todo: str = ""
    vouchable: bool = False
    """It is a fact of the two environments that somebody else may know."""

    def to_json(self) -> dict[str, Any]:
        return {
            "weight": self.weight.value,
            "in_the_way_of": list(self.levels),
            "what": self.what,
            "a": self.a,
            "b": self.b,
            "why": self.why,
            "todo": self.todo or None,
        }


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """What two records say. Where ``can`` is YES of artifact or environment, the records show it."""

    can: Mapping[str, Can]
    obstacles: tuple[Obstacle, ...]
    """The heaviest first."""
    remarks: tuple[Obstacle, ...]
    """Differences that stand in nobody's way."""
    vouched: tuple[str, ...]
    """What was unknown and counted as equal, because whoever asked said so."""


def reach(a: Side, b: Side, vouch: Iterable[str] = ()) -> Reach:
    """Compare two sides.

    Args:
        vouch: names of unknown things that the caller knows to be equal, ``*`` standing for anything. What is
            known to differ, and a record that is not there, cannot be vouched for.
    """
    patterns = tuple(vouch)
    found: list[Obstacle] = []
    vouched: list[str] = []
    for one in (*_artifact(a, b), *_environment(a, b)):
        if one.vouchable and any(fnmatch.fnmatchcase(one.what, pattern) for pattern in patterns):
            vouched.append(one.what)
        else:
            found.append(one)
    return Reach(
        can={level: _can(level, found) for level in _ALL},
        obstacles=ordered(one for one in found if one.levels),
        remarks=tuple(one for one in found if not one.levels),
        vouched=tuple(vouched),
    )


def ordered(obstacles: Iterable[Obstacle]) -> tuple[Obstacle, ...]:
    """The heaviest first; those of one weight stay in the order in which they came."""
    return tuple(sorted(obstacles, key=lambda one: _WEIGHTS[one.weight]))


def _can(level: str, obstacles: Iterable[Obstacle]) -> Can:
    weights = {one.weight for one in obstacles if level in one.levels}
    known = weights - {Weight.UNKNOWN}
    if known and (level != TOKEN or Weight.NATURE in known):
        return Can.NO
    if Weight.LIKELY in known:
        return Can.UNLIKELY
    return Can.UNKNOWN if Weight.UNKNOWN in weights else Can.YES


# -- artifact -----------------------------------------------------------------------------------------------


def _artifact(a: Side, b: Side) -> Iterator[Obstacle]:
    yield from _served(a)
    yield from _served(b)
    if a.artifact is not None and b.artifact is not None:
        yield from _files(a.artifact, b.artifact)
    else:
        yield from _digests(a, b)
    yield from _image(a, b)


def _served(side: Side) -> Iterator[Obstacle]:
    """Is the side's artifact record that of what its engine serves, where the engine says what it serves?"""
    told = side.fields.get(_DIGEST)
    if side.artifact is None or not isinstance(told, str) or told == side.artifact.digest:
        return
    yield Obstacle(
        weight=Weight.UNKNOWN,
        levels=_ALL,
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
            weight, levels = _OF_FILES[one.moves], _ALL
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
            levels=_ALL,
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
                what=_DIGEST,
                a=digests[0],
                b=digests[1],
                why="other files or another image: which ones, two digests cannot tell",
                todo=todo,
            )


def _digest(side: Side) -> str | None:
    if side.artifact is not None:
        return side.artifact.digest
    told = side.fields.get(_DIGEST)
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
            what=_IMAGE,
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
            levels=_ALL,
            what=_IMAGE,
            a=_told_image(left),
            b=_told_image(right),
            why="another image holds other libraries and kernels: the environment records tell which",
            todo=advice(_IMAGE),
        )


def _image_of(side: Side) -> tuple[str, str] | None:
    told = [{} if side.artifact is None else side.artifact.image, side.fields.get(_IMAGE)]
    for kind in ("digest", "id"):
        for one in told:
            if isinstance(one, Mapping) and isinstance(one.get(kind), str):
                return kind, one[kind]
    return None


def _told_image(image: tuple[str, str] | None) -> str:
    return "unknown" if image is None else f"{image[0]} {image[1]}"


# -- environment --------------------------------------------------------------------------------------------


def _environment(a: Side, b: Side) -> Iterator[Obstacle]:
    if a.environment is None or b.environment is None:
        who = " and ".join(side.name for side in (a, b) if side.environment is None)
        yield Obstacle(
            weight=Weight.UNKNOWN,
            levels=(ENVIRONMENT, TOKEN),
            what=f"environment record of {who}",
            why="hardware, libraries, precision and settings are not known",
            todo="capture it beside the engine: `forkgate environment capture --pid PID --url URL -o FILE`",
        )
        return
    found = environment_diff.compare(a.environment, b.environment)
    invariant = [batch_invariant(side.fields) for side in (a, b)]
    for one in found.differences:
        if one.field not in (_DIGEST, _IMAGE):
            yield _difference(one, a, b, all(invariant))
    if not all(invariant):
        yield _batches(a, b, invariant)
    for one in found.unknown:
        yield from _unknown(one.field, one.a, one.b, a, b)
    for field in found.unknown_in_both:
        yield from _unknown(field, a.fields[field], b.fields[field], a, b)


def _difference(one: environment_diff.Difference, a: Side, b: Side, invariant: bool) -> Obstacle:
    weight = _OF_LABEL[moves(one.field, a.fields, b.fields)]
    levels: tuple[str, ...] = (ENVIRONMENT, TOKEN)
    why = one.why
    if idle(one.field, a.fields, b.fields):
        weight, levels, why = Weight.RARELY, (), "nothing of either engine uses it"
    elif weight is Weight.RARELY:
        levels = ()
    elif by_nature(one.field):
        weight = Weight.NATURE
    elif of_batches(one.field) and invariant:
        levels = (ENVIRONMENT,)
        why += "; both say that their kernels do not depend on the batch, so tokens need not move"
    return Obstacle(
        weight=weight,
        levels=levels,
        what=one.field,
        a=_text(one.a),
        b=_text(one.b),
        why=why,
        todo=advice(one.field),
    )


def _batches(a: Side, b: Side, invariant: list[bool]) -> Obstacle:
    who = " and ".join(side.name for side, one in zip((a, b), invariant, strict=True) if not one)
    return Obstacle(
        weight=Weight.PERHAPS,
        levels=(TOKEN,),
        what="batches",
        why=f"{who}: nothing says that a request's neighbours do not move its numbers, so near ties may flip "
        "even between two runs of one environment",
        todo="start with the settings that `forkgate settings ENGINE --level token` prints",
    )


def _unknown(field: str, left: Any, right: Any, a: Side, b: Side) -> Iterator[Obstacle]:
    label = moves(field, a.fields, b.fields)
    if field in (_DIGEST, _IMAGE) or label == RARELY or idle(field, a.fields, b.fields):
        return
    told = [
        (side.name, value.reason)
        for side, value in ((a, left), (b, right))
        if isinstance(value, UnknownField)
    ]
    same = len(told) == 2 and told[0][1] == told[1][1]
    why = told[0][1] if same else "; ".join(f"{name}: {reason}" for name, reason in told)
    yield Obstacle(
        weight=Weight.UNKNOWN,
        # Of tokens only what moves them by nature: of the rest, evidence tells more than a name would.
        levels=(ENVIRONMENT, TOKEN) if by_nature(field) else (ENVIRONMENT,),
        what=field,
        a=_text(left),
        b=_text(right),
        why=why,
        todo="capture both beside their engines (--pid with --url), or say that you know it equal: "
        f"--vouch {field}",
        vouchable=True,
    )


def _text(value: Any) -> str:
    if isinstance(value, UnknownField):
        return "unknown"
    if isinstance(value, environment_diff.NotSet):
        return "not set"
    text = shown(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + " ..."
