"""One bad file per error, each with the exact words that a person reads."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from forkgate.config import ConfigError, load, loads

BAD = Path(__file__).parent / "bad_configs"
FILES = sorted(BAD.glob("*.yaml"))
PREFIX = "# expect: "


def expected(file: Path) -> list[str]:
    """The messages that stand as comments on top of the file."""
    lines = file.read_text().splitlines()
    return [
        line.removeprefix(PREFIX).replace("{base}", str(BAD)) for line in lines if line.startswith(PREFIX)
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_bad_file_is_refused_with_every_reason_in_words(file: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert [str(problem) for problem in caught.value.problems] == expected(file)


def test_problem_names_the_line_it_stands_on() -> None:
    file = BAD / "percent_range.yaml"
    with pytest.raises(ConfigError) as caught:
        load(file)
    (problem,) = caught.value.problems
    line = next(
        number
        for number, text in enumerate(file.read_text().splitlines(), 1)
        if text.endswith("{percent: 150}")
    )
    assert problem.line == line
    assert caught.value.lines() == [f"{file}:{line}: rollouts[0].shadow.percent: 150 is outside 0-100"]


def test_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^/nonexistent/forkgate\.yaml: no such file$"):
        load("/nonexistent/forkgate.yaml")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("home: " + "[" * 100_000, "not YAML: brackets in brackets without end"),
        ("home: 2026-13-45", "not YAML: "),
        ("home: &a [*a]", "an alias stands inside what it is an alias of"),
        (
            "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
            + "".join(f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]\n" for old, new in pairwise("abcdefgh")),
            "more than 100000 values once its aliases are written out",
        ),
    ],
)
def test_yaml_that_would_hang_or_break_its_reader_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loads(text)
    assert str(caught.value.problems[0]).startswith(problem)
