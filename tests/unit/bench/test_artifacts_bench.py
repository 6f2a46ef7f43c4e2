"""The bench of artifact hashing: it measures what it says, and voids a race that was none."""

from __future__ import annotations

import json
import pathlib

import pytest

from bench import artifacts
from bench.artifacts import Sizes
from bench.machine import BenchError
from engines.identity.artifact import record_artifact

TINY = Sizes(shards=2, shard_mib=1, small_files=5, rounds=2)


def test_the_files_it_writes_are_a_whole_model(tmp_path: pathlib.Path) -> None:
    record = record_artifact(artifacts.shards(tmp_path / "m", 3, 1000))
    assert [file.header["parameters"] for file in record.files if file.header] == [1000] * 3


def test_the_last_line_is_json_with_the_bars(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(artifacts, "QUICK", TINY)
    monkeypatch.setattr("sys.argv", ["artifacts", "--quick", "--json", "--folder", str(tmp_path)])
    status = artifacts.main()
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["bars"] == {"record_vs_sha256sum": "≤ 1.2", "cached_verify_s": "< 1"}
    low, high = told["intervals"]["record_vs_sha256sum"]
    assert 0 < low <= told["record_vs_sha256sum"] <= high
    assert told["detail"]["cached_verify_s"]["files"] == 5
    assert status == (0 if all(told["holds"].values()) else 1)
    assert list(tmp_path.iterdir()) == []


def test_other_sums_than_sha256sums_void_the_race(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = artifacts.shards(tmp_path / "m", 1, 1000)
    files = [str(path) for path in folder.iterdir()]
    artifacts.check_sums(files, folder, tmp_path / "cache")
    monkeypatch.setattr(artifacts, "peer", lambda *_: f"{'0' * 64}  {files[0]}\n")
    with pytest.raises(BenchError, match="different sums"):
        artifacts.check_sums(files, folder, tmp_path / "cache")


def test_a_peer_that_fails_is_no_measurement(tmp_path: pathlib.Path) -> None:
    with pytest.raises(BenchError, match="sha256sum ended with 123"):
        artifacts.peer(["sha256sum"], [str(tmp_path / "absent")])
