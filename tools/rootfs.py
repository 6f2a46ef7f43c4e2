"""What forkgate's container image holds beside its base image: ``python -m tools.rootfs DIRECTORY``.

The Containerfile calls this in its build stage and copies the result; ``tests/helm`` calls it without any
container engine and looks at what came out. The same files either way:

    opt/forkgate/            a virtual environment: the runtime lock's packages and forkgate's wheel
    etc/passwd, etc/group    root, nobody and the user it runs as
    var/lib/forkgate/        that user's own; a volume is mounted here
    usr/share/doc/forkgate/  licence, lock, example

Packages are copied from the environment that runs this, file by file as they were recorded when they were
installed, and only in the versions that ``requirements-runtime.lock`` names. Nothing is downloaded here.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import os
import shutil
import stat
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from importlib.util import cache_from_source
from pathlib import Path, PurePosixPath
from py_compile import PycInvalidationMode

from tools.runtime_lock import ROOT, RUNTIME_LOCK, pins

UID = 65532
"""The user that the image runs as. Numeric in the Containerfile: Kubernetes can see that it is not root."""
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
BASE_PYTHON = f"/usr/local/bin/{VERSION}"
"""Where the base image has its interpreter."""

_PASSWD = f"""root:x:0:0:root:/root:/usr/sbin/nologin
forkgate:x:{UID}:{UID}:forkgate:/var/lib/forkgate:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""
_GROUP = f"root:x:0:\nforkgate:x:{UID}:\nnogroup:x:65534:\n"
_LAUNCHER = """#!/bin/sh
exec "${0%/*}/python" -m forkgate "$@"
"""
_OF_INSTALLERS = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
"""What pip notes for itself, paths of the building machine among them."""
_MODES = frozenset({0o444, 0o555, 0o644, 0o755})
"""What a file may have: all read it, its owner alone may write."""


class RootfsError(Exception):
    """The tree cannot be built: what, where, what to do."""


def build(root: Path, *, python: str = BASE_PYTHON, link: bool = False) -> None:
    """Make the tree in ``root``, which must be empty or absent.

    Args:
        python: the interpreter that the environment uses where it will run.
        link: packages are hard links to those of the running environment, as far as that goes: for who only
            looks at the tree. Whoever writes to a file there writes to both.

    Raises:
        RootfsError: something is in the way, or the running environment is not what the lock says.
    """
    if root.exists() and any(root.iterdir()):
        raise RootfsError(f"{root}: not empty, name a new directory")
    home = root / "opt" / "forkgate"
    packages = home / "lib" / VERSION / "site-packages"
    packages.mkdir(parents=True)
    for name, line in pins(RUNTIME_LOCK).items():
        _copy(_installed(name, line), packages, link)
    _install_forkgate(packages)
    _environment(home, python)
    for path, text in {"etc/passwd": _PASSWD, "etc/group": _GROUP}.items():
        _write(root / path, text)
    (root / "etc" / "forkgate").mkdir()
    for name in ("LICENSE", "requirements-runtime.lock", "forkgate.example.yaml"):
        _write(root / "usr/share/doc/forkgate" / name, (ROOT / name).read_text())
    for one in (root, *root.rglob("*")):
        if one.is_dir() or one == home / "bin" / "forkgate":
            one.chmod(0o755)
        elif not one.is_symlink() and stat.S_IMODE(one.stat().st_mode) not in _MODES:
            one.chmod(0o644)
    state = root / "var" / "lib" / "forkgate"
    state.mkdir(parents=True)
    for above in (state.parents[1], state.parents[0]):
        above.chmod(0o755)
    state.chmod(0o700)
    if os.geteuid() == 0:
        os.chown(state, UID, UID)


def _installed(name: str, line: str) -> Distribution:
    found = distribution(name)
    if f"=={found.version}" not in line:
        raise RootfsError(f"{name}: {found.version} is installed, the lock says {line}: install the lock")
    return found


def _copy(one: Distribution, packages: Path, link: bool) -> None:
    for relative in _files(one):
        source = Path(str(one.locate_file(str(relative))))
        _copy_file(source, packages / relative, link)
        compiled = Path(cache_from_source(str(source))) if source.suffix == ".py" else None
        if compiled is not None and compiled.exists():
            _copy_file(compiled, packages / relative.parent / "__pycache__" / compiled.name, link)


def _files(one: Distribution) -> Iterator[PurePosixPath]:
    """What belongs into a running system: no scripts, no tests, nothing of the installer's."""
    for path in one.files or ():
        if path.is_absolute() or path.parts[0] == ".." or "__pycache__" in path.parts:
            continue
        if "tests" in path.parts[1:-1] or path.name in _OF_INSTALLERS:
            continue
        yield PurePosixPath(path)


def _copy_file(source: Path, target: Path, link: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if link and stat.S_IMODE(source.stat().st_mode) in _MODES:
        with contextlib.suppress(OSError):  # another file system, or one that has no links
            os.link(source, target)
            return
    shutil.copy2(source, target)  # with its time, by which Python knows compiled code for that of its source


def _install_forkgate(packages: Path) -> None:
    """The wheel that anybody would install, and compiled: a read-only root compiles nothing later."""
    from hatchling.builders.wheel import WheelBuilder

    with tempfile.TemporaryDirectory() as directory:
        wheel = next(WheelBuilder(str(ROOT)).build(directory=directory, versions=["standard"]))
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            archive.extractall(packages)
    for top in {name.split("/")[0] for name in names}:
        if top.endswith(".dist-info"):
            (packages / top / "RECORD").unlink()
            continue
        compileall.compile_dir(
            packages / top,
            quiet=1,
            stripdir=str(packages),
            prependdir=f"/opt/forkgate/lib/{VERSION}/site-packages",
            invalidation_mode=PycInvalidationMode.UNCHECKED_HASH,
        )


def _environment(home: Path, python: str) -> None:
    """What ``python -m venv`` makes, without the paths of this machine."""
    (home / "bin").mkdir()
    (home / "bin" / "python").symlink_to(python)
    _write(home / "bin" / "forkgate", _LAUNCHER)
    _write(home / "pyvenv.cfg", f"home = {Path(python).parent}\ninclude-system-site-packages = false\n")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def main() -> int:
    """Build the tree and say how large it is."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.rootfs", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument(
        "--python", default=BASE_PYTHON, help="the interpreter there; %(default)s unless given"
    )
    arguments = parser.parse_args()
    try:
        build(arguments.directory, python=arguments.python)
    except RootfsError as error:
        print(f"rootfs: {error}", file=sys.stderr)  # noqa: T201
        return 1
    size = sum(path.lstat().st_size for path in arguments.directory.rglob("*") if path.is_file())
    print(f"{arguments.directory}: {size / 1e6:.1f} MB", file=sys.stderr)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
