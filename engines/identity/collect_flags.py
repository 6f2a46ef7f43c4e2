"""What an engine's command line sets: known flags by the record's own names, the rest by name alone.

Only flags of these tables enter a record with their values. A flag that is not in them is told by its name
(it may move numbers), unless it says where the engine listens, logs or reads files, or holds a credential.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from engines.identity.collect_values import field_value, json_value, number_or_text, secret_name
from engines.identity.flag_tables import ON, PLACES, TABLES
from engines.identity.record import UnknownField


def engine_of(arguments: tuple[str, ...] | UnknownField) -> str | None:
    """The engine that a command line starts, by the program and module it names."""
    if isinstance(arguments, UnknownField):
        return None
    head = [pathlib.PurePath(one).name if "/" in one else one for one in arguments[:8]]
    joined = " ".join(head)
    for engine, pattern in (
        ("vllm", r"(?:^| )vllm (?:serve|bench|launch)\b|(?:^| )vllm\.entrypoints\."),
        ("sglang", r"(?:^| )sglang\.launch_server\b|(?:^| )sglang serve\b"),
        ("tensorrt-llm", r"(?:^| )trtllm-serve\b|(?:^| )tensorrt_llm\."),
        ("llama.cpp", r"(?:^| )llama-server(?:$| )|(?:^| )llama_cpp\.server\b"),
        ("forkgate-reference", r"(?:^| )engines\.reference(?:$| )|(?:^| )forkgate engine(?:$| )"),
    ):
        if re.search(pattern, joined):
            return engine
    return None


def flags(engine: str, arguments: tuple[str, ...]) -> dict[str, Any]:
    """The fields that a command line of ``engine`` sets."""
    table, own = TABLES[engine]
    known = {alias: target for names, target in table.items() for alias in names.split()}
    listed = frozenset(own.split())
    fields: dict[str, Any] = {}
    unlisted: set[str] = set()
    for name, value in _pairs(arguments):
        positive = name.removeprefix("no-")
        negated = name != positive and name not in known and name not in listed
        base, _, rest = (positive if negated else name).partition(".")
        target = known.get(base)
        if target is None:
            if base in listed:
                fields[f"engine.flag.{base}"] = _told(value, negated=negated)
            elif _harmless(base):
                unlisted.add(base)
            continue
        field, kind = target if isinstance(target, tuple) else (target, None)
        if kind is not None:
            shown = value is None or value.lower() not in ("false", "0")
            fields[field] = (kind is ON) == (shown and not negated)
        elif rest:  # --compilation-config.mode 3: one key of the flag's JSON
            held = fields.get(field)
            fields[field] = {**(held if isinstance(held, dict) else {}), **json_value({rest: _told(value)})}
        else:
            fields[field] = _told(value, negated=negated)
    halves = [f"precision.kv_cache_dtype.{half}" for half in "kv"]
    if any(half in fields for half in halves):
        fields["precision.kv_cache_dtype"] = {half[-1]: fields.pop(half, "f16") for half in halves}
    fields["engine.flags_unlisted"] = sorted(unlisted)
    return fields


def _harmless(name: str) -> bool:
    """Whether an unlisted flag's name may be told: a name, not a place, and no credential glued to one."""
    if re.fullmatch(r"[A-Za-z][A-Za-z0-9-]{0,59}", name) is None or PLACES.fullmatch(name):
        return False
    return not secret_name(name) and re.search(r"api-?key|token(?!s|iz)|secret|passw|credent", name) is None


def _pairs(arguments: tuple[str, ...]) -> Iterator[tuple[str, str | None]]:
    """Each flag with its value. A negative number is a value; what stands alone belongs to no flag."""
    place = 0
    while place < len(arguments):
        word = arguments[place]
        place += 1
        if not re.match(r"--?[A-Za-z]", word):
            continue
        name, separator, value = word.lstrip("-").partition("=")
        if word.startswith("-O") and word[2:].isdigit():  # vLLM's -O3
            name, separator, value = "O", "=", word[2:]
        if separator:
            yield _normal(name), value
            continue
        following = arguments[place] if place < len(arguments) else None
        if following is not None and (not following.startswith("-") or re.match(r"-[0-9.]", following)):
            place += 1
            yield _normal(name), following
        else:
            yield _normal(name), None


def _normal(name: str) -> str:
    head, dot, rest = name.partition(".")
    return head.replace("_", "-") + dot + rest


def _told(value: str | None, *, negated: bool = False) -> Any:
    if value is None:
        return not negated
    if value.lstrip().startswith(("{", "[")):
        try:
            return field_value(json.loads(value))
        except (ValueError, RecursionError):
            return UnknownField("set, to JSON that cannot be read here")
    return number_or_text(value)


def settings(table: Mapping[str, str], told: Mapping[str, Any]) -> dict[str, Any]:
    """Values of an engine's own document, by ``document's name → record's name``."""
    return {field: field_value(told[name]) for name, field in table.items() if told.get(name) is not None}
