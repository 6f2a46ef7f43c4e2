"""What live clients feel of a candidate that stalls: nothing, it is hoped.

Two sidecars, both as ``forkgate serve`` starts them: one has no rollout; the other samples 10 % of its
requests (the default) for a candidate that takes each one and never says a word. Blocks of open load
alternate between the two, in turning order, with the same arrivals. The figure is the median over pairs of
blocks of the ratio of the live p99. Edges are pinned to the proxy's core; judge and supervisor run on either
core, as in life, so a judge that is busy with its stalled arms is felt.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from bench import peers
from bench.cases import Run, latency
from bench.cases.judge import SHADOW
from bench.engine_stub import Mode
from bench.machine import BenchError
from bench.peers import Peer
from bench.report import Figure
from bench.sidecar import configuration, engine_stub, patient_policy, sidecar

KEYS = ("stalled_candidate_p99",)

_PLAIN, _STALLED = "no shadow", "stalled candidate"
_STEP_S = 0.02


async def run(run: Run) -> list[Figure]:
    """Measure :data:`KEYS`."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forkgate-bench-")))
        stub = stack.enter_context(peers.stub(run.cores))
        baseline = stack.enter_context(engine_stub(run.cores, step_s=_STEP_S))
        candidate = stack.enter_context(engine_stub(run.cores, step_s=_STEP_S))
        url = f"http://127.0.0.1:{stub.port}"
        ups = {}
        for name, rival in ((_PLAIN, None), (_STALLED, candidate)):
            here = directory / name.replace(" ", "-")
            here.mkdir()
            config = configuration(
                here / "state",
                live_url=url,
                baseline=baseline,
                candidate=rival,
                shadow={**SHADOW, "percent": 10, "in_flight": 8, "queue_items": 256, "arm_timeout_s": 600},
                policy=patient_policy(here),
            )
            ups[name] = stack.enter_context(sidecar(run.cores, "serve", here, config))
        candidate.become(Mode.STALL)
        plain, stalled = (Peer(name=name, port=up.port, pids=up.edge_pids) for name, up in ups.items())
        blocks = await latency.paired_blocks(run, stalled, plain)
        for up in ups.values():
            up.check()
        counts, ledger = candidate.counts(), ups[_STALLED].ask("/v1/ledger")
    if counts["stalled"] == 0 or ledger["captured"] == 0:
        raise BenchError(f"nothing was stalled: {counts}, {ledger}")
    found = latency.figure(KEYS[0], 0.99, blocks, _STALLED, _PLAIN)
    found.detail["stalled_requests"] = counts["stalled"]
    found.detail["ledger"] = {name: ledger[name] for name in ("captured", "compared", "dropped", "in_flight")}
    return [found]
