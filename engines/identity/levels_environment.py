"""What of two environments stands in the way, beside their artifacts: what differs, what is not known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from engines.identity import environment_diff
from engines.identity.environment import LIKELY, PERHAPS, RARELY
from engines.identity.levels_fields import advice, batch_invariant, by_nature, idle, moves, of_batches
from engines.identity.levels_values import DIGEST, ENVIRONMENT, IMAGE, TOKEN, Obstacle, Side, Weight
from engines.identity.record import UnknownField
from engines.identity.trouble import shown

_OF_LABEL = {LIKELY: Weight.LIKELY, PERHAPS: Weight.PERHAPS, RARELY: Weight.RARELY}
_SHOWN_CHARACTERS = 100


def obstacles(a: Side, b: Side) -> Iterator[Obstacle]:
    """By the records; those of the image and of the artifact's digest are the artifact's."""
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
        if one.field not in (DIGEST, IMAGE):
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
    if field in (DIGEST, IMAGE) or label == RARELY or idle(field, a.fields, b.fields):
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
