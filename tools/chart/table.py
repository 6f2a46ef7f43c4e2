"""``VALUES.md``: every value of the chart, its default and its sentence."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from tools.chart.values import Value

HEAD = """# Values of the chart

Generated from [values.yaml](values.yaml) by `make chart`. Keys below `config` that are not listed here are
forkgate's own: `forkgate config schema`.

| value | default | |
|---|---|---|
"""


def text(values: Iterable[Value]) -> str:
    return HEAD + "".join(_rows(values))


def _rows(values: Iterable[Value]) -> Iterator[str]:
    for value in values:
        if value.sentence:
            default = "" if value.children else f"`{_cell(json.dumps(value.default))}`"
            yield f"| `{value.name}` | {default} | {_cell(value.sentence)} |\n"
        yield from _rows(value.children)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
