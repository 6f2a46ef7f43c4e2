"""What somebody typed is repeated in errors, and drowns none of them."""

from __future__ import annotations

import pytest

from forkgate.brief import LONGEST_CHARS, brief

LONG = "n" * 10_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no rollout is called 'r'; there are: a, b",
        "x" * LONGEST_CHARS,
        "file.yaml:3: rollouts[0].shadow.percent: 150 is outside 0-100",
        # an apostrophe opens no quotation, and two short ones hold no long one between them
        "it's " + "so many words " * 40 + "that nobody's name is among them",
        "no 'a' here, " + "and more words " * 40 + "nor 'b'",
        "a\n" * 500,
    ],
)
def test_what_is_short_stays_as_it_is(text: str) -> None:
    assert brief(text) == text


@pytest.mark.parametrize("name", [LONG, f"'{LONG}'", f"/tmp/{LONG}/f.yaml", f"'{'two words ' * 1_000}'"])
def test_a_long_name_is_cut_and_what_stands_around_it_is_not(name: str) -> None:
    told = brief(f"no rollout is called {name}; there are: a, b")
    assert told.startswith(f"no rollout is called {name[:80]}")
    assert told.endswith("; there are: a, b")
    assert f"({len(name)} characters)" in told or f"({len(name) + 1} characters)" in told
    assert len(told) < 200


def test_each_long_name_is_cut_alone() -> None:
    assert brief(f"FILE is {LONG} and --config is {LONG}: name one").count("characters)") == 2
