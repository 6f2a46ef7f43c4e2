"""``forkgate suite check``, as users type it."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

from tests.support.suites import lines, sample


def check(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "mine.jsonl").write_text(text, encoding="utf-8")
    return subprocess.run(
        [sys.executable, "-m", "forkgate", "suite", "check", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


def test_good_suite_is_counted(tmp_path: Path) -> None:
    text = lines(
        sample("a", rules=[{"kind": "regex", "pattern": "x"}]), sample("b"), sample("c", category="code")
    )
    done = check(tmp_path, text, "mine.jsonl")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "mine.jsonl: ok, 3 samples",
        f"sha256: {hashlib.sha256(text.encode()).hexdigest()}",
        "",
        "  short       2",
        "  code        1",
        "",
        "with rules 1, with an answer 0, with structured output 0; all count for length and refusal",
        "1 template, the largest is 100.0%: t 3",
    ]


def test_json_holds_the_digest_that_a_policy_takes(tmp_path: Path) -> None:
    text = lines(sample("a"))
    found = json.loads(check(tmp_path, text, "mine.jsonl", "--json").stdout)
    assert found["ok"]
    assert found["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert found["categories"] == {"short": 1}


def test_bad_suite_is_exit_2_with_every_problem(tmp_path: Path) -> None:
    done = check(tmp_path, lines(sample("a"), sample("a")) + "no json\n", "mine.jsonl")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "mine.jsonl:2: id: 'a' is already the id of line 1; give each sample its own",
        "mine.jsonl:3: column 1: no JSON: Expecting value",
    ]


def test_scorers_that_the_policy_will_name_are_told(tmp_path: Path) -> None:
    text = lines(sample("a", answer={"kind": "python", "scorer": "tone"}))
    assert check(tmp_path, text, "mine.jsonl").returncode == 2
    assert check(tmp_path, text, "mine.jsonl", "--scorer", "tone").returncode == 0


def test_missing_file_is_named(tmp_path: Path) -> None:
    done = check(tmp_path, "", "none.jsonl")
    assert done.returncode == 2
    assert done.stderr == "none.jsonl: cannot be read: No such file or directory\n"


def test_scorer_that_is_not_named_is_told_with_the_option_that_names_it(tmp_path: Path) -> None:
    text = lines(sample("a", answer={"kind": "python", "scorer": "tone"}))
    refused = check(tmp_path, text, "mine.jsonl")
    assert refused.returncode == 2
    assert "--scorer NAME" in refused.stderr
    assert check(tmp_path, text, "mine.jsonl", "--scorer", "tone").returncode == 0
