"""YAML text → plain data, and the line that each path stands on.

YAML 1.2 through ruamel's safe, pure reader: no tags that build objects, ``yes`` is a string, a key that
occurs twice is an error. Anchors and merges work as in any YAML file.
"""

from __future__ import annotations

from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from forkgate.config.problems import ConfigError, Problem
from policies.yaml_text import too_much

MAX_FILE_BYTES = 1_048_576
"""A configuration is a page or two; far more is somebody else's file."""


def key_path(parent: str, key: object) -> str:
    """``limits`` and ``body_bytes`` → ``limits.body_bytes``."""
    return f"{parent}.{key}" if parent else str(key)


def parse(text: str, file: str) -> tuple[Any, dict[str, int]]:
    """Return the data and ``path → 1-based line``.

    Raises:
        ConfigError: the text is not YAML, or a key occurs twice.
    """
    if len(text) > MAX_FILE_BYTES:
        raise ConfigError(
            file,
            [
                Problem(
                    path="",
                    message=f"{len(text)} characters, more than the {MAX_FILE_BYTES} of any real file",
                )
            ],
        )
    try:
        node = _reader().compose(text)
        if (problem := too_much(node)) is not None:
            raise ConfigError(file, [Problem(path="", message=problem)])
        data = _reader().load(text)
    except DuplicateKeyError as error:
        raise ConfigError(file, [_duplicate(error)]) from None
    except MarkedYAMLError as error:
        raise ConfigError(file, [_syntax(error)]) from None
    except RecursionError:
        raise ConfigError(
            file, [Problem(path="", message="not YAML: brackets in brackets without end")]
        ) from None
    except (YAMLError, ValueError) as error:
        # A value that its tag does not fit (a 13th month): ruamel lets it through.
        raise ConfigError(file, [Problem(path="", message=f"not YAML: {error}")]) from None
    lines: dict[str, int] = {}
    if node is not None:
        _mark(node, "", lines)
    return data, lines


def _reader() -> YAML:
    reader = YAML(typ="safe", pure=True)
    reader.allow_duplicate_keys = False
    return reader


def _duplicate(error: DuplicateKeyError) -> Problem:
    mark = error.problem_mark
    # ruamel: 'found duplicate key "home" with value ...'
    key = str(error.problem).split('"')[1] if '"' in str(error.problem) else "?"
    return Problem(
        path="",
        message=f"the key {key!r} occurs twice in one mapping, keep one of them",
        line=mark.line + 1 if mark is not None else None,
    )


def _syntax(error: MarkedYAMLError) -> Problem:
    mark = error.problem_mark or error.context_mark
    what = " ".join(part for part in (error.context, error.problem) if part)
    return Problem(path="", message=f"not YAML: {what}", line=mark.line + 1 if mark is not None else None)


def _mark(node: Node, path: str, lines: dict[str, int]) -> None:
    """Fill ``lines`` for the tree under ``node``. An anchor's copy keeps the first line seen."""
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, MappingNode):
        for key, value in node.value:
            if isinstance(key, ScalarNode):
                child = key_path(path, key.value)
                lines[child] = key.start_mark.line + 1
                _mark(value, child, lines)
    elif isinstance(node, SequenceNode):
        for index, value in enumerate(node.value):
            _mark(value, f"{path}[{index}]", lines)
