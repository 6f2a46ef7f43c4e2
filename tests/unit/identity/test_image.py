"""The runtime image: told, found in a container's files, or unknown."""

from __future__ import annotations

import pathlib

import pytest

from engines.identity.image import IMAGE_VARIABLE, UNKNOWN_IMAGE, image
from engines.identity.trouble import NoArtifact

DIGEST = "sha256:" + "0a" * 32


@pytest.fixture
def absent(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.delenv(IMAGE_VARIABLE, raising=False)
    return tmp_path / "absent"


@pytest.mark.parametrize("told", [DIGEST, f"vllm/vllm-openai@{DIGEST}", f"r:5000/a/b:v1@{DIGEST}"])
def test_a_digest_may_stand_behind_a_name(absent: pathlib.Path, told: str) -> None:
    assert image(told, absent) == {"digest": DIGEST}


@pytest.mark.parametrize("told", ["", "vllm:latest", "sha256:0a", DIGEST.upper(), DIGEST + "0"])
def test_what_names_no_one_image_is_refused(absent: pathlib.Path, told: str) -> None:
    with pytest.raises(NoArtifact, match=r"--image-digest: .* is no image digest: give sha256:"):
        image(told, absent)


def test_the_environment_may_tell_it(absent: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(IMAGE_VARIABLE, DIGEST)
    assert image(None, absent) == {"digest": DIGEST}
    monkeypatch.setenv(IMAGE_VARIABLE, "latest")
    with pytest.raises(NoArtifact, match=r"\$FORKGATE_IMAGE_DIGEST: 'latest' is no image digest"):
        image(None, absent)
    monkeypatch.setenv(IMAGE_VARIABLE, "")
    assert image(None, absent) == UNKNOWN_IMAGE


def test_podman_tells_an_image_id_inside_its_containers(absent: pathlib.Path) -> None:
    absent.write_text(f'engine="podman-5.0"\nname="x"\nimage="quay.io/x"\nimageid="{"0a" * 32}"\n')
    assert image(None, absent) == {"id": DIGEST}
    absent.write_text("")  # buildah writes it empty
    assert image(None, absent) == UNKNOWN_IMAGE
