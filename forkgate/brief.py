"""What somebody typed, repeated in an error without drowning it: a name of 10 kB says no more than its
ends."""

from __future__ import annotations

import re

LONGEST_CHARS = 200
"""Of one word, or of one quotation, that is repeated whole; paths and digests are shorter."""
_HEAD_CHARS, _TAIL_CHARS = 80, 20
_LONG = re.compile(rf"(?<![^\s(\[=:])'[^'\n]{{{LONGEST_CHARS + 1},}}'(?!\w)|[^\s']{{{LONGEST_CHARS + 1},}}")
"""A quotation begins after a space or the like: an apostrophe, or the end of another one, does not."""


def brief(text: str) -> str:
    """The text, with each word or quotation of more than :data:`LONGEST_CHARS` cut in its middle."""
    return _LONG.sub(_cut, text)


def _cut(match: re.Match[str]) -> str:
    whole = match[0]
    return f"{whole[:_HEAD_CHARS]}…({len(whole)} characters)…{whole[-_TAIL_CHARS:]}"
