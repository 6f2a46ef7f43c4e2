"""What this package refuses."""

from __future__ import annotations

from comparator.errors import ComparatorError


class SequentialError(ComparatorError, ValueError):
    """An argument outside its domain: which one, what it was, what is allowed.

    Also a ``ValueError``, so that a state or a test with such a value cannot be decoded either.
    """
