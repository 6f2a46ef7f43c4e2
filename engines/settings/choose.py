"""From an engine, a version and a level to the rows that count."""

from __future__ import annotations

import re
from collections.abc import Callable

from engines.settings import llamacpp, reference, sglang, tensorrt_llm, vllm
from engines.settings.values import Choice, Level, Setting, Sheet

SHEETS: dict[str, Callable[[Choice], Sheet]] = {
    "vllm": vllm.sheet,
    "sglang": sglang.sheet,
    "tensorrt-llm": tensorrt_llm.sheet,
    "llama.cpp": llamacpp.sheet,
    "reference": reference.sheet,
}
_ALIASES = {"llamacpp": "llama.cpp", "tensorrt_llm": "tensorrt-llm", "trtllm": "tensorrt-llm"}
_NUMBERS = re.compile(r"[vb]?([0-9]+(?:\.[0-9]+)*)")


class UnknownEngine(ValueError):  # noqa: N818
    """No such engine."""


class NotVerified(ValueError):  # noqa: N818
    """Nothing was looked up for this version, so nothing is said of it."""


def sheet_of(engine: str, choice: Choice, version: str | None = None) -> Sheet:
    """The rows of an engine.

    Args:
        version: of the engine; None takes the one that was looked up.

    Raises:
        UnknownEngine: see the message for those that are known.
        NotVerified: a version outside the range, or one that cannot be read.
        NotOffered: a choice that the engine has no mode for.
    """
    name = _ALIASES.get(engine, engine)
    if name not in SHEETS:
        raise UnknownEngine(f"ENGINE: {engine!r} is not one of {', '.join(SHEETS)}")
    sheet = SHEETS[name](choice)
    if version is None:
        return sheet
    numbers = numbers_of(version)
    if numbers is None:
        raise NotVerified(f"--version: {version!r} is no version that can be compared, like {sheet.since}")
    since, before = numbers_of(sheet.since), numbers_of(sheet.before)
    assert since is not None
    assert before is not None
    if not since <= numbers < before:
        raise NotVerified(
            f"--version: nothing was looked up for {name} {version}, only for {sheet.since} up to but not "
            f"{sheet.before}: flags and defaults change, so nothing is guessed. Compare the rows of "
            f"`forkgate settings {name}` with that version's own --help"
        )
    return sheet


def for_level(sheet: Sheet, level: Level) -> tuple[Setting, ...]:
    """The rows that a level needs, in the sheet's order."""
    return tuple(one for one in sheet.settings if level in one.levels)


def numbers_of(version: str) -> tuple[int, ...] | None:
    """``0.32+cpu`` → (0, 32, 0); a release candidate counts as its release; ``b11434`` → (11434, 0, 0)."""
    found = _NUMBERS.match(version.strip())
    if found is None:
        return None
    numbers = [int(one) for one in found[1].split(".")]
    return tuple([*numbers, 0, 0][: max(3, len(numbers))])
