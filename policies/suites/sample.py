"""One frozen question, and how its answers are scored.

A sample is asked exactly as a client would ask it: ``messages`` through the chat template, or ``prompt``
through the tokenizer alone. What it *proves* stands beside it, each part read by one gate:

===============  =============================================================================
``rules``        each must hold of every answer (gate ``rule_cases``)
``answer``       the share of right answers (gate ``accuracy``)
``structured``   the answer is data of this shape (gate ``structured_output``)
===============  =============================================================================

Every sample counts for the gates of length and refusal.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Exact(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="exact"
):
    """The answer is one of these texts, after :attr:`strip` and :attr:`ignore_case`."""

    expected: tuple[str, ...]
    strip: bool = True
    ignore_case: bool = False


class Regex(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="regex"
):
    """The answer holds a match of ``pattern`` (Python's ``re.search``), or must not."""

    pattern: str
    must_match: bool = True
    ignore_case: bool = False


class JsonSchema(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="json_schema"
):
    """The answer is one JSON value that this JSON Schema (2020-12) accepts."""

    schema: dict[str, Any]
    fenced: bool = False
    """Also take the first ```` ``` ```` block of an answer that wraps its JSON in prose."""


class Numeric(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="numeric"
):
    """The last number in the answer is within ``tolerance`` of ``expected``."""

    expected: float
    tolerance: float = 0.0


class PythonCall(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="python"
):
    """A function of the user's own: ``score(answer: str, sample: dict, **arguments) -> float`` from 0 to 1.

    The file is named by the policy (``suites.NAME.scorers``), never by a sample: samples are data. It runs in
    a child process with a time limit.
    """

    scorer: str
    """Name under ``suites.NAME.scorers``."""
    arguments: dict[str, Any] = {}
    """Handed to the function as keyword arguments."""


Check = Exact | Regex | JsonSchema | Numeric | PythonCall


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


class Sample(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One line of a suite. Exactly one of ``messages`` and ``prompt`` is given."""

    id: str
    """Unique in the suite."""
    category: str
    """For tables: ``short``, ``long_context``, ``chinese``, ``code``, ``structured_output``, ``near_stop``,
    ``low_margin``, or any word of your own."""
    template: str
    """What it was made from. Samples of one template are alike; no template should dominate a suite."""
    messages: tuple[Message, ...] = ()
    prompt: str | None = None
    max_tokens: int = 64
    temperature: float = 0.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    rules: tuple[Check, ...] = ()
    answer: Check | None = None
    structured: JsonSchema | None = None
    found: dict[str, Any] = {}
    """How it was found, where a model was run to find it: the model, the position, the margin in nats. Never
    sent, never scored."""
