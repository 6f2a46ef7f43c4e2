"""Answers held against texts and patterns."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from policies.scoring.errors import ScoringError


def is_one_of(answer: str, expected: Iterable[str], *, strip: bool = True, ignore_case: bool = False) -> bool:
    """Whether ``answer`` is one of the ``expected`` texts.

    Both sides in Unicode's composed form (NFC), so that an accent written as two characters is the same one.

    Args:
        strip: leave out space at the ends.
        ignore_case: compare case-folded (``ß`` is ``ss``).
    """
    mine = _plain(answer, strip=strip, ignore_case=ignore_case)
    return any(mine == _plain(text, strip=strip, ignore_case=ignore_case) for text in expected)


def has_match(answer: str, pattern: str, *, ignore_case: bool = False) -> bool:
    """Whether ``re.search`` finds ``pattern``. A pattern may run long: the caller keeps a time limit.

    Raises:
        ScoringError: the pattern does not compile, or nests too deeply for this answer.
    """
    try:
        return re.search(pattern, answer, re.IGNORECASE if ignore_case else 0) is not None
    except (re.error, OverflowError, RecursionError) as exc:
        raise ScoringError(f"pattern {pattern!r}: {exc}") from exc


def _plain(text: str, *, strip: bool, ignore_case: bool) -> str:
    text = unicodedata.normalize("NFC", text)
    if strip:
        text = text.strip()
    return unicodedata.normalize("NFC", text.casefold()) if ignore_case else text
