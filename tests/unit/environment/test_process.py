"""What /proc tells of another process, here of a folder that looks like it and of a real child."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from engines.identity.collect_container import container
from engines.identity.collect_cpu import machine
from engines.identity.collect_packages import engine, packages
from engines.identity.collect_process import NoProcess, process, this_process
from engines.identity.record import UnknownField
from engines.identity.trouble import NoArtifact

DIGEST = "sha256:" + "ab" * 32


class FakeProc:
    """A /proc with one engine (7), its worker (8) and a stranger (9); the root is the folder above."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.root = folder
        self.proc = folder / "proc"
        self.packages = folder / "opt/venv/lib/python3.12/site-packages"
        self.packages.mkdir(parents=True)
        for pid, parent in ((7, 1), (8, 7), (9, 1)):
            (self.proc / str(pid)).mkdir(parents=True)
            self.write(pid, "stat", f"{pid} (a (b) c) S {parent} 0 0".encode())
            self.write(pid, "maps", b"")
            self.write(pid, "environ", b"")
            self.write(pid, "cmdline", b"x\0")
            self.write(pid, "status", b"Name:\tx\nCpus_allowed_list:\t0-3,8\n")
            (self.proc / str(pid) / "root").symlink_to(folder)
        self.write(7, "cmdline", b"/opt/venv/bin/python\0/opt/venv/bin/vllm\0serve\0m\0--dtype\0float16\0\0")
        self.write(7, "environ", b"OMP_NUM_THREADS=2\0HF_TOKEN=hf_abcdefgh12345678\0broken\0")

    def write(self, pid: int, name: str, content: bytes) -> None:
        (self.proc / str(pid) / name).write_bytes(content)

    def mapped(self, pid: int, *paths: str) -> None:
        lines = (f"7f00-7f01 r-xp 00000000 00:1 {place} {path}" for place, path in enumerate(paths))
        self.write(pid, "maps", "\n".join(lines).encode())

    def unreadable(self, pid: int, name: str) -> None:
        """A file that cannot be read by anybody, root included: it is a folder."""
        (self.proc / str(pid) / name).unlink()
        (self.proc / str(pid) / name).mkdir()

    def install(self, name: str, version: str) -> None:
        place = self.packages / f"{name.replace('-', '_')}-{version}.dist-info"
        place.mkdir()
        (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def fake(tmp_path: pathlib.Path) -> FakeProc:
    return FakeProc(tmp_path)


def test_an_engine_and_its_worker(fake: FakeProc) -> None:
    fake.mapped(8, "/usr/lib/libnccl.so.2.21.5", str(fake.packages / "torch/lib/libtorch_cpu.so"))
    fake.mapped(9, "/usr/lib/libcudnn.so.9.9.9")
    seen = process(7, fake.proc)
    assert seen.arguments == (
        "/opt/venv/bin/python",
        "/opt/venv/bin/vllm",
        "serve",
        "m",
        "--dtype",
        "float16",
    )
    assert seen.variables == {"OMP_NUM_THREADS": "2", "HF_TOKEN": "hf_abcdefgh12345678"}
    assert set(seen.libraries) == {"nccl", "torch_cpu"}
    assert seen.allowed_cpus == 5
    assert not seen.own_python


def test_of_a_container_its_own_files_are_read_and_not_ours(fake: FakeProc, tmp_path: pathlib.Path) -> None:
    inside = tmp_path / "inside"
    (inside / "etc").mkdir(parents=True)
    (inside / "etc/os-release").write_text('NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="22.04"\n')
    (inside / "usr/local/cuda").mkdir(parents=True)
    (inside / "usr/local/cuda/version.json").write_text('{"cuda": {"name": "x", "version": "12.4.1"}}')
    (inside / "run").mkdir()
    (inside / "run/.containerenv").write_text(f'imageid="{"ef" * 32}"\n')
    (fake.proc / "7/root").unlink()
    (fake.proc / "7/root").symlink_to(inside)
    seen = process(7, fake.proc)
    told = machine(seen)
    assert told["os.name"] == "ubuntu 22.04"
    assert isinstance(told["os.libc"], UnknownField)
    assert isinstance(told["compiler.host"], UnknownField)
    assert "python.version" not in told
    assert packages(seen)[0]["cuda.toolkit"] == "12.4.1"
    assert isinstance(packages(seen)[0]["python.packages_sha256"], UnknownField)
    assert container(seen, None, None) == {"id": "sha256:" + "ef" * 32}


def test_packages_are_read_where_the_process_looks(fake: FakeProc) -> None:
    fake.install("vllm", "0.32.1+g1a2b3c4d5")
    fake.install("torch", "2.9.0+cu128")
    fake.install("nvidia-cudnn-cu12", "9.10.2.21")
    fake.install("pluggy", "1.6.0")
    fake.install("bad-version", "1.0$(id)")
    (fake.packages / "vllm").mkdir()
    (fake.packages / "torch").mkdir()
    (fake.packages / "torch/version.py").write_text(
        "from typing import Optional\n__version__ = '2.9.0+cu128'\ncuda: Optional[str] = '12.8'\n"
        "git_version = '0123456789abcdef0123456789abcdef01234567'\n"
    )
    (fake.root / "opt/venv/pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.12.4\n")
    fake.mapped(7, "/usr/lib/libcublas.so.12.8.4.1", "/usr/lib/libnccl.so.2")
    seen = process(7, fake.proc)
    told, every = packages(seen)
    assert told["python.packages.torch"] == "2.9.0+cu128"
    assert "python.packages.pluggy" not in told
    assert every["pluggy"] == "1.6.0"
    assert "bad-version" not in every
    assert (told["cuda.torch"], told["torch.git"][:6]) == ("12.8", "012345")
    assert (told["cudnn.version"], told["cublas.version"]) == ("9.10.2.21", "12.8.4.1")
    assert "nccl.version" not in told  # a major number alone is no version
    assert told["python.version"] == "3.12.4"
    assert engine("vllm", seen, every) == {
        "engine.version": "0.32.1+g1a2b3c4d5",
        "engine.commit": "1a2b3c4d5",
    }
    fake.install("click", "8.1.0")
    assert packages(process(7, fake.proc))[0]["python.packages_sha256"] != told["python.packages_sha256"]


@pytest.mark.parametrize("name", ["cmdline", "environ"])
def test_one_unreadable_file_leaves_its_part_unknown(fake: FakeProc, name: str) -> None:
    fake.unreadable(7, name)
    seen = process(7, fake.proc)
    unread = {"cmdline": seen.arguments, "environ": seen.variables}[name]
    assert isinstance(unread, UnknownField)
    assert "may not be read" in unread.reason
    assert "7" not in unread.reason


def test_a_process_of_which_nothing_may_be_read_is_refused(fake: FakeProc) -> None:
    fake.unreadable(7, "cmdline")
    fake.unreadable(7, "environ")
    with pytest.raises(NoProcess, match="neither its command line nor its variables"):
        process(7, fake.proc)


def test_a_pid_that_is_none_is_refused(fake: FakeProc) -> None:
    with pytest.raises(NoProcess, match="--pid 4: there is no such process here"):
        process(4, fake.proc)


@pytest.mark.parametrize(
    "started_as", ["bin/python", "./bin/../bin/python", "python", "/opt/venv/bin/python"]
)
def test_packages_are_found_however_the_program_was_named(fake: FakeProc, started_as: str) -> None:
    fake.install("vllm", "0.32.1")
    (fake.root / "opt/venv/bin").mkdir()
    (fake.root / "opt/venv/bin/python").touch()
    (fake.proc / "7/cwd").symlink_to("/opt/venv")
    (fake.proc / "7/exe").symlink_to("/usr/bin/python3.12")
    older = fake.packages.parents[1] / "python3.9/site-packages/torch-1.0.dist-info"
    older.mkdir(parents=True)
    (older / "METADATA").write_text("Name: torch\nVersion: 1.0\n")
    fake.write(7, "cmdline", f"{started_as}\0-m\0vllm.entrypoints.openai.api_server\0".encode())
    fake.write(7, "environ", b"PATH=/usr/bin:/opt/venv/bin\0VIRTUAL_ENV=/elsewhere\0")
    assert packages(process(7, fake.proc))[1] == {"vllm": "0.32.1"}


def test_unreadable_maps_and_status_cost_only_what_they_tell(fake: FakeProc) -> None:
    fake.unreadable(7, "maps")
    fake.unreadable(7, "status")
    seen = process(7, fake.proc)
    assert seen.libraries == {}
    assert isinstance(seen.allowed_cpus, UnknownField)


def test_the_image_is_given_or_told_by_a_runtime_s_file(fake: FakeProc) -> None:
    seen = process(7, fake.proc)
    assert container(seen, f"repo@{DIGEST}", None) == {"digest": DIGEST}
    assert container(seen, None, None) == UnknownField(
        "not given, and no file of a container runtime tells it"
    )
    fake.write(7, "environ", f"FORKGATE_IMAGE_DIGEST={DIGEST}\0".encode())
    assert container(process(7, fake.proc), None, None) == {"digest": DIGEST}
    with pytest.raises(NoArtifact, match="is no image digest"):
        container(seen, "repo:latest", None)
    (fake.root / "run").mkdir()
    (fake.root / "run/.containerenv").write_text(f'engine="podman"\nimageid="{"cd" * 32}"\n')
    assert container(seen, None, None) == {"id": "sha256:" + "cd" * 32}


def test_on_a_docker_host_the_container_s_own_file_names_its_image(
    fake: FakeProc, tmp_path: pathlib.Path
) -> None:
    name, docker = "0f" * 32, tmp_path / "docker"
    (docker / name).mkdir(parents=True)
    (docker / name / "config.v2.json").write_text(f'{{"ID": "{name}", "Image": "{DIGEST}"}}')
    fake.write(7, "cgroup", f"0::/system.slice/docker-{name}.scope\n".encode())
    place = fake.proc / "7/cgroup"
    seen = process(7, fake.proc)
    assert container(seen, None, place, docker) == {"id": DIGEST}
    (docker / name / "config.v2.json").write_text('{"Image": ["no digest"]}')
    assert isinstance(container(seen, None, place, docker), UnknownField)
    (fake.root / ".dockerenv").touch()
    told = container(seen, None, place, docker)
    assert isinstance(told, UnknownField)
    assert "FORKGATE_IMAGE_DIGEST" in told.reason


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    started = subprocess.Popen(
        [sys.executable, "-c", "print(flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "NCCL_ALGO": "Tree"},
    )
    assert started.stdout is not None
    started.stdout.readline()
    yield started
    started.communicate(b"\n")


def test_a_real_process_is_read(child: subprocess.Popen[bytes]) -> None:
    seen = process(child.pid)
    assert isinstance(seen.variables, dict)
    assert seen.variables["NCCL_ALGO"] == "Tree"
    assert seen.own_python
    assert seen.same_root
    assert packages(seen)[1]["pytest"] == packages(this_process())[1]["pytest"]
