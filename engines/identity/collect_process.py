"""What ``/proc`` tells of a process: its command line, variables, libraries, and where its Python looks.

Another process is read by its PID (root, or the same user). Its engine's workers are its descendants: the
libraries that compute are loaded there and not in the HTTP front.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping

from engines.identity.record import UnknownField
from engines.identity.trouble import ArtifactError

_LARGEST_BYTES = 4 << 20
_PACKAGES = re.compile(r"(/.*?/(?:site|dist)-packages)/")
_LIBRARY = re.compile(r"/lib(cublas|cublasLt|cudnn|nccl|cudart|cuda|torch_cpu|torch_cuda)\.so[.0-9]*$")


class NoProcess(ArtifactError):  # noqa: N818
    """The PID names no process, or one that this user may not look at."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A process as far as it could be read. ``root`` leads to its own file system."""

    arguments: tuple[str, ...] | UnknownField
    variables: Mapping[str, str] | UnknownField
    root: pathlib.Path
    package_folders: tuple[pathlib.Path, ...]
    libraries: Mapping[str, pathlib.Path]
    """Library name (``cublas``) → the file that is mapped, under ``root``."""
    allowed_cpus: int | UnknownField
    own_python: bool
    """Whether this interpreter is the process's, so that it can answer for it."""
    same_root: bool
    """Whether the process sees the same files as we do."""
    interpreter: pathlib.Path | None


