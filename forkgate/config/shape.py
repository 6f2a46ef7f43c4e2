"""Plain data → frozen structs, reporting everything that is wrong instead of the first thing.

``msgspec.convert`` stops at its first error and names unknown keys without a suggestion. This walks the same
type information (``msgspec.inspect``) field by field, so one run of ``check-config`` shows the whole list.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import inspect as mi

from forkgate.config.problems import Problem, did_you_mean
from forkgate.config.source import key_path

T = TypeVar("T", bound=msgspec.Struct)


def build(kind: type[T], data: Any) -> tuple[T | None, list[Problem]]:
    """Return the struct, or None and every problem of its shape."""
    problems: list[Problem] = []

    def report(path: str, message: str) -> None:
        problems.append(Problem(path=path, message=message))

    _check(mi.type_info(kind), data, "", report)
    if problems:
        return None, problems
    try:
        return msgspec.convert(data, kind), []
    except (msgspec.ValidationError, ValueError) as error:
        # A struct's own __post_init__ refused the values together.
        return None, [Problem(path="", message=str(error))]


Report = Callable[[str, str], None]


def _check(kind: mi.Type, data: Any, path: str, report: Report) -> None:
    if isinstance(kind, mi.Metadata):
        kind = kind.type
    if isinstance(kind, mi.AnyType):
        return
    if isinstance(kind, mi.UnionType):
        _check_union(kind, data, path, report)
    elif isinstance(kind, mi.StructType):
        _check_struct(kind, data, path, report)
    elif isinstance(kind, mi.VarTupleType | mi.ListType | mi.FrozenSetType | mi.SetType):
        _check_list(kind, data, path, report)
    elif isinstance(kind, mi.DictType):
        _check_dict(kind, data, path, report)
    elif isinstance(kind, mi.IntType | mi.FloatType):
        _check_number(kind, data, path, report)
    elif isinstance(kind, mi.StrType):
        _check_string(kind, data, path, report)
    elif isinstance(kind, mi.BoolType):
        if not isinstance(data, bool):
            report(path, f"{_said(data)} is not true or false")
    elif isinstance(kind, mi.EnumType | mi.LiteralType):
        _check_choice(kind, data, path, report)
    else:
        raise TypeError(f"{path}: no reader for {kind!r} in a configuration")


def _check_union(kind: mi.UnionType, data: Any, path: str, report: Report) -> None:
    others = [one for one in kind.types if not isinstance(one, mi.NoneType)]
    if data is None and len(others) < len(kind.types):
        return
    if len(others) == 1:
        _check(others[0], data, path, report)
        return
    tried: list[list[tuple[str, str]]] = []
    for one in others:
        found: list[tuple[str, str]] = []
        _check(one, data, path, lambda where, what, found=found: found.append((where, what)))  # type: ignore[misc]
        if not found:
            return
        tried.append(found)
    # The form that the data comes nearest to has the fewest objections.
    for where, what in min(tried, key=len):
        report(where, what)


def _check_struct(kind: mi.StructType, data: Any, path: str, report: Report) -> None:
    if not isinstance(data, dict):
        report(
            path, f"{_said(data)} is not a mapping of {', '.join(field.encode_name for field in kind.fields)}"
        )
        return
    fields = {field.encode_name: field for field in kind.fields}
    for key in data:
        if key not in fields:
            report(key_path(path, key), f"unknown key, {did_you_mean(str(key), fields)}")
    for name, field in fields.items():
        if name in data:
            _check(field.type, data[name], key_path(path, name), report)
        elif field.required:
            report(key_path(path, name), "missing, and it has no default")


def _check_list(
    kind: mi.VarTupleType | mi.ListType | mi.FrozenSetType | mi.SetType, data: Any, path: str, report: Report
) -> None:
    if not isinstance(data, list):
        report(path, f"{_said(data)} is not a list")
        return
    if kind.min_length is not None and len(data) < kind.min_length:
        report(path, f"holds {len(data)}, at least {kind.min_length} needed")
    for index, item in enumerate(data):
        _check(kind.item_type, item, f"{path}[{index}]", report)


def _check_dict(kind: mi.DictType, data: Any, path: str, report: Report) -> None:
    if not isinstance(data, dict):
        report(path, f"{_said(data)} is not a mapping")
        return
    for key, value in data.items():
        _check(kind.key_type, key, key_path(path, key), report)
        _check(kind.value_type, value, key_path(path, key), report)


def _check_number(kind: mi.IntType | mi.FloatType, data: Any, path: str, report: Report) -> None:
    whole = isinstance(kind, mi.IntType)
    if isinstance(data, bool) or not isinstance(data, int if whole else int | float):
        report(path, f"{_said(data)} is not a {'whole ' if whole else ''}number")
        return
    if not math.isfinite(data):
        report(path, f"{_said(data)} is not a finite number")
        return
    too_small = (kind.ge is not None and data < kind.ge) or (kind.gt is not None and data <= kind.gt)
    too_large = (kind.le is not None and data > kind.le) or (kind.lt is not None and data >= kind.lt)
    if too_small or too_large:
        report(path, f"{_said(data)} is {_range(kind)}")


def _range(kind: mi.IntType | mi.FloatType) -> str:
    low = kind.ge if kind.ge is not None else kind.gt
    high = kind.le if kind.le is not None else kind.lt
    if low is not None and high is not None:
        return f"outside {low:g}-{high:g}" if high < 1e6 else f"outside {low}-{high}"
    if low is not None:
        return f"under {low}, the least allowed" if kind.gt is None else f"not above {low}"
    return f"over {high}, the most allowed"


def _check_string(kind: mi.StrType, data: Any, path: str, report: Report) -> None:
    if not isinstance(data, str):
        hint = ", put it in quotes" if isinstance(data, bool | int | float) else ""
        report(path, f"{_said(data)} is not a string{hint}")
        return
    if kind.min_length and len(data) < kind.min_length:
        report(path, "is empty, and must not be")


def _check_choice(kind: mi.EnumType | mi.LiteralType, data: Any, path: str, report: Report) -> None:
    values = [one.value for one in kind.cls] if isinstance(kind, mi.EnumType) else list(kind.values)
    if data not in values:
        report(path, f"{_said(data)} is not one of {', '.join(str(one) for one in values)}")


def _said(data: Any) -> str:
    """How a person would recognise the value that they wrote."""
    if data is None:
        return "nothing"
    if isinstance(data, bool):
        return "true" if data else "false"
    if isinstance(data, str):
        return repr(data) if len(data) <= 60 else repr(data[:57] + "...")
    if isinstance(data, dict):
        return "a mapping"
    if isinstance(data, list):
        return "a list"
    if isinstance(data, float) and data.is_integer():
        return f"{data:g}"
    return str(data)
