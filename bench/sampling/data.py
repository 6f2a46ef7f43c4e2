"""The sampled answers that the bench resamples, as the repository keeps them.

``environments.json``: a list of :class:`Environment`, each with the total variation distance from its
baseline over whole answers. ``generations.jsonl.gz``: one line an environment and prompt,
``{"environment", "prompt", "answers": [[token IDs] by seed]}``. Made by :mod:`bench.sampling.make`.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "data" / "sampling"

Answers = list[list[tuple[int, ...]]]
"""Token IDs by prompt and seed."""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    """How answers were drawn."""

    name: str
    temperature: float
    top_p: float = 1.0
    dtype: str = "bfloat16"
    bits: int | None = None
    """Weights rounded to so many; None: as they are."""
    first_seed: int = 0
    rows: int | None = None
    """Answers in one forward pass, where it was another number than for the rest."""
    of: str = "baseline"
    """The environment that it is compared with."""
    tv: float | None = None
    """Total variation distance of whole answers from that one's, estimated; None before it is made."""
    tv_error: float | None = None
    """Standard error of the estimate."""


class _Line(msgspec.Struct):
    environment: str
    prompt: int
    answers: list[tuple[int, ...]]


class DataError(Exception):
    """The folder lacks something; the message says what."""


def read(folder: Path = FOLDER) -> tuple[dict[str, Environment], dict[str, Answers]]:
    """Environments and answers by name.

    Raises:
        DataError: a file is missing, broken, or misses answers of an environment.
    """
    try:
        listed = msgspec.json.decode((folder / "environments.json").read_bytes(), type=list[Environment])
        answers: dict[str, Answers] = {one.name: [] for one in listed}
        with gzip.open(folder / "generations.jsonl.gz", "rb") as lines:
            for line in lines:
                said = msgspec.json.decode(line, type=_Line)
                answers[said.environment].append(said.answers)
    except (OSError, KeyError, msgspec.MsgspecError) as error:
        raise DataError(f"{folder}: {error}; `python -m bench.sampling.make {folder}` makes it") from error
    sizes = {name: (len(by_prompt), {len(said) for said in by_prompt}) for name, by_prompt in answers.items()}
    if len({size[0] for size in sizes.values()}) != 1:
        raise DataError(f"{folder}: environments have unequal numbers of prompts: {sizes}")
    return {one.name: one for one in listed}, answers
