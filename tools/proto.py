"""Generates the link's Python code from its ``.proto``: ``make proto``.

protoc writes absolute imports of sibling modules (``import link_pb2``), which break inside a package; they
are made relative here. Messages get ``.pyi`` stubs from protoc, the service from mypy-protobuf, so that
callers are type-checked.
"""

from __future__ import annotations

import re
import sys
import sysconfig
import tempfile
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proxy" / "link" / "link.proto"
TARGET = ROOT / "proxy" / "link" / "pb"

_INIT = '"""Generated from ``link.proto`` by ``make proto``. Never edited by hand."""\n'
_SIBLING = re.compile(r"^import (\w+_pb2)( as \w+)?$", re.MULTILINE)


class ProtocFailed(Exception):  # noqa: N818
    """protoc said no; its own words are on standard error."""


def render() -> dict[Path, str]:
    """What every generated file must hold, by its place in the repository."""
    from grpc_tools import protoc

    bundled = files("grpc_tools").joinpath("_proto")
    with tempfile.TemporaryDirectory() as scratch:
        # mypy-protobuf's plugin is named by its place: protoc would look for it in PATH only
        plugin = Path(sysconfig.get_path("scripts")) / "protoc-gen-mypy_grpc"
        code = protoc.main(
            [
                "protoc",
                f"-I{PROTO.parent}",
                f"-I{bundled}",
                f"--plugin=protoc-gen-mypy_grpc={plugin}",
                f"--python_out={scratch}",
                f"--pyi_out={scratch}",
                f"--grpc_python_out={scratch}",
                f"--mypy_grpc_out={scratch}",
                str(PROTO),
            ]
        )
        if code != 0:
            raise ProtocFailed(f"{PROTO}: protoc ended with {code}; run `make proto` to see why")
        made = {path.name: path.read_text() for path in sorted(Path(scratch).iterdir())}
    rendered = {TARGET / "__init__.py": _INIT}
    for name, text in made.items():
        rendered[TARGET / name] = _SIBLING.sub(_relative, text)
    return rendered


def _relative(match: re.Match[str]) -> str:
    """``import a_pb2 as x`` → ``from . import a_pb2 as x``."""
    module, alias = match.group(1), match.group(2) or ""
    return f"from . import {module}{alias}"


def main() -> int:
    rendered = render()
    TARGET.mkdir(exist_ok=True)
    for stale in set(TARGET.glob("*.py*")) - set(rendered):
        stale.unlink()
    for path, text in rendered.items():
        path.write_text(text)
        print(path.relative_to(ROOT))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
