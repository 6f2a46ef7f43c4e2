"""Real scorers in a real process: those that answer, and all that a scorer can do wrong."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from forkgate.config.suites import LoadedSuite
from forkgate.suites import Scorer, ScorerLimits
from forkgate.suites.child import ScoringChild
from forkgate.suites.scorer_child import Ask, Load, Reply, Request
from policies.scoring import Judged
from policies.suites import PythonCall, Sample
from tests.support.suites import loaded, sample
from tests.support.waiting import PATIENCE_S, eventually, until

GOOD = "def score(answer, sample):\n    return float(answer.strip() == 'yes')\n"
CATASTROPHE = {"kind": "regex", "pattern": "^(a+)+$"}
HARD = "a" * 40 + "!"


class Limits:
    """Which requests are held to the limit that the scorer gives them."""

    def __init__(self) -> None:
        self.hold: Callable[[Request], bool] = lambda _: False


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> Limits:
    """Those that a test knows to hang: what is answered at all may take its time on a busy machine."""
    made, ask = Limits(), ScoringChild.ask

    async def asked(child: ScoringChild, request: Request, limit_s: float) -> Reply:
        return await ask(child, request, limit_s if made.hold(request) else PATIENCE_S)

    monkeypatch.setattr(ScoringChild, "ask", asked)
    return made


def of_mine(request: Request) -> bool:
    """About an answer, and the scorer called ``mine`` is asked."""
    call = request.sample.answer if isinstance(request, Ask) else None
    return isinstance(call, PythonCall) and call.scorer == "mine"


def of_the_catastrophe(request: Request) -> bool:
    return isinstance(request, Ask) and bool(request.sample.rules) and request.answer == HARD


@asynccontextmanager
async def scorer(**limits: Any) -> AsyncIterator[Scorer]:
    made = Scorer(ScorerLimits(**limits))
    try:
        yield made
    finally:
        await made.close()


def one(suite: LoadedSuite, name: str = "s1") -> Sample:
    return next(each for each in suite.suite.samples if each.id == name)


def told(judged: tuple[Judged, ...]) -> dict[str, float | str | None]:
    return {each.question: each.value if each.error is None else each.error for each in judged}


def asked_by(code: str, tmp_path: Path, answer: str = "yes", *, answer_s: float = 0.7, **limits: Any) -> Any:
    """What a user's scorer says of an answer, and then what the next, healthy one says."""
    suite = loaded(
        tmp_path,
        sample("s1", answer={"kind": "python", "scorer": "mine"}),
        sample("s2", answer={"kind": "python", "scorer": "good"}),
        scorers={"mine": code, "good": GOOD},
        timeout_s=0.3,
    )

    async def ask() -> tuple[Any, Any]:
        async with scorer(answer_s=answer_s, **limits) as made:
            first = told(await made.score(suite, one(suite), answer))
            then = told(await made.score(suite, one(suite, "s2"), "yes"))
            return first, then

    first, then = asyncio.run(ask())
    assert then == {"answer": 1.0, "refusal": 0.0}, "a bad scorer took a good one with it"
    assert first["refusal"] == 0.0, "a bad question took another with it"
    return first["answer"]


def test_every_question_of_a_sample_is_answered(tmp_path: Path) -> None:
    suite = loaded(
        tmp_path,
        sample(
            "s1",
            rules=[
                {"kind": "regex", "pattern": "yes"},
                {"kind": "regex", "pattern": "no", "must_match": False},
            ],
            answer={"kind": "numeric", "expected": 4},
            structured={"kind": "json_schema", "schema": {"type": "object"}},
        ),
    )

    async def ask() -> dict[str, Any]:
        async with scorer() as made:
            return told(await made.score(suite, one(suite), "yes: 4"))

    assert asyncio.run(ask()) == {"rules": 1.0, "answer": 1.0, "structured": 0.0, "refusal": 0.0}


