"""The runner of the faults: what it calls a failure. A runner that cannot fail proves nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.faults.__main__ import main
from tests.faults.figures import Figures, p99
from tests.faults.rows import ROWS, Row
from tests.faults.scene import Scene, play
from tests.support.sidecar import alive
from tests.support.stack import stack

HOLDS = Figures(
    name="a-fault",
    live=100,
    under_fault=50,
    p99_before_s=0.02,
    p99_s=0.05,
    rollback="kept",
    balanced=True,
    note="it happened",
)

Play = Callable[[Figures, Path], Awaitable[None]]


def ran(
    capsys: pytest.CaptureFixture[str], row: Play, *, limit_s: float = 100.0
) -> tuple[int, dict[str, Any]]:
    code = main(["--json"], rows=(Row("a-fault", "a test's", row, limit_s),))
    (figures,) = json.loads(capsys.readouterr().out)["rows"]
    return code, figures


def test_errors_that_reach_clients_make_it_exit_1(capsys: pytest.CaptureFixture[str]) -> None:
    """On a real serve: 500 is an answer, which is not asked for again at home. Clients get it."""

    async def act(it: Scene) -> None:
        async with it.fault():
            await it.new.set("live:answers 500")
            await it.load.more(40)
        await it.new.set()
        it.figures.note = "the canary was answered 500"

    async def row(figures: Figures, directory: Path) -> None:
        await play(figures, directory, act, calm_s=0.5)

    code, figures = ran(capsys, row)
    assert code == 1
    assert figures["errors"] >= 10, figures
    assert any("live errors, none is allowed" in problem for problem in figures["problems"]), figures
    assert figures["rollback"] == "kept", figures
    assert figures["balanced"], figures


def test_a_row_that_raises_or_never_ends_fails_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    async def raises(figures: Figures, directory: Path) -> None:
        raise AssertionError("the rollback did not come")

    async def hangs(figures: Figures, directory: Path) -> None:
        await asyncio.Event().wait()

    code, figures = ran(capsys, raises)
    assert (code, figures["failed"]) == (1, "AssertionError: the rollback did not come")
    code, figures = ran(capsys, hangs, limit_s=0.05)
    assert (code, figures["failed"]) == (1, "did not end in 0 s")


def test_figures_within_their_bounds_make_it_exit_0(capsys: pytest.CaptureFixture[str]) -> None:
    async def row(figures: Figures, directory: Path) -> None:
        for field in ("live", "under_fault", "p99_before_s", "p99_s", "rollback", "balanced", "note"):
            setattr(figures, field, getattr(HOLDS, field))

    assert main([], rows=(Row("a-fault", "a test's", row),)) == 0
    out = capsys.readouterr().out
    assert "a-fault" in out
    assert "1 of 1 faults hold" in out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"errors": 1}, "1 live errors"),
        ({"rollback": "lost"}, "the rollback was lost"),
        ({"rollback": "not asked"}, "no rollback was asked for"),
        ({"balanced": False}, "the ledger did not balance"),
        ({"balanced": None}, "nobody looked at the ledger"),
        ({"growth_mib": 65.0}, "a process grew by 65 MiB"),
        ({"p99_s": 1.21}, "p99 1210 ms under the fault, 1200 are allowed"),
        ({"under_fault": 19}, "19 live answers under the fault"),
        ({"note": ""}, "the row does not say what its fault did"),
        ({"failed": "it broke"}, "it broke"),
    ],
)
def test_each_bound_is_one(change: dict[str, object], said: str) -> None:
    assert HOLDS.problems() == []
    (problem,) = msgspec.structs.replace(HOLDS, **change).problems()
    assert said in problem


def test_answers_that_a_killed_process_had_begun_are_no_error() -> None:
    assert msgspec.structs.replace(HOLDS, excused=5).problems() == []


def test_what_an_engine_that_says_nothing_may_cost_is_the_rows_own_setting() -> None:
    waited = msgspec.structs.replace(HOLDS, p99_s=2.6)
    assert waited.problems() != []
    assert msgspec.structs.replace(waited, first_byte_s=1.5).problems() == []


def test_nothing_that_a_row_started_outlives_it(tmp_path: Path) -> None:
    async def row() -> list[int]:
        async with stack(tmp_path) as (one, *_):
            assert one.process is not None
            return [one.process.pid, *one.pids()]

    assert [pid for pid in asyncio.run(row()) if alive(pid)] == []


def test_a_name_that_no_fault_has_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["--only", "no-such-fault"])
    assert raised.value.code == 2
    assert "no-such-fault" in capsys.readouterr().err


def test_every_fault_has_a_name_of_its_own() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_p99_is_a_value_that_was_measured() -> None:
    assert p99([]) is None
    assert p99([3.0]) == 3.0
    assert p99([float(number) for number in range(1, 201)]) == 198.0
