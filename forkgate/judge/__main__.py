"""``python -m forkgate.judge``: settings as JSON on standard input, log on standard error."""

from __future__ import annotations

import gc
import logging
import sys

import uvloop

from forkgate.judge.process import JudgeProcess, StartError, read_settings
from proxy.logs import log_to_stderr


async def _run(raw: bytes) -> int:
    return await JudgeProcess(read_settings(raw)).run()


def main() -> int:
    log_to_stderr("judge")
    # Pairs are large trees of values that live for seconds and form no cycles: full collections find nothing
    # and cost 5-15 % of the judge's time.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    try:
        return uvloop.run(_run(sys.stdin.buffer.read()))
    except StartError as error:
        logging.getLogger(__name__).critical("the judge cannot start", extra={"error": str(error)})
        return 1


if __name__ == "__main__":
    sys.exit(main())
