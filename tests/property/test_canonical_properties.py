"""Canonical JSON: what holds for every value."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engines.identity.canonical import canonical, parse

_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=20,
)
# ECMA-262 Number::toString writes nothing else.
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,20}|(0|[1-9]\d*)\.\d*[1-9]|[1-9](\.\d*[1-9])?e[+-][1-9]\d*)")


@settings(deadline=None)
@given(_VALUES)
def test_reading_the_canonical_text_and_writing_it_again_changes_nothing(value: Any) -> None:
    text = canonical(value)
    assert parse(text) == value
    assert canonical(parse(text)) == text


@settings(deadline=None)
@given(_VALUES)
def test_the_way_it_was_written_before_does_not_matter(value: Any) -> None:
    assert canonical(parse(json.dumps(value, indent=3))) == canonical(value)


@settings(deadline=None)
@given(st.dictionaries(_TEXT, st.integers(0, 9)), st.randoms())
def test_the_order_of_keys_does_not_matter(value: dict[str, int], shuffler: Any) -> None:
    items = list(value.items())
    shuffler.shuffle(items)
    assert canonical(dict(items)) == canonical(value)


@settings(deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_written_as_ecmascript_does_and_reads_back_exactly(value: float) -> None:
    text = canonical(value).decode()
    assert _NUMBER.fullmatch(text)
    assert float(text) == value


@settings(deadline=None)
@given(_VALUES, _VALUES)
def test_two_values_have_one_text_only_if_they_are_equal(one: Any, other: Any) -> None:
    if canonical(one) == canonical(other):
        assert one == other
