"""comparator and policies are pure: their syntax trees name nothing that touches the world."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
IMPURE = {
    "aiohttp", "asyncio", "datetime", "grpc", "multiprocessing", "os", "random", "secrets", "select",
    "signal", "socket", "subprocess", "tempfile", "threading", "time", "uuid", "uvloop",
}  # fmt: skip
CALLS = {"__import__", "open", "input", "exec", "eval"}
LEAF = {"os", "sqlite3", "pathlib", "datetime", "uuid"}
"""What the evidence store, which touches a disk and reads dates and IDs, may have, and nobody else."""
ASKED = {"now", "utcnow", "today", "uuid1", "uuid4", "uuid6", "uuid7"}
"""Methods that ask for the present, or for chance."""
FILES = sorted(path for package in ("comparator", "policies") for path in (ROOT / package).rglob("*.py"))


def imported(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            names.add(node.module.split(".")[0])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            names.add(f"{node.func.id}()")
        elif isinstance(node, ast.Attribute) and node.attr in ASKED:
            names.add(f".{node.attr}")
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_reaches_for_the_world(path: Path):
    names = imported(ast.parse(path.read_text("utf-8")))
    forbidden = IMPURE | LEAF | {f"{name}()" for name in CALLS} | {f".{name}" for name in ASKED}
    if path.is_relative_to(ROOT / "comparator" / "evidence"):
        forbidden -= LEAF
    assert names & forbidden == set()


def test_the_walk_sees_every_way_to_import():
    source = (
        "import os.path\nfrom time import sleep\ndef f():\n    import socket\n    __import__('x')\n"
        "open('y')\n"
        "datetime.datetime.now(tz)"
    )
    assert imported(ast.parse(source)) >= {"os", "time", "socket", "__import__()", "open()", ".now"}


def test_the_packages_are_there_to_be_walked():
    assert len(FILES) > 20


def test_only_the_leaf_knows_the_evidence_store():
    paths = [path for path in FILES if not path.is_relative_to(ROOT / "comparator" / "evidence")]
    assert ROOT / "comparator" / "sequential" / "detector.py" in paths
    for path in paths:
        tree = ast.parse(path.read_text("utf-8"))
        modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not any(module and module.startswith("comparator.evidence") for module in modules), path
