"""The command line: a client of the admin API, and the entry points of the processes.

Data goes to standard output (``--json`` everywhere), people's text and progress to standard error. A
command's module imports what it needs when it runs, so that ``forkgate --help`` loads neither gRPC nor
numpy.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line and exit with one of :class:`forkgate.cli.exits.Exit`."""
    from forkgate.cli.app import run

    run()


__all__ = ["main"]