def test_users_function_is_given_the_answer_the_sample_and_its_arguments(tmp_path: Path) -> None:
    code = (
        "def score(answer, sample, *, weight):\n"
        "    assert sample['category'] == 'short', sample\n"
        "    return weight if sample['id'] in answer else 0\n"
    )
    suite = loaded(
        tmp_path,
        sample("s1", answer={"kind": "python", "scorer": "mine", "arguments": {"weight": 0.25}}),
        scorers={"mine": code},
    )

    async def ask() -> list[float | None]:
        async with scorer() as made:
            return [
                (await made.score(suite, one(suite), answer))[0].value
                for answer in ("this is s1", "no", "s1")
            ]

    assert asyncio.run(ask()) == [0.25, 0.0, 0.25]


def test_true_and_false_are_scores(tmp_path: Path) -> None:
    assert asked_by("def score(answer, sample):\n    return answer == 'yes'\n", tmp_path) == 1.0


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("def score(a, s):\n    while True: pass\n", "no reply within 1 s, its process was ended"),
        ("def score(a, s):\n    raise KeyError('tone')\n", "scorer 'mine': KeyError: 'tone'"),
        ("def score(a, s):\n    raise SystemExit(3)\n", "scorer 'mine': it called exit(3)"),
        ("def score(a, s):\n    raise KeyboardInterrupt\n", "scorer 'mine': KeyboardInterrupt"),
        (
            "def score(a, s):\n    return score(a, s)\n",
            "scorer 'mine': RecursionError: maximum recursion depth exceeded",
        ),
        ("import os\ndef score(a, s):\n    os._exit(7)\n", "its process ended with exit status 7"),
        (
            "import os, sys\ndef score(a, s):\n    sys.stderr.write('lost the model')\n    os.abort()\n",
            "its process ended with signal SIGABRT: lost the model",
        ),
        (
            "import os, signal\ndef score(a, s):\n    os.kill(os.getpid(), signal.SIGKILL)\n",
            "its process ended with signal SIGKILL",
        ),
        (
            "def score(a, s):\n    return float('nan')\n",
            "scorer 'mine': gave nan; a score is a number from 0 to 1",
        ),
        ("def score(a, s):\n    return 1.5\n", "scorer 'mine': gave 1.5; a score is a number from 0 to 1"),
        (
            "def score(a, s):\n    return 'good'\n",
            "scorer 'mine': gave a str; a score is a number from 0 to 1",
        ),
        (
            "def score(a, s):\n    return None\n",
            "scorer 'mine': gave a NoneType; a score is a number from 0 to 1",
        ),
        (
            "def score(a, s):\n    return ['x'] * 10**7\n",
            "scorer 'mine': gave a list; a score is a number from 0 to 1",
        ),
        (
            "def score(a):\n    return 1\n",
            "scorer 'mine': TypeError: score() takes 1 positional argument but 2 were given",
        ),
        (
            "import no_such\ndef score(a, s):\n    return 1\n",
            "scorer 'mine': {file} could not be loaded: ModuleNotFoundError: No module named 'no_such'",
        ),
        (
            "import os\nos._exit(1)\ndef score(a, s):\n    return 1\n",
            "scorer 'mine': {file} could not be loaded: its process ended with exit status 1",
        ),
        ("score = 3\n", "scorer 'mine': {file} could not be loaded: score is int, and cannot be called"),
    ],
)
def test_broken_scorer_is_told_in_words_and_costs_nothing_else(
    code: str, error: str, tmp_path: Path, limits: Limits
) -> None:
    if error.startswith("no reply"):
        limits.hold = of_mine
    said = asked_by(code, tmp_path)
    assert isinstance(said, str)
    assert said.startswith(error.replace("{file}", str(tmp_path / "mine.py"))), said


def test_error_without_end_is_cut(tmp_path: Path) -> None:
    said = asked_by("def score(a, s):\n    raise ValueError('x' * 10**6)\n", tmp_path)
    assert len(said) < 600
    assert said.startswith("scorer 'mine': ValueError: xxx")


