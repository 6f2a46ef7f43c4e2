"""Generated code is what its source says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check_generated, proto


def test_the_links_code_is_current() -> None:
    assert (
        proto.render().items()
        <= {path: path.read_text() for path in proto.TARGET.iterdir() if path.is_file()}.items()
    )


def test_imports_between_generated_modules_are_relative() -> None:
    for path, text in proto.render().items():
        assert "\nimport link_pb2" not in text, path


def test_drift_is_found_and_the_command_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proto, "TARGET", tmp_path)
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text("{}")
    bad.write_text("{ }")
    stale = tmp_path / "old_pb2.py"
    stale.write_text("")
    generators = {
        "make schema": lambda: {good: "{}", bad: "{}", tmp_path / "none.json": "{}"},
        "make proto": dict,
    }
    monkeypatch.setattr(check_generated, "GENERATORS", generators)
    assert check_generated.stale() == [
        f"{bad}: not what its source generates; run `make schema`",
        f"{tmp_path}/none.json: missing; run `make schema`",
        f"{stale}: generated once, no longer; run `make proto`",
    ]
    assert check_generated.main() == 1


def test_a_service_stub_types_each_kind_of_call() -> None:
    stub = proto.render()[proto.TARGET / "link_pb2_grpc.pyi"]
    assert "Submit: grpc.aio.UnaryUnaryMultiCallable[pb.Batch, pb.Receipt]" in stub
    assert "Watch: grpc.aio.StreamStreamMultiCallable[pb.WatchUp, pb.WatchDown]" in stub
