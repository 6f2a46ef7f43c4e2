"""Policies whose suites lie in files: read once, told whole, handed on as read."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from forkgate.config import ConfigError, load
from forkgate.config.policy import MOST_POLICY_BYTES, PolicySource, frozen, read_policies, read_policy
from forkgate.judge.settings import JudgeSettings
from tests.support.suites import lines, sample

POLICY = """
level: statistical
alpha: 0.05
on_fail: hold
gates:
  rule_cases: {suite: mine}
suites:
  mine:
    file: suites/mine.jsonl
    passes: 2
    scorers:
      tone: {python: "scorers/tone.py:score", timeout_s: 2}
"""
CONFIG = """
state_dir: state
pools:
  - {name: old, endpoints: ["http://127.0.0.1:9001"]}
  - {name: new, endpoints: ["http://127.0.0.1:9002"]}
home: old
rollouts:
  - name: r
    baseline: old
    candidate: new
    policy: policies/mine.yaml
    global_seed: s
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration, and beside it a policy with its suite and scorer."""
    for name in ("policies/suites", "policies/scorers"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "forkgate.yaml").write_text(CONFIG)
    (tmp_path / "policies/mine.yaml").write_text(POLICY)
    rules = [{"kind": "python", "scorer": "tone"}]
    (tmp_path / "policies/suites/mine.jsonl").write_text(lines(sample("a", rules=rules), sample("b")))
    (tmp_path / "policies/scorers/tone.py").write_text("def score(answer, sample):\n    return 1.0\n")
    return tmp_path


def policy(folder: Path) -> str:
    return str(folder / "policies/mine.yaml")


def test_files_are_found_beside_the_policy(folder: Path) -> None:
    read = read_policies(load(folder / "forkgate.yaml"))
    assert read.problems == ()
    suite = read.suites["r"]["mine"]
    assert [one.id for one in suite.suite.samples] == ["a", "b"]
    assert (suite.passes, suite.asks) == (2, 4)
    assert read.policies["r"].suite_digests == {"mine": suite.digest}


def test_policys_digest_follows_what_its_files_hold(folder: Path) -> None:
    def digest() -> str:
        source, problems = read_policy(policy(folder))
        assert source is not None, problems
        return frozen(source).policy.digest

    before = digest()
    assert digest() == before
    scorer = folder / "policies/scorers/tone.py"
    scorer.write_text(scorer.read_text() + "# stricter\n")
    with_scorer = digest()
    samples = folder / "policies/suites/mine.jsonl"
    samples.write_text(samples.read_text() + lines(sample("c")))
    assert len({before, with_scorer, digest()}) == 3


def test_judge_is_told_what_was_read_whatever_becomes_of_the_files(folder: Path) -> None:
    config = load(folder / "forkgate.yaml")
    settings = JudgeSettings(
        config=config, policies=read_policies(config).sources, incarnation="i", least_epoch=1
    )
    expected = frozen(settings.policies["r"])
    (folder / "policies/scorers/tone.py").unlink()
    (folder / "policies/suites/mine.jsonl").write_text("gone\n")
    told = msgspec.json.decode(msgspec.json.encode(settings), type=JudgeSettings).policies["r"]
    assert frozen(told) == expected
    assert told.suites["mine"].scorers["tone"].code.startswith("def score")


def test_everything_wrong_with_a_policys_files_is_told_with_the_rollouts_line(folder: Path) -> None:
    (folder / "policies/scorers/tone.py").write_text("def score(:\n")
    (folder / "policies/suites/mine.jsonl").write_text(lines({"id": "a"}, sample("b"), sample("b")))
    with pytest.raises(ConfigError) as caught:
        load(folder / "forkgate.yaml")
    at = f"{folder}/forkgate.yaml:11: rollouts[0].policy: {policy(folder)}: "
    assert caught.value.lines() == [
        f"{at}suites.mine.scorers.tone.python: scorers/tone.py:1: no Python: invalid syntax; correct it",
        f"{at}suites/mine.jsonl:1: category: missing; every sample needs it",
        f"{at}suites/mine.jsonl:1: template: missing; every sample needs it",
        f"{at}suites/mine.jsonl:1: messages, prompt: neither given; a sample has exactly one of them",
        f"{at}suites/mine.jsonl:3: id: 'b' is already the id of line 2; give each sample its own",
    ]


def test_shipped_policy_needs_no_file() -> None:
    source, problems = read_policy("audit")
    assert problems == []
    assert source == PolicySource(where="audit", text="audit")
    assert frozen(source).policy.name == "audit"


def test_a_policy_file_needs_no_slash_and_says_why_it_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("level: token\nalpha: 0.05\ngates: {token_equality: {}}\n")
    source, problems = read_policy("mine.yaml")
    assert problems == []
    assert source is not None
    assert source.where == "mine.yaml"
    Path("binary.yaml").write_bytes(b"level: \xff")
    Path("endless.yaml").write_text("#" * (MOST_POLICY_BYTES + 1))
    refused = {
        name: read_policy(name)[1] for name in (".", "nul\0.yaml", "binary.yaml", "endless.yaml", "no.yaml")
    }
    assert refused == {
        ".": ["'.' cannot be read: Is a directory"],
        "nul\0.yaml": ["'nul\\x00.yaml' cannot be read: embedded null byte"],
        "binary.yaml": ["'binary.yaml' is no UTF-8 text at byte 8; save the file as UTF-8"],
        "endless.yaml": [
            "'endless.yaml' has more than 1048576 bytes, the most that is read; name another file"
        ],
        "no.yaml": ["no such file: 'no.yaml'"],
    }


RATIO = "level: statistical\nalpha: 0.05\ngates: {sample_ratio: {expected_percent: 25}}\n"


def test_sample_ratio_that_expects_other_copies_than_are_asked_for_is_refused(folder: Path) -> None:
    file = folder / "forkgate.yaml"
    Path(policy(folder)).write_text(RATIO)
    text = file.read_text()
    file.write_text(text.rstrip() + "\n    shadow: {percent: 25}\n")
    assert load(file).rollouts[0].shadow.percent == 25.0
    file.write_text(text.rstrip() + "\n    shadow: {percent: 10}\n")
    with pytest.raises(
        ConfigError, match=r"expected_percent: 25 is not the rollout's shadow\.percent, 10; give"
    ):
        load(file)


def test_sample_ratio_is_refused_where_another_rollout_copies_the_same_traffic(folder: Path) -> None:
    file = folder / "forkgate.yaml"
    Path(policy(folder)).write_text(RATIO)
    text = file.read_text().rstrip() + "\n    shadow: {percent: 25}\n"
    other = (
        "{name: other, baseline: old, candidate: new, policy: audit, global_seed: s, shadow: {percent: PP}}"
    )
    second = f"  - {other}\n"
    file.write_text(text + second.replace("PP", "0"))
    load(file)
    file.write_text(text + second.replace("PP", "1"))
    with pytest.raises(
        ConfigError, match=r"gates\.sample_ratio: live records do not tell .* and other copies"
    ):
        load(file)


def test_gate_that_its_suite_could_never_decide_is_refused(folder: Path) -> None:
    (folder / "policies/suites/mine.jsonl").write_text(lines(sample("a"), sample("b")))
    with pytest.raises(ConfigError) as caught:
        load(folder / "forkgate.yaml")
    (problem,) = caught.value.problems
    assert str(problem) == (
        f"rollouts[0].policy: {policy(folder)}: gates.rule_cases: suite 'mine' has no sample with rules: "
        "never decides"
    )


@pytest.mark.parametrize("name", ["audit", "open-answers", "sampling"])
def test_shipped_policies_can_be_used_as_they_are(name: str, folder: Path) -> None:
    file = folder / "forkgate.yaml"
    file.write_text(CONFIG.replace("policies/mine.yaml", name))
    assert read_policies(load(file)).policies["r"].digest.startswith("sha256:")
