"""YAML 1.2 text to plain values: safe, and with duplicate keys refused."""

from __future__ import annotations

from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from policies.errors import PolicyError


def mapping_of(text: str, where: str, needs: str = "level, alpha and gates") -> dict[str, Any]:
    """The mapping that a document holds.

    Args:
        text: one YAML document.
        where: file name or the like, for messages.
        needs: what the mapping must hold, for messages.

    Raises:
        PolicyError: no YAML, a key given twice, or no mapping at the top.
    """
    loader = YAML(typ="safe", pure=True)
    loader.allow_duplicate_keys = False
    try:
        value = loader.load(text)
    except MarkedYAMLError as exc:
        line = f", line {exc.problem_mark.line + 1}" if exc.problem_mark is not None else ""
        problem = " ".join(str(exc.problem or exc.context or "no YAML").split())
        raise PolicyError(f"{where}{line}: {problem}") from exc
    except (YAMLError, ValueError, RecursionError) as exc:
        # A value that its tag does not fit (a 13th month), or brackets without end: ruamel lets them through.
        raise PolicyError(f"{where}: no YAML: {exc}") from exc
    if not isinstance(value, dict):
        kind = "empty" if value is None else f"a {type(value).__name__}"
        raise PolicyError(f"{where}: the file is {kind}; it must be a mapping with {needs}")
    for key in value:
        if not isinstance(key, str):
            raise PolicyError(f"{where}: key {key!r} is no text; put it in quotes")
    return value
