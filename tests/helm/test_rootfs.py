"""What the image holds beside its base, looked at without a container engine."""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helm import pods
from tests.helm.charts import ROOT, rendered
from tests.helm.charts import containers as containers_of
from tests.helm.charts import pods as pods_of
from tools.rootfs import BASE_PYTHON, UID, VERSION, RootfsError, build
from tools.runtime_lock import LOCK, RUNTIME_LOCK, normalised, pins

CONTAINERFILE = (ROOT / "Containerfile").read_text()
SIZE_MB = 320
"""More than this is something that does not belong there; it was 278 when this was written."""


def packages(rootfs: Path) -> Path:
    return rootfs / "opt" / "forkgate" / "lib" / VERSION / "site-packages"


def test_it_holds_the_runtime_lock_and_forkgate_and_nothing_else(rootfs: Path) -> None:
    found = {
        normalised(path.name.removesuffix(".dist-info").rpartition("-")[0])
        for path in packages(rootfs).glob("*.dist-info")
    }
    assert found == {*pins(RUNTIME_LOCK), "forkgate"}


def test_the_runtime_lock_is_part_of_the_whole_one() -> None:
    assert pins(RUNTIME_LOCK).items() < pins(LOCK).items()
    assert {"torch", "transformers", "pytest", "mypy", "ruff", "helm-python-sdk", "hatchling"}.isdisjoint(
        pins(RUNTIME_LOCK)
    )


def test_no_torch_no_tests_and_no_tools_of_development(rootfs: Path) -> None:
    tops = {path.name for path in packages(rootfs).iterdir()}
    assert {"forkgate", "proxy", "engines", "policies", "comparator"} <= tops
    assert {"torch", "transformers", "pytest", "pip", "setuptools", "tests", "bench", "tools"}.isdisjoint(
        tops
    )
    assert [path for path in packages(rootfs).glob("*/**/tests") if path.is_dir()] == []
    assert list(rootfs.rglob(".git*")) == []


def test_nothing_is_setuid_and_its_user_can_read_everything_and_write_nothing(rootfs: Path) -> None:
    for path in (rootfs, *rootfs.rglob("*")):
        if path.is_symlink():
            continue
        status = path.lstat()
        assert not status.st_mode & (stat.S_ISUID | stat.S_ISGID), path
        assert not status.st_mode & 0o022, path
        if path == rootfs / "var/lib/forkgate":
            assert stat.S_IMODE(status.st_mode) == 0o700
            assert status.st_uid == (UID if os.geteuid() == 0 else os.geteuid())
            continue
        assert status.st_uid == os.geteuid(), path
        assert stat.S_IMODE(status.st_mode) & 0o555 == (0o555 if path.is_dir() else status.st_mode & 0o555)
        assert status.st_mode & stat.S_IROTH, path


def test_every_module_of_forkgate_is_compiled_for_no_read_only_root_compiles_any(rootfs: Path) -> None:
    for source in (packages(rootfs) / "forkgate").rglob("*.py"):
        compiled = source.parent / "__pycache__" / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
        assert compiled.exists(), source
        assert f"/opt/forkgate/lib/{VERSION}/site-packages/forkgate".encode() in compiled.read_bytes()


def test_no_path_of_the_building_machine_is_left_in_what_is_text(rootfs: Path) -> None:
    for path in rootfs.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.suffix in (".cfg", ".pth", ".txt", ".json", ""):
            assert str(ROOT).encode() not in path.read_bytes(), path


def test_its_size_is_what_it_is_known_to_be(rootfs: Path) -> None:
    size_mb = sum(path.lstat().st_size for path in rootfs.rglob("*") if path.is_file()) / 1e6
    print(f"root file system beside the base image: {size_mb:.1f} MB")
    assert size_mb < SIZE_MB


def test_it_is_built_into_an_empty_directory_only(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    with pytest.raises(RootfsError, match="not empty, name a new directory"):
        build(tmp_path)


def test_another_version_than_the_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = tmp_path / "lock"
    lock.write_text("msgspec==0.0.1\n")
    monkeypatch.setattr("tools.rootfs.RUNTIME_LOCK", lock)
    with pytest.raises(RootfsError, match=r"msgspec: .* is installed, the lock says msgspec==0\.0\.1"):
        build(tmp_path / "root")


def test_the_launcher_runs_on_another_machines_python(rootfs: Path, tmp_path: Path) -> None:
    """The tree stands for itself: only the link to the interpreter is the base image's."""
    home = tmp_path / "forkgate"
    (home / "bin").mkdir(parents=True)
    (home / "lib").symlink_to(rootfs / "opt/forkgate/lib")
    (home / "bin/python").symlink_to(pods.BASE / "bin" / VERSION)
    (home / "pyvenv.cfg").write_text(f"home = {pods.BASE / 'bin'}\n")
    launcher = home / "bin/forkgate"
    launcher.write_bytes((rootfs / "opt/forkgate/bin/forkgate").read_bytes())
    launcher.chmod(0o755)
    done = subprocess.run(
        [launcher, "--version"], capture_output=True, text=True, check=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.stdout.startswith("forkgate ")


def test_the_containerfile_is_what_the_chart_and_these_tests_take_it_for() -> None:
    stages = re.findall(r"^FROM (.*)$", CONTAINERFILE, re.MULTILINE)
    assert stages == ["${BASE} AS build", "${BASE}"]
    assert re.search(r"^ARG BASE=\S+:\S+@sha256:[0-9a-f]{64}$", CONTAINERFILE, re.MULTILINE)
    version = VERSION.removeprefix("python")
    assert f"/python:{version}-" in CONTAINERFILE
    assert f"/usr/local/bin/python{version}" == BASE_PYTHON
    assert f'ENTRYPOINT ["{pods.ENTRYPOINT}"]' in CONTAINERFILE
    for name, value in pods.ENVIRONMENT.items():
        assert f"{name}={value}" in CONTAINERFILE
    assert f"USER {UID}:{UID}" in CONTAINERFILE
    for pod in pods_of(rendered("full")):
        assert pod["spec"]["securityContext"]["runAsUser"] == UID
        for one in containers_of(pod):
            assert {"name": "FORKGATE_CONFIG", "value": "/etc/forkgate/config/forkgate.yaml"} in one["env"]
    assert "FORKGATE_CONFIG=/etc/forkgate/config/forkgate.yaml" in CONTAINERFILE
    last = CONTAINERFILE.split("FROM")[-1]
    assert "pip" not in last
    assert "apt" not in last
    assert "HEALTHCHECK" not in last


def test_the_build_is_sent_what_it_copies() -> None:
    allowed = {
        line[1:] for line in (ROOT / ".containerignore").read_text().splitlines() if line.startswith("!")
    }
    assert {"tools", "LICENSE", "README.md", "pyproject.toml", RUNTIME_LOCK.name, LOCK.name} <= allowed
    assert {"forkgate", "proxy", "engines", "policies", "comparator"} <= allowed
    assert all((ROOT / name).exists() for name in allowed)
