"""As much of PromQL's grammar as the chart's queries use, so that a typing error in one is an error here.

No parser of it is packaged for Python here. This one reads binary expressions with ``on`` and ``ignoring``,
aggregations, functions, selectors with ranges and offsets, numbers; it knows no subqueries and no ``@``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<duration>\d+(?:ms|[smhdwy])(?![a-zA-Z_])) |
    (?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?) |
    (?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*') |
    (?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*) |
    (?P<operator>=~|!~|!=|==|<=|>=|[-+*/%^<>=(){}\[\],])
    )""",
    re.VERBOSE,
)
AGGREGATIONS = frozenset({"avg", "count", "max", "min", "sum", "topk"})
RANGE_FUNCTIONS = frozenset({"changes", "increase", "max_over_time", "rate"})
FUNCTIONS = RANGE_FUNCTIONS | {"absent", "histogram_quantile"}
_BINARY = ({"or"}, {"and", "unless"}, {"==", "!=", "<=", "<", ">=", ">"}, {"+", "-"}, {"*", "/", "%"})
"""Loosest first."""
_WORDS = frozenset({"and", "by", "bool", "group_left", "ignoring", "offset", "on", "or", "unless", "without"})


class PromqlError(Exception):
    """Not PromQL: what, and where."""


@dataclass
class Selector:
    """One metric as a query names it."""

    metric: str
    matchers: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Label → operator and value."""
    ranged: bool = False


@dataclass
class Query:
    """What an expression reads."""

    selectors: list[Selector] = field(default_factory=list)
    grouped: set[str] = field(default_factory=set)
    """Labels that it groups or joins by."""


def parse(text: str) -> Query:
    """Raises PromqlError."""
    reader = _Reader(text)
    reader.binary(0)
    if reader.kind != "end":
        raise reader.wrong("an operator or the end")
    return reader.query


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.query = Query()
        self.advance()

    def advance(self) -> str:
        """The present token; the next one is read."""
        before = getattr(self, "token", "")
        match = _TOKEN.match(self.text, self.at)
        if match is not None:
            self.kind = str(match.lastgroup)
            self.token = match.group(self.kind)
            self.at = match.end()
        elif self.text[self.at :].strip():
            raise PromqlError(f"{self.text!r}: no token at {self.text[self.at :][:20]!r}")
        else:
            self.kind, self.token = "end", ""
        return before

    def wrong(self, wanted: str) -> PromqlError:
        return PromqlError(
            f"{self.text!r}: {wanted} wanted before position {self.at}, there is {self.token!r}"
        )

    def expect(self, token: str) -> None:
        if self.token != token:
            raise self.wrong(repr(token))
        self.advance()

    def binary(self, level: int) -> None:
        if level == len(_BINARY):
            self.unary()
            return
        self.binary(level + 1)
        while self.token in _BINARY[level]:
            self.advance()
            if self.token == "bool":
                self.advance()
            if self.token in ("on", "ignoring"):
                self.advance()
                self.labels()
            self.binary(level + 1)

    def unary(self) -> None:
        if self.token == "-":
            self.advance()
        if self.kind == "number":
            self.advance()
        elif self.token == "(":
            self.advance()
            self.binary(0)
            self.expect(")")
        elif self.kind == "name" and self.token not in _WORDS:
            self.named()
        else:
            raise self.wrong("an expression")

    def named(self) -> None:
        name = self.advance()
        if name in AGGREGATIONS:
            self.grouping()
            self.arguments(name)
            self.grouping()
        elif self.token == "(":
            if name not in FUNCTIONS:
                raise PromqlError(f"{self.text!r}: no function is called {name!r} here")
            before = len(self.query.selectors)
            self.arguments(name)
            for one in self.query.selectors[before:]:
                if name in RANGE_FUNCTIONS and not one.ranged:
                    raise PromqlError(f"{self.text!r}: {name} takes {one.metric} over a range, as [5m]")
        else:
            self.selector(name)

    def arguments(self, name: str) -> None:
        self.expect("(")
        self.binary(0)
        while self.token == ",":
            self.advance()
            self.binary(0)
        if self.token != ")":
            raise self.wrong(f"the end of {name}'s arguments")
        self.advance()

    def grouping(self) -> None:
        if self.token in ("by", "without"):
            self.advance()
            self.labels()

    def labels(self) -> None:
        self.expect("(")
        while self.kind == "name":
            self.query.grouped.add(self.advance())
            if self.token == ",":
                self.advance()
        self.expect(")")

    def selector(self, metric: str) -> None:
        one = Selector(metric)
        if self.token == "{":
            self.advance()
            while self.kind == "name":
                label, operator = self.advance(), self.advance()
                if operator not in ("=", "!=", "=~", "!~") or self.kind != "string":
                    raise self.wrong('a matcher such as label="value"')
                one.matchers[label] = (operator, self.advance()[1:-1])
                if self.token == ",":
                    self.advance()
            self.expect("}")
        if self.token == "[":
            self.advance()
            if self.kind != "duration":
                raise self.wrong("a duration")
            self.advance()
            self.expect("]")
            one.ranged = True
        if self.token == "offset":
            self.advance()
            if self.kind != "duration":
                raise self.wrong("a duration")
            self.advance()
        self.query.selectors.append(one)
