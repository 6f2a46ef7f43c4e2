"""``python -m tools.starter_suite [--search PART | --check | --counts]``."""

from __future__ import annotations

import argparse
import sys

from tools.starter_suite.found import PARTS
from tools.starter_suite.suite import TARGET, SuiteError, counts, render, samples


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.starter_suite", description=__doc__)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--search", choices=(*PARTS, "all"), help="run the model first: what it finds is kept")
    what.add_argument("--check", action="store_true", help="write nothing; exit 1 if the file has drifted")
    what.add_argument("--counts", action="store_true", help="write nothing; print the table by category")
    arguments = parser.parse_args(argv)
    if arguments.search:
        from tools.starter_suite.search import search

        search(arguments.search)
    try:
        if arguments.counts:
            print(counts(samples()))  # noqa: T201
            return 0
        text = render()[TARGET]
    except SuiteError as error:
        print(f"starter suite: {error}", file=sys.stderr)  # noqa: T201
        return 1
    if arguments.check:
        if not TARGET.exists() or TARGET.read_text(encoding="utf-8") != text:
            print(f"{TARGET}: drifted; run `python -m tools.starter_suite`", file=sys.stderr)  # noqa: T201
            return 1
        return 0
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