def test_memory_of_a_scorer_has_an_end(tmp_path: Path) -> None:
    said = asked_by("def score(a, s):\n    bytearray(2**30)\n    return 1\n", tmp_path, memory_bytes=2**29)
    assert said == "scorer 'mine': it ran out of memory"


@pytest.mark.parametrize(
    "noise",
    [
        'print(\'{"id": 1, "judged": []}\')',
        "import sys; sys.stdout.write('x' * 200_000)",
        "import os; os.write(1, b'noise' * 1000)",
        "import subprocess; subprocess.run(['echo', 'noise'])",
    ],
)
def test_what_a_scorer_prints_is_no_reply(noise: str, tmp_path: Path) -> None:
    assert asked_by(f"def score(a, s):\n    {noise}\n    return 0.5\n", tmp_path) == 0.5


def test_input_finds_an_end_instead_of_the_next_request(tmp_path: Path) -> None:
    assert asked_by("def score(a, s):\n    return input()\n", tmp_path).startswith("scorer 'mine': EOFError")


def test_scorer_that_prints_without_end_hangs_alone(tmp_path: Path, limits: Limits) -> None:
    limits.hold = of_mine
    said = asked_by("def score(a, s):\n    while True: print('x' * 1000)\n", tmp_path)
    assert said == "no reply within 1 s, its process was ended"


def test_scorers_own_children_die_with_it(tmp_path: Path, limits: Limits) -> None:
    limits.hold = of_mine
    note = tmp_path / "pid"
    code = (
        "import pathlib, subprocess\n"
        "def score(a, s):\n"
        "    child = subprocess.Popen(['sleep', '600'])\n"
        f"    pathlib.Path({str(note)!r}).write_text(str(child.pid))\n"
        "    child.wait()\n"
    )
    for answer_s in (0.7, 5.0, 50.0):  # once it gets as far as its child
        said = asked_by(code, tmp_path, answer_s=answer_s)
        assert said == f"no reply within {answer_s + 0.3:g} s, its process was ended"
        if note.exists():
            break

    def gone() -> bool:
        try:
            return psutil.Process(int(note.read_text())).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    until(gone, "the scorer's child to die")


def test_regular_expression_that_backtracks_for_ever_blocks_nothing_but_itself(
    tmp_path: Path, limits: Limits
) -> None:
    limits.hold = of_the_catastrophe
    suite = loaded(tmp_path, sample("s1", rules=[CATASTROPHE], answer={"kind": "exact", "expected": [HARD]}))

    async def ask() -> tuple[dict[str, Any], int]:
        ticks = 0

        async def clock() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(clock())
        async with scorer(answer_s=0.5) as made:
            said = told(await made.score(suite, one(suite), HARD))
        ticking.cancel()
        return said, ticks

    said, ticks = asyncio.run(ask())
    assert said == {"rules": "no reply within 0.5 s, its process was ended", "answer": 1.0, "refusal": 0.0}
    assert ticks > 0, "the loop that scores stood still"


def test_question_that_hangs_again_and_again_is_set_aside_until_the_suite_starts_anew(
    tmp_path: Path, limits: Limits
) -> None:
    limits.hold = of_the_catastrophe
    suite = loaded(tmp_path, sample("s1", rules=[CATASTROPHE]))

    async def ask() -> list[Any]:
        async with scorer(answer_s=0.2, deaths=2) as made:
            said = [told(await made.score(suite, one(suite), HARD))["rules"] for _ in range(3)]
            said.append(told(await made.score(suite, one(suite), "aaa"))["rules"])
            made.forget(suite)
            said.append(told(await made.score(suite, one(suite), "aaa"))["rules"])
            return said

    hung = "no reply within 0.2 s, its process was ended"
    aside = "set aside: it hung or ended its process 2 times in a row"
    assert asyncio.run(ask()) == [hung, hung, aside, aside, 1.0]


