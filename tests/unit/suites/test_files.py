"""What a policy's suites may be read from, and each way in which they may not."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from forkgate.config.suites import LoadedSuite, load_suite, read_suite
from policies.suite_section import ScorerSection, SuiteSection
from tests.support.suites import lines, loaded, sample

TONE = "def score(answer, sample):\n    return 1.0\n"


UNKNOWN_SCORER = (
    "mine.jsonl:5: answer.scorer: 'tone' is unknown; the policy names none: add it to the policy under "
    "suites.NAME.scorers"
)


def problems(folder: Path, text: str = lines(sample()), **section: Any) -> list[str]:
    """What is wrong with a suite of this text, with the folder's own path taken out."""
    (folder / "mine.jsonl").write_text(text, encoding="utf-8")
    source, found = read_suite("mine", SuiteSection(**{"file": "mine.jsonl", **section}), folder)
    assert (source is None) == bool(found)
    return [message.replace(str(folder), "DIR") for message in found]


def scorer(python: str) -> dict[str, ScorerSection]:
    return {"tone": ScorerSection(python=python)}


USES_TONE = lines(sample(answer={"kind": "python", "scorer": "tone"}))


def test_missing_file_is_named(tmp_path: Path) -> None:
    assert problems(tmp_path, file="none.jsonl") == ["suites.mine.file: no such file: 'DIR/none.jsonl'"]


def test_folder_is_no_suite(tmp_path: Path) -> None:
    assert problems(tmp_path, file=".") == ["suites.mine.file: 'DIR' cannot be read: Is a directory"]


def test_another_file_than_the_digest_says_is_refused(tmp_path: Path) -> None:
    text = lines(sample())
    right, wrong = hashlib.sha256(text.encode()).hexdigest(), "0" * 64
    assert problems(tmp_path, text, sha256=right) == []
    (problem,) = problems(tmp_path, text, sha256=wrong)
    assert problem == (
        f"suites.mine.sha256: mine.jsonl is {right}, not the {wrong} that is asked for: it was edited, or "
        "another file is named"
    )


def test_everything_wrong_with_a_suite_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    both = sample("s2", messages=[{"role": "user", "content": "x"}])
    neither = {key: value for key, value in sample("s3").items() if key != "prompt"}
    missing = {key: value for key, value in sample("s4").items() if key != "category"}
    unknown = sample("s5", answer={"kind": "python", "scorer": "tone"})
    text = lines(sample("s1"), both, neither, missing, unknown, sample("s1"))
    assert problems(tmp_path, text) == [
        "mine.jsonl:2: messages, prompt: both given; a sample has exactly one of them",
        "mine.jsonl:3: messages, prompt: neither given; a sample has exactly one of them",
        "mine.jsonl:4: category: missing; every sample needs it",
        UNKNOWN_SCORER,
        "mine.jsonl:6: id: 's1' is already the id of line 1; give each sample its own",
    ]


def test_missing_scorer_file_is_named(tmp_path: Path) -> None:
    assert problems(tmp_path, USES_TONE, scorers=scorer("tone.py:score")) == [
        "suites.mine.scorers.tone.python: no such file: 'DIR/tone.py'"
    ]


def test_scorer_file_that_is_no_python_is_refused_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "tone.py").write_text("def score(answer, sample):\n    return (1.0\n")
    assert problems(tmp_path, USES_TONE, scorers=scorer("tone.py:score")) == [
        "suites.mine.scorers.tone.python: tone.py:2: no Python: '(' was never closed; correct it"
    ]


def test_scorer_file_without_the_function_says_which_it_has(tmp_path: Path) -> None:
    (tmp_path / "tone.py").write_text("import math\n\ndef judge(answer, sample):\n    return 1.0\n")
    (problem,) = problems(tmp_path, USES_TONE, scorers=scorer("tone.py:score"))
    assert problem == (
        "suites.mine.scorers.tone.python: tone.py has no function 'score' at its top level; it defines "
        "judge, math"
    )


def test_scorer_is_not_run_when_a_policy_is_read(tmp_path: Path) -> None:
    (tmp_path / "tone.py").write_text("raise SystemExit('run')\ndef score(answer, sample):\n    return 1.0\n")
    assert problems(tmp_path, USES_TONE, scorers=scorer("tone.py:score")) == []


def test_scorer_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tone.py").write_bytes(b"# caf\xe9\ndef score(answer, sample):\n    return 1.0\n")
    assert problems(tmp_path, USES_TONE, scorers=scorer("tone.py:score")) == [
        "suites.mine.scorers.tone.python: tone.py: byte 6 is no UTF-8; save the file as UTF-8"
    ]


def test_problems_of_files_and_samples_come_together(tmp_path: Path) -> None:
    assert problems(tmp_path, "{}\n", scorers=scorer("none.py:score"), refusal_rules="rules.yaml") == [
        "suites.mine.scorers.tone.python: no such file: 'DIR/none.py'",
        "suites.mine.refusal_rules: no such file: 'DIR/rules.yaml'",
        "mine.jsonl:1: id: missing; every sample needs it",
        "mine.jsonl:1: category: missing; every sample needs it",
        "mine.jsonl:1: template: missing; every sample needs it",
        "mine.jsonl:1: messages, prompt: neither given; a sample has exactly one of them",
    ]


def test_digest_is_of_samples_scorers_and_their_code(tmp_path: Path) -> None:
    def of(code: str | None = None, **fields: Any) -> LoadedSuite:
        folder = tmp_path / hashlib.sha256(repr((code, fields)).encode()).hexdigest()
        folder.mkdir(exist_ok=True)
        return loaded(folder, sample(**fields), scorers={"tone": code} if code is not None else None)

    one = of()
    assert one.digest == of().digest
    assert one.digest != of(max_tokens=65).digest
    scored = of(TONE)
    assert scored.digest != one.digest
    assert scored.digest != of(TONE + "# edited\n").digest
    assert one.suite.digest == scored.suite.digest


def test_what_was_read_stays_when_the_file_is_edited(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text(lines(sample("before")))
    source, _ = read_suite("mine", SuiteSection(file="mine.jsonl"), tmp_path)
    (tmp_path / "mine.jsonl").write_text(lines(sample("after")))
    assert source is not None
    assert [one.id for one in load_suite(source).suite.samples] == ["before"]


@pytest.mark.parametrize("passes", [1, 5])
def test_suite_asks_every_sample_in_every_pass(passes: int, tmp_path: Path) -> None:
    assert loaded(tmp_path, sample("a"), sample("b"), passes=passes).asks == 2 * passes
