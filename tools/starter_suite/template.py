"""What a sample is made from: a task in words, with slots, and how its answers are scored.

Two templates differ in what they ask for, not only in a noun: a noun is what slots are for.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from policies.suites.sample import Check, JsonSchema, Message, Sample
from tools.starter_suite.draw import Draw

SEED = "forkgate starter suite 1"
"""Changing it changes every sample: the found margins must then be searched again."""

Values = dict[str, Any]


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """``ask`` is the last user turn, with ``$slots`` (``$$`` is a dollar sign).

    Slots are filled in this order: one of ``rows`` (values that belong together), a value each of ``slots``,
    then ``compute``, which sees those and adds what follows from them. The checks see all.
    """

    name: str
    """``category/task``; unique."""
    ask: str
    columns: str = ""
    """Names of the values in a row, separated by spaces."""
    rows: Sequence[tuple[Any, ...]] = ()
    slots: Mapping[str, Sequence[Any]] = {}
    compute: Callable[[Values, Draw], Values] | None = None
    system: str = ""
    before: tuple[tuple[str, str], ...] = ()
    """Earlier turns, (user, assistant), with slots too."""
    raw: bool = False
    """Sent through the tokenizer alone, as ``prompt``."""
    answer: Callable[[Values], Check] | None = None
    rules: Callable[[Values], tuple[Check, ...]] | None = None
    """Carried only by those samples on which the reference model keeps them: see ``search``."""
    structured: Callable[[Values], JsonSchema] | None = None
    max_tokens: int = 32
    temperature: float = 0.0
    top_p: float = 1.0
    stop: tuple[str, ...] = ()

    @property
    def category(self) -> str:
        return self.name.partition("/")[0]


def instances(template: Template, most: int) -> list[Sample]:
    """Up to ``most`` samples that differ in their text, in a drawn order; fewer if it has no more to give.

    The i-th is the same whatever ``most`` is, so that what a search found about it stays true.
    """
    rows = Draw(SEED, template.name, "rows").shuffled(template.rows)
    out: list[Sample] = []
    seen = set()
    for attempt in range(4 * most + 8):
        draw = Draw(SEED, template.name, attempt)
        values: Values = {}
        if rows:
            values.update(zip(template.columns.split(), rows[attempt % len(rows)], strict=True))
        values.update({slot: draw.pick(among) for slot, among in template.slots.items()})
        if template.compute is not None:
            values.update(template.compute(values, draw))
        sample = _filled(template, values, len(out))
        text = digest(sample)
        if text not in seen:
            seen.add(text)
            out.append(sample)
        if len(out) == most:
            break
    return out


def digest(sample: Sample) -> str:
    """Short name of everything that a model is given: what was found by running it is true of this only."""
    given = [sample.messages, sample.prompt, sample.temperature, sample.top_p, sample.stop]
    return hashlib.blake2b(msgspec.json.encode(given), digest_size=6).hexdigest()


def _filled(template: Template, values: Values, index: int) -> Sample:
    def fill(text: str) -> str:
        return string.Template(text).substitute(values)

    turns: list[Message] = []
    if not template.raw:
        if template.system:
            turns.append(Message(role="system", content=fill(template.system)))
        for user, assistant in template.before:
            turns.append(Message(role="user", content=fill(user)))
            turns.append(Message(role="assistant", content=fill(assistant)))
        turns.append(Message(role="user", content=fill(template.ask)))
    return Sample(
        id=f"{template.name.replace('/', '-')}-{index}",
        category=template.category,
        template=template.name,
        messages=tuple(turns),
        prompt=fill(template.ask) if template.raw else None,
        max_tokens=template.max_tokens,
        temperature=template.temperature,
        top_p=template.top_p,
        stop=template.stop,
        rules=template.rules(values) if template.rules else (),
        answer=template.answer(values) if template.answer else None,
        structured=template.structured(values) if template.structured else None,
    )
