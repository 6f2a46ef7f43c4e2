"""Builds ``dist/forkgate-capture.pyz``: environment capture as one file, for inside an engine's container.

The same sources make the same bytes: entries are sorted, have one date and one mode, and are stored without
compression, whose output may differ between versions of zlib. Standard library only.
"""

from __future__ import annotations

import ast
import io
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "dist" / "forkgate-capture.pyz"
ENTRY = "engines.identity.capture_command"
_PACKAGE = "engines.identity"
# The zip format's first day: the only date that says nothing.
_DATE = (1980, 1, 1, 0, 0, 0)
_MAIN = b"""import sys

if sys.version_info < (3, 10):
    sys.stderr.write("forkgate-capture: needs Python 3.10 or newer, this is %d.%d\\n" % sys.version_info[:2])
    sys.exit(2)
from engines.identity.capture_command import main

sys.exit(main())
"""
# The package's own __init__ would bring the adapters; in here there is only identity.
_ENGINES = b'"""forkgate\'s identity package, alone."""\n'


def sources() -> dict[str, Path]:
    """Name in the archive → file, of the entry and every module of identity that it needs."""
    found: dict[str, Path] = {}
    waiting = [ENTRY, _PACKAGE]
    while waiting:
        module = waiting.pop()
        path = ROOT / (module.replace(".", "/") + ".py")
        if not path.is_file():
            path = ROOT / module.replace(".", "/") / "__init__.py"
        name = path.relative_to(ROOT).as_posix()
        if name in found:
            continue
        found[name] = path
        waiting += sorted(_imported(path))
    return dict(sorted(found.items()))


def _imported(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_PACKAGE):
            assert node.module is not None
            found.add(node.module)
            # `from engines.identity import collect_cpu` names a module; of a module, it names what is in it.
            found |= {
                f"{node.module}.{alias.name}"
                for alias in node.names
                if (ROOT / node.module.replace(".", "/") / f"{alias.name}.py").is_file()
            }
    return found


def build() -> bytes:
    """The archive's bytes."""
    entries = {name: path.read_bytes() for name, path in sources().items()}
    entries |= {"__main__.py": _MAIN, "engines/__init__.py": _ENGINES}
    archive = io.BytesIO()
    archive.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(archive, "a", zipfile.ZIP_STORED) as zipped:
        for name in sorted(entries):
            info = zipfile.ZipInfo(name, _DATE)
            info.create_system = 3
            info.external_attr = 0o100644 << 16
            zipped.writestr(info, entries[name])
    return archive.getvalue()


def main() -> int:
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_bytes(build())
    TARGET.chmod(0o755)
    sys.stderr.write(f"{TARGET.relative_to(ROOT)}: {TARGET.stat().st_size:,} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
