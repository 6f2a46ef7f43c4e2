"""The bench over a battery: counts, shares, and folders that are none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bench.attribution import main

DATA = Path(__file__).resolve().parents[1] / "data" / "generations.jsonl.gz"
ENTRIES = [
    {
        "name": "scheduling",
        "baseline": ["bf16", "greedy"],
        "candidate": ["bf16", "greedy_concurrent"],
        "control": ["bf16", "greedy_concurrent"],
        "allowed": ["none", "tie_flip"],
        "must": {"tie_flip": 1.0},
    },
    {
        "name": "damage",
        "baseline": ["fp32", "greedy"],
        "candidate": ["drop", "greedy"],
        "control": ["fp32", "greedy"],
        "allowed": ["distribution_shift"],
        "must": {"distribution_shift": 1.0},
    },
    {
        "name": "template",
        "baseline": ["fp32", "greedy"],
        "candidate": ["fp32", "system_prompt_changed"],
        "control": ["fp32", "greedy"],
        "allowed": ["encoding_mismatch"],
    },
    {
        "name": "declared otherwise",
        "baseline": ["fp32", "greedy"],
        "candidate": ["fp32", "greedy"],
        "control": ["fp32", "greedy"],
        "declare": {"max_tokens": 7},
        "allowed": ["configuration_mismatch"],
    },
]


def battery(folder: Path, entries: list[dict]) -> Path:
    shutil.copy(DATA, folder / "all.jsonl.gz")
    (folder / "pairs.json").write_text(json.dumps(entries))
    return folder


def run(folder: Path, capsys) -> tuple[int, dict]:
    code = main(["--battery", str(folder), "--json"])
    return code, json.loads(capsys.readouterr().out.splitlines()[-1])


def test_real_pairs_get_the_class_of_what_was_changed(tmp_path, capsys):
    code, summary = run(battery(tmp_path, ENTRIES), capsys)
    assert summary == {"pairs": 4, "correct": 4, "benign_as_shift": 0, "missed": []}
    assert code == 0


def test_a_shift_where_none_is_allowed_is_counted_and_fails(tmp_path, capsys):
    wrong = ENTRIES[1] | {"allowed": ["tie_flip"], "must": {"tie_flip": 0.5}}
    code, summary = run(battery(tmp_path, [wrong]), capsys)
    assert summary == {
        "pairs": 1,
        "correct": 0,
        "benign_as_shift": 1,
        "missed": ["damage: tie_flip 0/1 under 0.5"],
    }
    assert code == 1


def test_reasons_are_told_in_words_and_numbers(tmp_path, capsys):
    main(["--battery", str(battery(tmp_path, ENTRIES[:1])), "--reasons"])
    assert "tie_flip: near tie: both tokens within" in capsys.readouterr().out


@pytest.mark.parametrize("missing", ["all.jsonl.gz", "pairs.json"])
def test_a_folder_that_is_no_battery_says_what_is_missing(tmp_path, capsys, missing):
    folder = battery(tmp_path, ENTRIES)
    (folder / missing).unlink()
    assert main(["--battery", str(folder)]) == 2
    assert missing.removeprefix("all") in capsys.readouterr().err


def test_every_labelled_pair_of_the_real_battery_is_in_an_allowed_class(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--battery", str(DATA.parent / "battery"), "--json"]) == 0

    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary == {"pairs": 288, "correct": 288, "benign_as_shift": 0, "missed": []}
