"""The configurations that the bench starts forkgate with are ones that forkgate takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from bench.cases.judge import SHADOW
from bench.sidecar import EngineStub, configuration
from forkgate.config import load

ENGINE = EngineStub(port=9, pid=1)


@pytest.mark.parametrize(
    ("options", "percent", "canaries"),
    [
        ({"baseline": ENGINE, "candidate": None, "shadow": {}}, None, ()),
        ({"baseline": ENGINE, "candidate": ENGINE, "shadow": SHADOW}, 100, ()),
        ({"baseline": ENGINE, "candidate": ENGINE, "shadow": SHADOW, "canary": True}, 100, ("acme",)),
    ],
    ids=["plain", "shadow", "canary"],
)
def test_configuration_is_taken(
    options: dict[str, Any], percent: float | None, canaries: tuple[str, ...], tmp_path: Path
) -> None:
    file = tmp_path / "forkgate.yaml"
    file.write_bytes(
        orjson.dumps(configuration(tmp_path / "state", live_url="http://127.0.0.1:8", **options))
    )
    config = load(file)
    assert config.home == "live"
    assert [rollout.shadow.percent for rollout in config.rollouts] == ([] if percent is None else [percent])
    moved = [tuple(name for one in rollout.steps for name in one.tenants) for rollout in config.rollouts]
    assert moved == ([] if percent is None else [canaries])
