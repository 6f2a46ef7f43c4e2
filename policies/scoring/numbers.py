"""The last number in an answer.

Read as a number: digits with an optional fraction (``42``, ``0.5``, ``.5``), thousands parted by commas
(``1,234,567.8``), an exponent (``1.5e-3``), a sign directly before it (``-3``, ``+3``, ``−3``). Digits may be
those of any script (``４２``, ``٤٢``); words of any script may touch it behind, and those of scripts without
letters' case before (``答案是42个``). ``45%`` is 45 and ``$1,000`` is 1000.

Not read: digits that a Latin letter runs into (``CO2``, ``v1.2``), a hyphen after a word or number as a sign
(``3-5`` ends in 5), number words (``四十二``), ``3/4`` as a fraction (its last number is 4), powers (``10^8``
ends in 8, of ``10⁸`` only 10 is read), and the comma as a decimal sign: ``12,5`` is the two numbers 12 and 5.
Ask for the format that you score.
"""

from __future__ import annotations

import math
import re

_NUMBER = re.compile(
    r"""
    (?<![A-Za-z0-9_]) (?<![0-9][.])       # not inside a word, nor behind the point of another number
    (?: (?<![)\]%}]) [-+\N{MINUS SIGN}] )?
    (?: (?: [0-9]{1,3} (?:,[0-9]{3})+ (?![0-9]) | [0-9]+ ) (?: [.][0-9]+ )?
      | (?<![.]) [.][0-9]+ )
    (?: [eE] [-+]? [0-9]+ (?![A-Za-z0-9_]) )?
    """,
    re.VERBOSE,
)


def last_number(answer: str) -> float | None:
    """The last number in ``answer``; None when it holds none, or one too large to be finite."""
    found = [match[0] for match in _NUMBER.finditer(_ascii_digits(answer))]
    if not found:
        return None
    value = float(found[-1].replace(",", "").replace("\N{MINUS SIGN}", "-"))
    return value if math.isfinite(value) else None


def is_number(answer: str, expected: float, tolerance: float) -> bool:
    """Whether the last number in ``answer`` is within ``tolerance`` of ``expected``."""
    found = last_number(answer)
    return found is not None and abs(found - expected) <= tolerance


def _ascii_digits(text: str) -> str:
    if text.isascii():
        return text
    digits = {
        ord(char): str(int(char)) for char in set(text) if not char.isascii() and char.isdecimal()
    } | _WIDE
    return text.translate(digits)


_WIDE = {0xFF0B: "+", 0xFF0D: "-", 0xFF0E: "."}
"""Full-width plus, minus and point. A full-width comma parts a list, never thousands."""
