"""Artifact records of a real model: SmolLM2-135M as safetensors and as the GGUF that it was made from."""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

from engines.identity.artifact import ArtifactRecord, record_artifact
from engines.identity.artifact_diff import diff_artifacts
from engines.identity.artifact_kinds import Role
from engines.identity.hash_cache import HashCache
from engines.identity.locate import locate_artifact
from engines.model import ensure_smollm2, ensure_smollm2_gguf

PARAMETERS = 134_515_008


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> HashCache:
    return HashCache(tmp_path_factory.mktemp("cache") / "sums")


@pytest.fixture(scope="module")
def folder(cache: HashCache) -> ArtifactRecord:
    return record_artifact(ensure_smollm2(), cache=cache)


@pytest.fixture(scope="module")
def gguf(cache: HashCache) -> ArtifactRecord:
    return record_artifact(ensure_smollm2_gguf(), cache=cache)


def test_sums_are_those_of_sha256sum(folder: ArtifactRecord) -> None:
    root = ensure_smollm2()
    paths = [str(root / file.path) for file in folder.files]
    told = subprocess.run(["sha256sum", *paths], capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in told.splitlines()] == [file.sha256 for file in folder.files]
    assert {file.role for file in folder.files} == {
        Role.WEIGHT,
        Role.TOKENIZER,
        Role.TEMPLATE,
        Role.CONFIG,
        Role.GENERATION_CONFIG,
    }


def test_both_headers_tell_the_same_model_in_two_precisions(
    folder: ArtifactRecord, gguf: ArtifactRecord
) -> None:
    (weights,) = (file.header for file in folder.files if file.role is Role.WEIGHT)
    (quantised,) = (file.header for file in gguf.files)
    assert weights is not None
    assert quantised is not None
    assert weights["parameters"] == quantised["parameters"] == PARAMETERS
    assert weights["dtypes"] == {"BF16": 272}
    assert (quantised["architecture"], quantised["quantisation"]) == ("llama", "Q4_1")
    assert quantised["dtypes"] == {"F32": 61, "Q4_1": 210, "Q8_0": 1}


def test_the_chat_template_is_recognised_in_both_containers(
    folder: ArtifactRecord, gguf: ArtifactRecord
) -> None:
    assert [(one.name, one.sha256) for one in folder.templates] == [
        (one.name, one.sha256) for one in gguf.templates
    ]
    found = {one.what: one for one in diff_artifacts(folder, gguf)}
    assert found["template only in A"].moves.value == "no"
    assert found["weight only in B"].moves.value == "surely"


def test_both_are_found_again_under_the_models_folder(
    folder: ArtifactRecord, gguf: ArtifactRecord, cache: HashCache
) -> None:
    root = ensure_smollm2()
    roots = [root, ensure_smollm2_gguf().parent]
    for record, home in ((folder, root), (gguf, ensure_smollm2_gguf().parent)):
        search = locate_artifact(record, roots, cache=cache)
        assert not search.gone
        for one in search.located:
            assert str(pathlib.Path(home, one.file.path)) in one.places
    assert os.path.getsize(ensure_smollm2_gguf()) == gguf.files[0].bytes
