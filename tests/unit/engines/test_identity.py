"""The environment record and its digest."""

from __future__ import annotations

import ast
import pathlib
import sys

import pytest

import engines.identity
from engines.identity import Identity, UnknownField, cpu_flags, cpu_model, files_sha256


def test_the_digest_is_of_the_values_and_not_of_their_order() -> None:
    one = Identity(fields={"dtype": "float32", "threads": 1, "files": {"a": "1", "b": "2"}})
    other = Identity(fields={"files": {"b": "2", "a": "1"}, "threads": 1, "dtype": "float32"})
    assert one.digest == other.digest
    # sha256 of {"dtype":"float32","files":{"a":"1","b":"2"},"threads":1}
    assert one.digest == "sha256:58f9b7c36c1bfbe5a1106116cb67c45350e69592445d2a2ec51eec30d3a19449"


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
    with pytest.raises(ValueError, match="Out of range float"):
        _ = Identity(fields={"x": float("nan")}).digest


def test_files_are_hashed_by_name_and_content(tmp_path: pathlib.Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.safetensors").write_bytes(b"abc")
    (tmp_path / "a.json").write_bytes(b"")
    (tmp_path / "notes.txt").write_bytes(b"x")
    assert files_sha256(tmp_path, (".safetensors", ".json")) == {
        "a.json": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
        "sub/b.safetensors": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    }
    with pytest.raises(FileNotFoundError, match="no file ends with"):
        files_sha256(tmp_path, (".gguf",))


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
