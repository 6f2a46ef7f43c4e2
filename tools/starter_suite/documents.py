"""Long texts with facts planted in them: made of patterned lines, so that nothing in them is anybody's.

A line of filler never states what is asked for: patterns and plants of one document use different words,
which a template's author sees to.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tools.starter_suite.draw import Draw

SIZES = (1000, 1600, 2300, 3300)
"""Characters of filler, in the order of the draw; some 300 to 1,200 tokens of English."""
SIZES_ZH = (260, 420, 620)
"""The same for Chinese, of which a small English vocabulary makes more than one token a character."""


def document(
    lines: Sequence[str],
    plants: Sequence[str],
    slots: Mapping[str, Sequence[Any]],
    *,
    head: str = "",
    joint: str = "\n",
    sizes: Sequence[int] = SIZES,
) -> Callable[[dict[str, Any], Draw], dict[str, Any]]:
    """For ``Template.compute``: gives ``$document``, with every plant once, in order, at drawn depths.

    In ``lines``, ``$i`` counts lines from 1, ``$n`` is a number from 2 to 97, and ``slots`` are drawn anew a
    line. In ``plants``, ``$i`` counts too and all else comes from the template's own values.
    """

    def compute(values: dict[str, Any], draw: Draw) -> dict[str, Any]:
        wanted = draw.pick(sizes)
        made: list[tuple[str, dict[str, Any]]] = []
        length, waiting = 0, draw.shuffled(lines)
        while length < wanted:
            pattern = waiting.pop()
            waiting = waiting or draw.shuffled(lines)
            filling = {slot: draw.pick(among) for slot, among in slots.items()}
            filling["n"] = draw.whole(2, 97)
            made.append((pattern, filling))
            length += len(pattern) + len(joint)
        depths = sorted(draw.below(len(made) + 1) for _ in plants)
        for depth, plant in reversed(list(zip(depths, plants, strict=True))):
            made.insert(depth, (plant, values))
        text = joint.join(
            string.Template(pattern).substitute(filling, i=number)
            for number, (pattern, filling) in enumerate(made, start=1)
        )
        return {"document": string.Template(head).substitute(values) + text}

    return compute
