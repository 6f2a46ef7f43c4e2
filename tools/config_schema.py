"""Writes ``docs/forkgate.schema.json`` and ``docs/suite.schema.json`` from their structs: ``make schema``."""

from __future__ import annotations

from forkgate.config.schema import render


def main() -> None:
    for path, text in render().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