def test_answer_beyond_the_limit_is_not_scored(tmp_path: Path) -> None:
    suite = loaded(tmp_path, sample("s1"))

    async def ask() -> Any:
        async with scorer(answer_characters=100) as made:
            return told(await made.score(suite, one(suite), "x" * 101))["refusal"]

    assert asyncio.run(ask()) == "the answer has 101 characters, more than 100"


def test_megabyte_of_answer_passes_through(tmp_path: Path) -> None:
    text = "好" * 300_000 + "yes"
    suite = loaded(tmp_path, sample("s1", rules=[{"kind": "regex", "pattern": "yes$"}]))

    async def ask() -> Any:
        async with scorer() as made:
            return told(await made.score(suite, one(suite), text))["rules"]

    assert asyncio.run(ask()) == 1.0


def test_cancelled_question_leaves_no_reply_for_the_next(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    slow = (
        "import pathlib, time\n"
        "def score(a, s):\n"
        "    if a == 'slow':\n"
        f"        pathlib.Path({str(mark)!r}).touch()\n"
        "        time.sleep(3600)\n"
        "    return float(a == 'slow')\n"
    )
    suite = loaded(
        tmp_path, sample("s1", answer={"kind": "python", "scorer": "mine"}), scorers={"mine": slow}
    )

    async def ask() -> Any:
        async with scorer() as made:
            first = asyncio.create_task(made.score(suite, one(suite), "slow"))
            await eventually(mark.exists, "the slow answer to be under way")
            first.cancel()
            await asyncio.wait({first})
            assert first.cancelled()
            return told(await made.score(suite, one(suite), "quick"))["answer"]

    assert asyncio.run(ask()) == 0.0


def test_file_that_hangs_while_it_is_loaded_is_given_up_once_and_for_all(
    tmp_path: Path, limits: Limits
) -> None:
    limits.hold = lambda request: isinstance(request, Load)
    suite = loaded(
        tmp_path,
        sample("s1", answer={"kind": "python", "scorer": "mine"}),
        scorers={"mine": "while True: pass\ndef score(a, s):\n    return 1\n"},
    )

    async def ask() -> list[Any]:
        async with scorer(load_s=0.8) as made:
            said = [told(await made.score(suite, one(suite), "yes")) for _ in range(3)]
            assert made._deaths.total() == 0, "it was run again for each answer"
            return said

    file = tmp_path / "mine.py"
    why = f"scorer 'mine': {file} could not be loaded: no reply within 0.8 s, its process was ended"
    assert asyncio.run(ask()) == [{"answer": why, "refusal": 0.0}] * 3


def test_environment_of_a_scorer_holds_no_credential(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORKGATE_TEST_TOKEN", "secret")
    code = "import os\ndef score(a, s):\n    return float('FORKGATE_TEST_TOKEN' in os.environ)\n"
    assert asked_by(code, tmp_path) == 0.0


def test_module_beside_the_scorer_is_not_imported_by_accident(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("x = 1\n")
    said = asked_by("def score(a, s):\n    import helper\n    return 1\n", tmp_path)
    assert said == "scorer 'mine': ModuleNotFoundError: No module named 'helper'"


COUNTED = """
import asyncio, ctypes, pathlib, sys
import uvloop
from forkgate.suites import Scorer
from tests.support.suites import loaded, sample

forks = 0

def prepare():
    global forks
    forks += 1

hook = ctypes.CFUNCTYPE(None)(prepare)
none = ctypes.CFUNCTYPE(None)()
assert ctypes.CDLL(None).__register_atfork(hook, none, none, None) == 0

async def main():
    suite = loaded(pathlib.Path(sys.argv[1]), sample("s1"))
    scorer = Scorer()
    judged = await scorer.score(suite, suite.suite.samples[0], "hello")
    await scorer.close()
    print(judged[0].value, forks)

uvloop.run(main())
"""


def test_judge_is_never_forked_for_it(tmp_path: Path) -> None:
    """A copy of a process that holds gRPC runs its fork handlers, and crashes before it becomes the child."""
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, str(tmp_path)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["0.0", "0"], done.stderr
