"""Writes the generated files of the chart: ``make chart``."""

from __future__ import annotations

from tools.chart import render


def main() -> None:
    for path, text in render().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
