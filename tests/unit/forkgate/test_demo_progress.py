"""The demo without a terminal: a line a stage, not a line an update."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from forkgate.cli.exits import Exit
from forkgate.demo.plain import PlainStages
from forkgate.demo.run import _bar, main


@pytest.mark.parametrize("no_color", ["", "1"])
def test_no_color_is_honoured(no_color: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    for name, value in (("NO_COLOR", no_color), ("FORCE_COLOR", "1"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    assert main(["--dir", "/dev/null/x"]) == Exit.USAGE
    assert ("\x1b[" in capsys.readouterr().err) == (not no_color)


def test_log_gets_one_line_when_a_stage_begins_and_one_when_it_has_ended() -> None:
    out = io.StringIO()
    with _bar(Console(file=out, force_terminal=False)) as stages:
        assert isinstance(stages, PlainStages)
        model = stages.add_task("model", total=1.0)
        stages.update(model, description="unpacking [it]", completed=0.5)
        stages.update(model, description="model is there", completed=1.0)
        stages.update(model, description="model is there", completed=1.0)
        traffic = stages.add_task("live [traffic]", total=None)
        for count in range(50):
            stages.advance(traffic)
            stages.update(traffic, description=f"live traffic; {count} pairs")
        stages.update(traffic, description="rolled back", total=50)
    said = [line.split(" s  ", 1)[1] for line in out.getvalue().splitlines()]
    assert said == ["model", "model is there", "live [traffic]", "rolled back"]
    assert all(line.startswith("demo: ") for line in out.getvalue().splitlines())


def test_terminal_gets_bars() -> None:
    assert not isinstance(_bar(Console(file=io.StringIO(), force_terminal=True)), PlainStages)
