"""YAML 1.2 text to plain values: safe, of a bounded size, and with duplicate keys refused."""

from __future__ import annotations

from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from policies.errors import PolicyError

MOST_CHARACTERS = 1_048_576
"""A file that people write is a page or two; far more is somebody else's."""
MOST_VALUES = 100_000
"""Of a document with every alias written out: a few lines of aliases of aliases can mean billions."""


def mapping_of(text: str, where: str, needs: str = "level, alpha and gates") -> dict[str, Any]:
    """The mapping that a document holds.

    Args:
        text: one YAML document.
        where: file name or the like, for messages.
        needs: what the mapping must hold, for messages.

    Raises:
        PolicyError: no YAML, a key given twice, too much of it, or no mapping at the top.
    """
    if len(text) > MOST_CHARACTERS:
        raise PolicyError(
            f"{where}: {len(text)} characters, more than the {MOST_CHARACTERS} of any real file; name another"
        )
    try:
        problem = too_much(_loader().compose(text))
        if problem is not None:
            raise PolicyError(f"{where}: {problem}")
        value = _loader().load(text)
    except MarkedYAMLError as exc:
        line = f", line {exc.problem_mark.line + 1}" if exc.problem_mark is not None else ""
        problem = " ".join(str(exc.problem or exc.context or "no YAML").split())
        raise PolicyError(f"{where}{line}: {problem}") from exc
    except RecursionError as exc:
        raise PolicyError(f"{where}: no YAML: brackets in brackets without end; correct the file") from exc
    except (YAMLError, ValueError) as exc:
        # A value that its tag does not fit (a 13th month): ruamel lets it through.
        raise PolicyError(f"{where}: no YAML: {exc}") from exc
    if not isinstance(value, dict):
        kind = "empty" if value is None else f"a {type(value).__name__}"
        raise PolicyError(f"{where}: the file is {kind}; it must be a mapping with {needs}")
    for key in value:
        if not isinstance(key, str):
            raise PolicyError(f"{where}: key {key!r} is no text; put it in quotes")
    return value


def too_much(node: Node | None) -> str | None:
    """What is wrong with the size of a composed document, before anything is built of it; None if nothing.

    Aliases share their node, so a document of any meaning is small here; what reads or prints it is not.

    Raises:
        RecursionError: brackets without end.
    """
    sizes: dict[int, int] = {}

    def size(one: Node) -> int:
        known = sizes.get(id(one))
        if known == 0:
            raise _EndlessError
        if known is not None:
            return known
        sizes[id(one)] = 0
        if isinstance(one, MappingNode):
            total = 1 + sum(size(key) + size(value) for key, value in one.value)
        elif isinstance(one, SequenceNode):
            total = 1 + sum(size(value) for value in one.value)
        else:
            total = 1
        sizes[id(one)] = total
        return total

    try:
        total = 0 if node is None else size(node)
    except _EndlessError:
        return "an alias stands inside what it is an alias of, which has no end; write the values out"
    if total <= MOST_VALUES:
        return None
    return f"more than {MOST_VALUES} values once its aliases are written out; write out what is meant"


class _EndlessError(Exception):
    """A node that holds itself."""


def _loader() -> YAML:
    loader = YAML(typ="safe", pure=True)
    loader.allow_duplicate_keys = False
    return loader
