"""``python -m forkgate`` is ``forkgate``."""

from forkgate.cli import main

main()
