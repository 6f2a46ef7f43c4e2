"""The chat template, wherever a model keeps it, under a digest of its own.

One template lives in ``tokenizer_config.json``, in ``chat_template.jinja``, in ``chat_template.json`` or in
a GGUF's metadata. It is recognised by its text as Jinja reads it: line ends of any kind are one, and one line
end at the very end does not count (``keep_trailing_newline`` is off in transformers, vLLM and SGLang).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

_DEFAULT = "default"
_TEXTS = (".jinja", ".jinja2")
_HOLDERS = frozenset({"tokenizer_config.json", "chat_template.json"})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A chat template: its name, its digest (hex SHA-256 of the text as Jinja reads it), where it stands."""

    name: str
    sha256: str
    files: tuple[str, ...]


def template_sha256(text: str) -> str:
    """Hex SHA-256 of a template's text, equal for texts that Jinja reads alike."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return hashlib.sha256(lines.removesuffix("\n").encode("utf-8", "surrogatepass")).hexdigest()


def may_hold_templates(path: str) -> bool:
    """Whether the file at this relative path is one of those that :func:`templates_in` reads."""
    name = path.rpartition("/")[2].lower()
    return name.endswith(_TEXTS) or name in _HOLDERS


def templates_in(path: str, content: bytes) -> dict[str, str]:
    """Name → text of the templates in the file at the relative ``path``; empty for other files.

    Raises:
        ValueError: the file should hold one and does not; the message says what is wrong.
    """
    name = path.rpartition("/")[2].lower()
    if name.endswith(_TEXTS):
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"no template: byte {error.start} is not UTF-8") from None
        stem = path.rpartition("/")[2].rpartition(".")[0]
        return {_DEFAULT if stem == "chat_template" else stem: text}
    if name in _HOLDERS:
        value = json.loads(content)
        return _from_json(value.get("chat_template") if isinstance(value, dict) else None)
    return {}


def _from_json(value: Any) -> dict[str, str]:
    """transformers has written a text, a list of named texts, and an object of them."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {_DEFAULT: value}
    named = isinstance(value, list) and all(isinstance(one, dict) for one in value)
    if named and all(one.keys() >= {"name", "template"} for one in value):
        value = {one["name"]: one["template"] for one in value}
    if isinstance(value, dict) and all(isinstance(text, str) for text in value.values()):
        return dict(value)
    raise ValueError("chat_template: neither a text nor named texts")


def gather(found: Iterable[tuple[str, Mapping[str, str]]]) -> tuple[Template, ...]:
    """Templates of several files, a text that stands in several of them once.

    Args:
        found: a file's relative path, and the name → text of the templates in it.
    """
    places: dict[tuple[str, str], list[str]] = {}
    for path, templates in found:
        for name, text in templates.items():
            places.setdefault((name, template_sha256(text)), []).append(path)
    return tuple(
        Template(name=name, sha256=digest, files=tuple(files))
        for (name, digest), files in sorted(places.items())
    )
