"""Forty questions that leave a model room: its answers differ from draw to draw."""

from __future__ import annotations

_ASKED = (
    "Write the first two sentences of a story about {}.",
    "Give me one piece of advice about {}.",
    "Describe {} to someone who has never met with it.",
    "Make up a name for a shop that sells things for {} and say why.",
)
_ABOUT = (
    "a lighthouse in winter",
    "learning the violin",
    "a long train journey",
    "growing tomatoes",
    "an old bicycle",
    "the sea at night",
    "moving to a new town",
    "baking bread",
    "a lost letter",
    "walking in the rain",
)

PROMPTS = tuple(asked.format(about) for about in _ABOUT for asked in _ASKED)
