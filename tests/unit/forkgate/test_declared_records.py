"""A pool may declare its records whole: read, checked against their digests, and kept as the judge starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forkgate.config import Config, ConfigError, load
from forkgate.config.declared import declared_records
from tests.unit.comparator.test_evidence_records import ARTIFACT, ENVIRONMENT

TEXT = """
state_dir: state
pools:
  - name: old
    endpoints: ["http://127.0.0.1:9001"]
    environment_record: records/environment.json
    artifact_record: records/artifact.json
    environment_digest: "{digest}"
home: old
"""


def written(tmp_path: Path, *, digest: str = ENVIRONMENT.digest, driver: str | None = None) -> Path:
    folder = tmp_path / "records"
    folder.mkdir()
    environment = ENVIRONMENT.to_json()
    if driver is not None:
        environment["fields"]["driver"] = driver
    (folder / "environment.json").write_text(json.dumps(environment, indent=2))
    (folder / "artifact.json").write_text(json.dumps(ARTIFACT.to_json()))
    file = tmp_path / "forkgate.yaml"
    file.write_text(TEXT.format(digest=digest))
    return file


def refused(file: Path) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(file)
    return [str(problem) for problem in caught.value.problems]


def test_paths_are_relative_to_the_file_and_documents_come_whole(tmp_path: Path) -> None:
    config: Config = load(written(tmp_path))
    environment, artifact = declared_records(config)
    assert (environment.pool, environment.kind, environment.digest) == (
        "old",
        "environment/1",
        ENVIRONMENT.digest,
    )
    assert (artifact.kind, artifact.digest) == ("artifact/1", ARTIFACT.digest)
    assert environment.document == (tmp_path / "records" / "environment.json").read_bytes()


def test_a_record_that_was_changed_is_refused(tmp_path: Path) -> None:
    (said,) = refused(written(tmp_path, driver="580.1"))
    assert said.startswith("pools[0].environment_record: ")
    assert "changed" in said


def test_a_record_that_contradicts_the_declared_digest_is_refused(tmp_path: Path) -> None:
    digest = "sha256:" + "0" * 64
    (said,) = refused(written(tmp_path, digest=digest))
    assert said == (
        f"pools[0].environment_record: its digest is {ENVIRONMENT.digest}, environment_digest says {digest}: "
        "keep the right one"
    )


def test_one_record_in_the_others_place_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path)
    (tmp_path / "records" / "artifact.json").write_text(json.dumps(ENVIRONMENT.to_json()))
    (said,) = refused(file)
    assert said.startswith("pools[0].artifact_record: ")
    assert "artifact/1" in said
