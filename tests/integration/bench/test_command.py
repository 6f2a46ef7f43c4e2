"""``python -m bench`` as a script sees it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from bench import peers
from bench.machine import BenchError
from tests.support.waiting import LIMIT_S

ROOT = Path(__file__).resolve().parents[3]


def _bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "bench", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S
    )


def test_last_line_on_stdout_is_one_json_object_with_the_keys_asked_for() -> None:
    done = _bench("--json", "--quick", "--only", "flip_p95_ms", "flip_fsync_ms")
    assert done.returncode in (0, 1), done.stderr  # measured; how fast is not this test's matter
    told = orjson.loads(done.stdout.splitlines()[-1])
    assert told["flip_p95_ms"] > 0
    assert told["flip_fsync_ms"] > 0
    assert told["bars"] == {"flip_p95_ms": "< 50", "flip_fsync_ms": "-"}
    assert told["detail"]["flip_p95_ms"]["flips"] == 20
    assert told["detail"]["flip_p95_ms"]["canary_requests_during"] > 0
    assert "flip_p95_ms" in done.stderr  # the table for people


def test_unknown_figure_is_a_usage_error() -> None:
    done = _bench("--only", "speed")
    assert done.returncode == 2
    assert "cpu_passthrough_vs_envoy" in done.stderr


def test_missing_peer_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peers, "_VENV", tmp_path)
    with pytest.raises(BenchError, match="make bench"):
        peers._binary("envoy")


def test_envoy_has_one_route_and_mirrors_only_when_asked() -> None:
    plain, mirroring = (orjson.dumps(peers.envoy_config(9001, port)) for port in (None, 9002))
    assert b"request_mirror_policies" not in plain
    assert b'"request_mirror_policies":[{"cluster":"shadow"' in mirroring
    for config in (plain, mirroring):
        assert b"access_log" not in config
        assert b"tracing" not in config
