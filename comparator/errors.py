"""The errors of this package."""

from __future__ import annotations


class ComparatorError(Exception):
    """Base of all that ``comparator`` raises on purpose: what, where, what to do."""


class AlignmentError(ComparatorError):
    """The aligner was driven wrongly: an arm that it does not know, or tokens after an arm's end."""
