"""The environment record and its digest."""

from __future__ import annotations

import ast
import hashlib
import pathlib
import sys

import pytest

import engines.identity
from engines.identity import Identity, UnknownField, cpu_flags, cpu_model


def test_the_digest_is_of_the_values_and_not_of_their_order() -> None:
    one = Identity(fields={"dtype": "float32", "threads": 1, "files": {"a": "1", "b": "2"}})
    other = Identity(fields={"files": {"b": "2", "a": "1"}, "threads": 1, "dtype": "float32"})
    assert one.digest == other.digest
    text = b'{"fields":{"dtype":"float32","files":{"a":"1","b":"2"},"threads":1},"record":"environment/1"}'
    assert one.digest == "sha256:" + hashlib.sha256(text).hexdigest()
    assert Identity(fields=one.fields, about={"captured_at": "today"}).digest == one.digest


@pytest.mark.parametrize(
    "change", [{"threads": 2}, {"threads": "1"}, {"driver": UnknownField("no GPU")}, {"driver": None}]
)
def test_any_other_value_is_another_digest(change: dict[str, object]) -> None:
    fields = {"dtype": "float32", "threads": 1}
    assert Identity(fields=fields).digest != Identity(fields={**fields, **change}).digest


def test_what_is_unknown_says_why_and_counts() -> None:
    told = Identity(fields={"driver": UnknownField("no GPU")}).to_json()
    assert told["fields"] == {"driver": {"unknown": "no GPU"}}
    assert told["digest"] != Identity(fields={"driver": UnknownField("another reason")}).digest


def test_values_that_are_not_json_are_refused() -> None:
    with pytest.raises(TypeError):
        _ = Identity(fields={"path": pathlib.Path("x")}).digest
    with pytest.raises(ValueError, match=r"fields\.x: nan"):
        _ = Identity(fields={"x": float("nan")}).digest


def test_this_machine_has_a_cpu() -> None:
    assert isinstance(cpu_model(), str)
    flags = cpu_flags()
    assert isinstance(flags, list)
    assert flags == sorted(flags)


def test_the_package_imports_the_standard_library_alone() -> None:
    """It is installed with --no-deps inside an engine's image."""
    folder = pathlib.Path(engines.identity.__file__).parent
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                top = name.partition(".")[0]
                assert top in sys.stdlib_module_names or name.startswith("engines.identity"), (
                    path.name,
                    name,
                )
