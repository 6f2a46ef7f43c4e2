"""``python -m tests.faults``: every fault on a real ``forkgate serve``, one after the other, and a table.

Exit status 0 when every row holds, 1 when one fails, 2 for a wrong command line.
"""

from __future__ import annotations

import argparse
import asyncio
import fnmatch
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests.faults.figures import Figures, table
from tests.faults.rows import ROWS, Row


async def played(row: Row, directory: Path) -> Figures:
    """One row's figures, however it ended."""
    figures, begun = Figures(name=row.name), time.monotonic()
    try:
        async with asyncio.timeout(row.limit_s):
            await row.play(figures, directory)
    except TimeoutError:
        figures.failed = figures.failed or f"did not end in {row.limit_s:.0f} s"
    except Exception as error:
        figures.failed = figures.failed or f"{type(error).__name__}: {error}"
    figures.seconds = time.monotonic() - begun
    return figures


def run(rows: Sequence[Row], *, keep: Path | None = None) -> list[Figures]:
    """All of them. What happens is told on standard error.

    Args:
        keep: where each row's directory stays, state and log; None: in a temporary one.
    """
    done = []
    for row in rows:
        sys.stderr.write(f"{row.name}: {row.says}\n")
        sys.stderr.flush()
        with tempfile.TemporaryDirectory(prefix="faults-") as made:
            directory = Path(made) if keep is None else keep / f"{row.name}-{int(time.time())}"
            directory.mkdir(parents=True, exist_ok=True)
            figures = asyncio.run(played(row, directory))
        done.append(figures)
        for problem in figures.problems():
            sys.stderr.write(f"  FAILS: {problem}\n")
        if not figures.problems():
            sys.stderr.write(f"  holds: {figures.note} ({figures.seconds:.0f} s)\n")
    return done


def main(arguments: Sequence[str] | None = None, rows: Sequence[Row] = ROWS) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="this fault; may hold * and ?")
    parser.add_argument("--list", action="store_true", help="names, and what happens")
    parser.add_argument("--json", action="store_true", help="figures as JSON on standard output")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="leave each row's state and log there")
    told = parser.parse_args(arguments)
    if told.list:
        for row in rows:
            print(f"{row.name:<28}{row.says}")
        return 0
    wanted = [
        row for row in rows if not told.only or any(fnmatch.fnmatchcase(row.name, name) for name in told.only)
    ]
    unknown = [
        name for name in told.only or () if not any(fnmatch.fnmatchcase(row.name, name) for row in rows)
    ]
    if unknown:
        parser.error(f"no fault is named {', '.join(unknown)}; --list names them")
    done = run(wanted, keep=told.keep)
    failed = sum(bool(figures.problems()) for figures in done)
    if told.json:
        found = [{**msgspec.to_builtins(figures), "problems": figures.problems()} for figures in done]
        print(msgspec.json.encode({"rows": found, "failed": failed}).decode())
    else:
        print(table(done))
        seconds = sum(figures.seconds for figures in done)
        print(f"{len(done) - failed} of {len(done)} faults hold, {seconds:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
