"""A standing for a terminal: the answer first, then what stands in the way."""

from __future__ import annotations

from collections.abc import Iterator

from engines.identity.levels import Can, Obstacle, Weight
from forkgate.levels.standing import Standing
from policies.policy import Level

OBSTACLES = 12
"""That a person is shown; --json has them all."""
_NAMES = 8
"""Of unknown fields, on one line."""


def headline(standing: Standing, asked: Level | None = None) -> str:
    """The answer in one line: of the level asked for, else of tokens and of statistics."""
    who = f"{standing.a.name} and {standing.b.name}"
    if asked is not None:
        return f"{who}: {_said(standing, asked)}: {standing.answers[asked].why}"
    token = standing.answers[Level.TOKEN]
    if token.shown or token.can is not Can.NO:
        return f"{who}: {_said(standing, Level.TOKEN)}: {token.why}"
    return f"{who}: {_said(standing, Level.STATISTICAL)}; {_said(standing, Level.TOKEN)}: {token.why}"


def _said(standing: Standing, level: Level) -> str:
    one = standing.answers[level]
    if one.shown:
        return f"{level.value} level shown"
    said = {
        Can.YES: "can be reached, not shown",
        Can.UNLIKELY: "unlikely",
        Can.UNKNOWN: "not known",
        Can.NO: "cannot be reached",
    }
    if level in (Level.ARTIFACT, Level.ENVIRONMENT) and one.can is Can.NO:
        return f"not the same {level.value}"
    return f"{level.value} level {said[one.can]}"


def lines(standing: Standing, asked: Level | None = None) -> list[str]:
    """All of it. With a level asked for, only what stands in its way."""
    told = [headline(standing, asked), "", f"  {'level':<12} {'can be':<9} {'shown':<6} why"]
    told += [
        f"  {level.value:<12} {one.can.value:<9} {'yes' if one.shown else 'no':<6} {one.why}"
        for level, one in standing.answers.items()
    ]
    obstacles = standing.obstacles if asked is None else standing.of(asked)
    if obstacles:
        told += ["", "in the way, the most important first:", *_obstacles(obstacles)]
    if standing.remarks:
        names = ", ".join(one.what for one in standing.remarks)
        told += ["", f"differs, and stands in nobody's way: {names}"]
    if standing.vouched:
        told += ["", f"counted as equal because you vouch for it: {', '.join(standing.vouched)}"]
    return told


def _obstacles(obstacles: tuple[Obstacle, ...]) -> Iterator[str]:
    single = [one for one in obstacles if not (one.weight is Weight.UNKNOWN and one.vouchable)]
    # What to do about several in a row is said once, after the last.
    for one, after in zip(single[:OBSTACLES], (*single[1:OBSTACLES], None), strict=False):
        values = "" if one.a is None and one.b is None else f": {one.a or 'none'} | {one.b or 'none'}"
        yield f"  {one.weight.value:<10} {one.what}{values}  [{', '.join(one.levels)}]"
        yield f"  {'':<10} {one.why}"
        if one.todo and (after is None or one.todo != after.todo):
            yield f"  {'':<10} do: {one.todo}"
    if len(single) > OBSTACLES:
        yield f"  ... and {len(single) - OBSTACLES} more: --json has them all"
    unknown = [one for one in obstacles if one not in single]
    for levels in dict.fromkeys(one.levels for one in unknown):
        of_levels = [one for one in unknown if one.levels == levels]
        names = ", ".join(one.what for one in of_levels[:_NAMES])
        more = f" and {len(of_levels) - _NAMES} more" if len(of_levels) > _NAMES else ""
        yield f"  {'unknown':<10} {names}{more}  [{', '.join(levels)}]"
        yield (
            f"  {'':<10} do: capture beside the engine (--pid with --url, --image-digest); or say what you "
            "know to be equal: --vouch NAME"
        )
