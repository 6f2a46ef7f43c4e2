"""A log line is one constant sentence; names and numbers are fields beside it.

Whoever reads JSON lines can then look for the sentence and count by the fields, and what goes to a collector,
the sentence and named fields alone (``forkgate.telemetry.logs``), says what it is about.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(path for package in ("forkgate", "proxy") for path in (ROOT / package).rglob("*.py"))
LOGGERS = {"log", "_LOG"}
METHODS = {"debug", "info", "warning", "error", "exception", "critical"}
WORDS_OF_OTHERS = {("forkgate/judge/actor.py", '"%s"')}
"""The one line whose words are anybody's: as an argument, it stays on standard error."""


def lines(tree: ast.AST) -> list[ast.Call]:
    """Calls that log."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in METHODS
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id in LOGGERS
    ]


def constant(sentence: ast.expr) -> bool:
    if isinstance(sentence, ast.IfExp):
        return constant(sentence.body) and constant(sentence.orelse)
    return isinstance(sentence, ast.Constant) and "%" not in str(sentence.value)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_line_is_a_constant_sentence_with_fields(path: Path) -> None:
    of = str(path.relative_to(ROOT))
    source = path.read_text("utf-8")
    told = {
        line.lineno: ast.get_source_segment(source, line.args[0])
        for line in lines(ast.parse(source))
        if len(line.args) != 1 or not constant(line.args[0])
    }
    assert [where for where, said in told.items() if (of, said) not in WORDS_OF_OTHERS] == []


def test_the_walk_sees_lines_of_every_kind() -> None:
    bad = ["log.info('%s', x)", "_LOG.error(f'{x}')", "log.warning('a' if x else f'{y}')"]
    for said in bad:
        (line,) = lines(ast.parse(said))
        assert len(line.args) != 1 or not constant(line.args[0])
    assert sum(len(lines(ast.parse(path.read_text("utf-8")))) for path in FILES) > 100
