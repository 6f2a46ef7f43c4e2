"""The process in which answers are scored: JSON lines in, JSON lines out, one answer at a time.

    python -P scorer_child.py MEMORY_BYTES

What runs here may hang (a regular expression on what a model wrote), die (a user's scorer) or print. Whoever
started it keeps the time and kills it; it protects its own protocol: the pipes are moved away from standard
input and output before anything else runs, so that ``print`` goes to standard error and ``input`` finds an
end. Memory is limited, so that a scorer that eats it fails here. All of this is against accidents: a scorer
is its owner's own code, named by the policy, and runs with the judge's rights to files and network.

Run by path: it needs ``policies`` and nothing of forkgate's.
"""

from __future__ import annotations

import os
import resource
import sys
import types
from collections.abc import Callable
from typing import IO, Any

import msgspec

from policies.scoring import (
    Judged,
    RefusalRules,
    ScoringError,
    parse_refusal_rules,
    score_answer,
    shipped_refusal_rules,
)
from policies.suites import PythonCall, Sample

MOST_ERROR_CHARACTERS = 500
MOST_FILES = 256


class Load(msgspec.Struct, frozen=True, kw_only=True, tag="load"):
    """Run a user's file, so that its function can be called."""

    id: int
    suite: str
    """The suite's digest."""
    scorer: str
    where: str
    function: str
    code: str


class Prepare(msgspec.Struct, frozen=True, kw_only=True, tag="prepare"):
    """Refusal rules of a suite; the shipped ones when None."""

    id: int
    suite: str
    refusal: bytes | None
    refusal_where: str


class Ask(msgspec.Struct, frozen=True, kw_only=True, tag="ask"):
    """Score one answer."""

    id: int
    suite: str
    sample: Sample
    answer: str


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """To every request, one."""

    id: int
    judged: tuple[Judged, ...] = ()
    error: str | None = None
    """Why the request itself failed."""


Request = Load | Prepare | Ask


class Bench:
    """What has been loaded."""

    def __init__(self) -> None:
        self._refusal: dict[str, RefusalRules] = {}
        self._functions: dict[tuple[str, str], Callable[..., Any]] = {}

    def answer(self, request: Request) -> Reply:
        """Do it. Whatever a user's code raises becomes words."""
        try:
            if isinstance(request, Ask):
                return Reply(id=request.id, judged=self._score(request))
            if isinstance(request, Prepare):
                self._refusal[request.suite] = (
                    shipped_refusal_rules()
                    if request.refusal is None
                    else parse_refusal_rules(request.refusal, request.refusal_where)
                )
            else:
                self._load(request)
        except BaseException as error:  # a user's code may raise SystemExit, or worse
            return Reply(id=request.id, error=_words(error))
        return Reply(id=request.id)

    def _load(self, request: Load) -> None:
        module = types.ModuleType(f"scorer_{len(self._functions)}")
        module.__file__ = request.where
        sys.modules[module.__name__] = module  # dataclasses and pickle look their own module up
        exec(compile(request.code, request.where, "exec"), module.__dict__)  # noqa: S102 - a user's own code
        function = getattr(module, request.function, None)
        if not callable(function):
            raise ScoringError(f"{request.function} is {type(function).__name__}, and cannot be called")
        self._functions[request.suite, request.scorer] = function

    def _score(self, request: Ask) -> tuple[Judged, ...]:
        sample = msgspec.to_builtins(request.sample)

        def call(check: PythonCall, answer: str) -> float:
            function = self._functions.get((request.suite, check.scorer))
            if function is None:
                raise ScoringError(f"scorer {check.scorer!r} is not loaded")
            try:
                value = function(answer, sample, **check.arguments)
            except BaseException as error:
                raise ScoringError(f"scorer {check.scorer!r}: {_words(error)}") from error
            if not isinstance(value, bool | int | float):
                # Its own words may be endless, or raise: the type says enough.
                raise ScoringError(
                    f"scorer {check.scorer!r}: gave a {type(value).__name__}; a score is a number from 0 to 1"
                )
            return value

        judged = score_answer(request.sample, request.answer, refusal=self._refusal[request.suite], call=call)
        return tuple(
            one if one.error is None else msgspec.structs.replace(one, error=_short(one.error))
            for one in judged
        )


def _words(error: BaseException) -> str:
    if isinstance(error, ScoringError):
        return _short(str(error))
    if isinstance(error, SystemExit):
        return _short(f"it called exit({error.code!r})")
    if isinstance(error, MemoryError):
        return "it ran out of memory"
    try:
        said = str(error)
    except Exception:
        said = "an error that cannot say what it is"
    return _short(f"{type(error).__name__}: {said}" if said else type(error).__name__)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= MOST_ERROR_CHARACTERS else text[: MOST_ERROR_CHARACTERS - 1] + "…"


def _own_pipes() -> tuple[IO[bytes], IO[bytes]]:
    """The protocol's pipes under numbers that nobody knows; 0 is empty, 1 is standard error from now on."""
    inbound, outbound = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    os.dup2(2, 1)
    return inbound, outbound


def _limit(memory_bytes: int) -> None:
    for kind, value in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, MOST_FILES),
    ):
        _, hard = resource.getrlimit(kind)
        least = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (least, least))
    os.nice(10)  # scoring may wait, a rollback may not


def main(arguments: list[str]) -> None:
    inbound, outbound = _own_pipes()
    _limit(int(arguments[0]))
    requests = msgspec.json.Decoder(Request)
    replies = msgspec.json.Encoder()
    bench = Bench()
    for line in inbound:
        outbound.write(replies.encode(bench.answer(requests.decode(line))) + b"\n")
        outbound.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
