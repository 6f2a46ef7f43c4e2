"""What a good file turns into."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import msgspec
import pytest
from ruamel.yaml import YAML

from forkgate.config import Config, load, loads
from forkgate.config.schema import schema

ROOT = Path(__file__).parents[3]

SMALL = """
state_dir: state
pools:
  - {name: old, endpoints: ["http://127.0.0.1:9001"]}
home: old
"""


def test_example_file_is_valid_as_it_stands() -> None:
    config = load(ROOT / "forkgate.example.yaml")
    assert config.home == "a100"
    assert config.rollouts[0].shadow.percent == 10
    assert [one.tenants or one.percent for one in config.rollouts[0].steps] == [("acme",), 25, 100]


def test_relative_paths_are_anchored_at_the_file(tmp_path: Path) -> None:
    file = tmp_path / "forkgate.yaml"
    file.write_text(SMALL)
    assert load(file).state_dir == str(tmp_path / "state")


def test_absolute_state_dir_stays(tmp_path: Path) -> None:
    assert loads(SMALL.replace("state_dir: state", f"state_dir: {tmp_path}")).state_dir == str(tmp_path)


def test_config_survives_the_way_to_a_child_process() -> None:
    config = load(ROOT / "forkgate.example.yaml")
    assert msgspec.json.decode(msgspec.json.encode(config), type=Config) == config


def test_schema_accepts_the_example() -> None:
    data = YAML(typ="safe", pure=True).load((ROOT / "forkgate.example.yaml").read_text())
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(data, schema())


@pytest.mark.parametrize(
    "stem", ["unknown_key", "percent_range", "missing_key", "port_range", "no_endpoints"]
)
def test_schema_refuses_what_the_reader_refuses(stem: str) -> None:
    file = Path(__file__).parent / "bad_configs" / f"{stem}.yaml"
    data = YAML(typ="safe", pure=True).load(file.read_text())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, schema())


def test_schema_explains_every_key_that_has_a_docstring() -> None:
    definitions = schema()["$defs"]
    assert "rises" not in json.dumps(definitions["Config"])
    assert definitions["Limits"]["properties"]["body_bytes"]["description"].startswith(
        "Request body; more is 413."
    )
    assert "falls back" in definitions["Config"]["properties"]["home"]["description"]


def test_committed_schema_is_current() -> None:
    from forkgate.config.schema import render

    for path, text in render().items():
        assert path.read_text() == text, f"{path} is stale, run `make schema`"
