"""``python -m bench``: measure, tell, and say by the exit code whether every bar holds.

Exit code 0: every bar holds. 1: a bar was missed. 2: usage. 4: something could not be measured, or is void.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import sys
import time
import traceback

import uvloop

from bench import machine, peers, report
from bench.cases import Case, Run, all_cases
from bench.machine import BenchError, Cores
from bench.report import BARS, Figure, Verdict

_BUSY = 0.5
"""Load average at the start beyond which the latency figures will probably be void."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="What forkgate costs, beside its peers."
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line on stdout"
    )
    parser.add_argument("--only", nargs="+", metavar="KEY", choices=[*BARS], help="only these figures")
    parser.add_argument(
        "--quick", action="store_true", help="a minute, to see that it works; the numbers say nothing"
    )
    parser.add_argument(
        "--show-envoy", action="store_true", help="print the configuration Envoy is given, and stop"
    )
    return parser.parse_args()


async def _measure(run: Run, cases: list[Case]) -> list[Figure]:
    figures: dict[str, Figure] = {}
    for case in cases:
        wanted = [key for key in case.keys if key in run.wanted]
        if not wanted:
            continue
        run.say(f"{case.name}: {', '.join(wanted)}")
        try:
            found = await case.run(run)
        except Exception as trouble:  # one case that cannot be measured must not take the others with it
            if not isinstance(trouble, BenchError):
                traceback.print_exc()
            reason = str(trouble) or type(trouble).__name__
            run.say(f"{case.name}: could not be measured: {reason}")
            found = [Figure(key=key, value=None, detail={"reason": reason}) for key in wanted]
        figures.update((figure.key, figure) for figure in found)
        gc.collect()
    return [figures[key] for key in BARS if key in figures]


def main() -> int:
    """Run the bench and return the exit code."""
    arguments = _arguments()
    if arguments.show_envoy:
        print(json.dumps(peers.envoy_config(9001, 9002), indent=1))
        return 0
    started_s = time.monotonic()
    try:
        cores = Cores.pick()
    except BenchError as trouble:
        sys.stderr.write(f"bench: {trouble}\n")
        return 4
    os.sched_setaffinity(0, {cores.load})  # the load generator lives in this process
    wanted = frozenset(arguments.only or BARS)
    run = Run(cores=cores, quick=arguments.quick, wanted=wanted, started_s=started_s)
    about = machine.description()
    if os.getloadavg()[0] > _BUSY:
        run.say(f"this machine is busy with something else (load average {os.getloadavg()[0]:.1f})")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(_measure(run, all_cases()))
    report.print_table(figures, sys.stderr)
    if arguments.quick:
        sys.stderr.write("--quick: these numbers show that the bench works, and nothing else\n")
    if arguments.json:
        about |= {"seconds": round(time.monotonic() - started_s, 1), "quick": arguments.quick}
        print(report.as_json(figures, about))
    verdicts = {figure.verdict for figure in figures}
    if verdicts & {Verdict.FAILED, Verdict.VOID}:
        return 4
    return 1 if Verdict.MISSED in verdicts else 0


if __name__ == "__main__":
    sys.exit(main())