def this_process() -> Process:
    """The process that asks: its own variables, and the packages that its Python imports."""
    paths = [*sys.path, sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    return Process(
        arguments=_arguments(pathlib.Path("/proc/self")),
        variables=dict(os.environ),
        root=pathlib.Path("/"),
        package_folders=_folders(pathlib.Path(one) for one in paths if one),
        libraries=_libraries(pathlib.Path("/proc/self"), pathlib.Path("/")),
        allowed_cpus=_allowed(pathlib.Path("/proc/self")),
        own_python=True,
        same_root=True,
        interpreter=pathlib.Path(sys.executable) if sys.executable else None,
    )


def process(pid: int, proc: pathlib.Path = pathlib.Path("/proc")) -> Process:
    """Another process.

    Raises:
        NoProcess: there is none of that PID, or nothing of it may be read.
    """
    place = proc / str(pid)
    if not place.is_dir():
        raise NoProcess(
            f"--pid {pid}: there is no such process here: in a container PIDs are its own, and outside it "
            "they are the host's"
        )
    arguments, variables = _arguments(place), _variables(place)
    if isinstance(arguments, UnknownField) and isinstance(variables, UnknownField):
        raise NoProcess(
            f"--pid {pid}: neither its command line nor its variables can be read: run this as root or as "
            "its user, in the container of the engine or on its host"
        )
    root = place / "root"
    same_root = _same_file(root, proc.parent)
    own = _same_file(place / "exe", pathlib.Path(sys.executable)) if sys.executable else False
    base = proc.parent if same_root else root
    family = [place, *_descendants(pid, proc)]
    libraries: dict[str, pathlib.Path] = {}
    program = _program(place, arguments, variables, base)
    folders: list[pathlib.Path] = _folders_named(place, program, arguments, variables, base)
    if not folders and program is None:
        folders = _folders_of_prefix(pathlib.PurePath(_link(place / "exe")).parent.parent, place, base)
    for member in family:
        libraries = {**_libraries(member, base), **libraries}
        folders += _folders_mapped(member, base)
    return Process(
        arguments=arguments,
        variables=variables,
        root=base,
        package_folders=_folders(folders),
        libraries=libraries,
        allowed_cpus=_allowed(place),
        own_python=own,
        same_root=same_root,
        interpreter=None if program is None else _under(base, program),
    )


def _read(path: pathlib.Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(_LARGEST_BYTES)
    except OSError:
        return None


def _arguments(place: pathlib.Path) -> tuple[str, ...] | UnknownField:
    raw = _read(place / "cmdline")
    if raw is None:
        return UnknownField("the command line of the process may not be read by this user")
    found = tuple(one.decode("utf-8", "backslashreplace") for one in raw.split(b"\0"))
    while found and not found[-1]:
        found = found[:-1]
    return found or UnknownField("the process has no command line (it ended, or belongs to the kernel)")


def _variables(place: pathlib.Path) -> Mapping[str, str] | UnknownField:
    raw = _read(place / "environ")
    if raw is None:
        return UnknownField("the variables of the process may not be read by this user")
    found: dict[str, str] = {}
    for item in raw.split(b"\0"):
        name, separator, value = item.decode("utf-8", "backslashreplace").partition("=")
        if separator:
            found.setdefault(name, value)
    return found


def _maps(place: pathlib.Path) -> list[str]:
    raw = _read(place / "maps") or b""
    paths = (line.split(maxsplit=5) for line in raw.decode("utf-8", "backslashreplace").splitlines())
    return sorted({parts[5] for parts in paths if len(parts) == 6 and parts[5].startswith("/")})


def _libraries(place: pathlib.Path, root: pathlib.Path) -> dict[str, pathlib.Path]:
    found = ((_LIBRARY.search(path), path) for path in _maps(place))
    return {matched[1]: _under(root, path) for matched, path in found if matched}


def _folders_mapped(place: pathlib.Path, root: pathlib.Path) -> list[pathlib.Path]:
    found = (_PACKAGES.match(path) for path in _maps(place))
    return [_under(root, matched[1]) for matched in found if matched]


def _program(
    place: pathlib.Path,
    arguments: tuple[str, ...] | UnknownField,
    variables: Mapping[str, str] | UnknownField,
    root: pathlib.Path,
) -> str | None:
    """The path that the process was started by, which tells a virtual environment; ``exe`` leads past it."""
    if isinstance(arguments, UnknownField):
        return None
    name = arguments[0]
    if name.startswith("/"):
        return name
    if "/" in name:
        folder = _link(place / "cwd")
        return os.path.normpath(f"{folder}/{name}") if folder.startswith("/") else None
    searched = variables.get("PATH", "") if isinstance(variables, Mapping) else ""
    places = (f"{folder}/{name}" for folder in searched.split(":") if folder.startswith("/"))
    return next((one for one in places if _under(root, one).is_file()), None)


def _folders_named(
    place: pathlib.Path,
    program: str | None,
    arguments: tuple[str, ...] | UnknownField,
    variables: Mapping[str, str] | UnknownField,
    root: pathlib.Path,
) -> list[pathlib.Path]:
    """Where the command and the variables point; what is loaded says more, and is added to it."""
    folders: list[pathlib.Path] = []
    if isinstance(variables, Mapping):
        given = variables.get("PYTHONPATH", "").split(":")
        folders += [_under(root, one) for one in given if one.startswith("/")]
    script = arguments[1] if isinstance(arguments, tuple) and len(arguments) > 1 else ""
    for path in (program or "", script):
        if path.startswith("/") and "/bin/" in path:
            folders += _folders_of_prefix(pathlib.PurePath(path).parent.parent, place, root)
    return folders


def _folders_of_prefix(
    prefix: pathlib.PurePath, place: pathlib.Path, root: pathlib.Path
) -> list[pathlib.Path]:
    """Package folders of an installation: of the Python that runs, where it may have several."""
    version = pathlib.PurePath(_link(place / "exe")).name
    found: list[pathlib.Path] = []
    # Debian's own packages lie under /usr, and pip's beside them under /usr/local.
    for one in (str(prefix), *(["/usr/local"] if str(prefix) == "/usr" else [])):
        lib = _under(root, one) / "lib"
        running = re.fullmatch(r"python3\.[0-9]+", version) and (lib / version).is_dir()
        pattern = f"{version}/*-packages" if running else "python3*/*-packages"
        found += sorted(lib.glob(pattern)) if lib.is_dir() else []
    return found


def _link(path: pathlib.Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _folders(paths: Iterable[pathlib.Path]) -> tuple[pathlib.Path, ...]:
    """Folders that are there, each once, in order of appearance."""
    found: dict[pathlib.Path, None] = {}
    for path in paths:
        try:
            if path.is_dir():
                # A link under /proc/PID/root would be resolved in our own file system.
                found[path if str(path).startswith("/proc/") else path.resolve()] = None
        except OSError:
            continue
    return tuple(found)


def _under(root: pathlib.Path, path: str) -> pathlib.Path:
    return root / path.lstrip("/") if path.startswith("/") else root / path


def _allowed(place: pathlib.Path) -> int | UnknownField:
    raw = _read(place / "status") or b""
    matched = re.search(rb"^Cpus_allowed_list:\s*([0-9,-]+)", raw, re.MULTILINE)
    if matched is None:
        return UnknownField("/proc tells no allowed processors of the process")
    count = 0
    for part in matched[1].decode("ascii").split(","):
        low, _, high = part.partition("-")
        count += int(high or low) - int(low) + 1
    return count


def _descendants(pid: int, proc: pathlib.Path) -> list[pathlib.Path]:
    parents: dict[int, list[int]] = {}
    for place in proc.iterdir():
        if not place.name.isdigit():
            continue
        raw = _read(place / "stat")
        if raw is None or b")" not in raw:
            continue
        # pid (comm) state ppid ...; the name may hold blanks and parentheses, so from the last one.
        parts = raw.rpartition(b")")[2].split()
        if len(parts) > 1 and parts[1].isdigit():
            parents.setdefault(int(parts[1]), []).append(int(place.name))
    found, waiting = [], [pid]
    while waiting:
        children = sorted(parents.pop(waiting.pop(0), []))
        found += children
        waiting += children
    return [proc / str(one) for one in found]


def _same_file(a: pathlib.Path, b: pathlib.Path) -> bool:
    try:
        return os.path.samefile(a, b)
    except OSError:
        return False
