"""What may become a value of a record: short, plain, and no secret.

Values come from command lines, variables and endpoints, any of which may hold a credential, a path or
nonsense. A text enters a record only when it reads like a setting; anything else is named and left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from engines.identity.record import UnknownField

_PLAIN = re.compile(r"[A-Za-z0-9_.,:;+=\[\]() -]{1,200}")
_HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_SECRET_WORDS = frozenset(
    {"key", "apikey", "keys", "token", "secret", "secrets", "password", "passwd", "pwd", "credential"}
    | {"credentials", "auth", "authorization", "cookie", "bearer"}
)
# Forms of credentials that are in wide use: a hub's and an API's keys, a JSON web token, cloud keys.
_SECRET_FORM = re.compile(
    r"(?i)(?:^|[^a-z0-9])(?:hf_[a-z0-9]{8}|sk-[a-z0-9_-]{8}|gh[pousr]_[a-z0-9]{8}|glpat-|xox[abp]-|nvapi-"
    r"|eyj[a-z0-9_-]{8,}\.|ak[ir]a[a-z0-9]{8}|bearer )"
)
_LARGEST_DEPTH = 8
_LARGEST_ITEMS = 512
_NOT_RECORDED = "set, to a value that is not recorded: no plain short text (it may be a path or a secret)"


def secret_name(name: str) -> bool:
    """Whether a flag's, variable's or key's name says that its value is a credential."""
    words = re.split(r"[^a-z0-9]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower())
    return not _SECRET_WORDS.isdisjoint(words)


def text_value(text: str) -> str | UnknownField:
    """A text as it may stand in a record."""
    text = text.strip()
    if _PLAIN.fullmatch(text) is None or _SECRET_FORM.search(text) is not None:
        return UnknownField(_NOT_RECORDED)
    return text


def number_or_text(text: str) -> Any:
    """``8`` and ``0.9`` as numbers, ``True`` as true, the rest as :func:`text_value`."""
    text = text.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if re.fullmatch(r"-?[0-9]{1,15}", text):
        return int(text)
    if re.fullmatch(r"-?[0-9]{1,15}\.[0-9]{1,15}", text):
        return float(text)
    return text_value(text)


def json_value(value: Any, depth: int = 0) -> Any:
    """A JSON value with what must not be recorded taken out, place by place.

    A hub's ``owner/name`` is kept, of a path only that it is set, and a key that names a credential goes.
    """
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= 2**53 else str(value)
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # NaN and infinity are no JSON
    if isinstance(value, str):
        if value == "" or (_HUB_NAME.fullmatch(value) and not _SECRET_FORM.search(value)):
            return value
        kept = text_value(value)
        return _left_out() if isinstance(kept, UnknownField) else kept
    if depth >= _LARGEST_DEPTH:
        return _left_out()
    if isinstance(value, (list, tuple)):
        return [json_value(one, depth + 1) for one in value[:_LARGEST_ITEMS]]
    if isinstance(value, Mapping):
        return {
            str(name): json_value(value[name], depth + 1)
            for name in sorted(value, key=str)[:_LARGEST_ITEMS]
            if not secret_name(str(name)) and isinstance(text_value(str(name)), str)
        }
    return json_value(str(value), depth)


def field_value(value: Any) -> Any:
    """:func:`json_value` for a whole field: one that is left out is an unknown field."""
    kept = json_value(value)
    return UnknownField(_NOT_RECORDED) if kept == _left_out() else kept


def _left_out() -> dict[str, str]:
    return {"unknown": _NOT_RECORDED}
