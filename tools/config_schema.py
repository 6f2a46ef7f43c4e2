"""Writes ``docs/forkgate.schema.json`` from the configuration's structs: ``make schema``."""

from __future__ import annotations

from forkgate.config.schema import render


def main() -> None:
    for path, text in render().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
