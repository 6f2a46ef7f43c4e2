"""``forkgate edge`` and ``forkgate judge`` as processes of their own, on a TCP link with mutual TLS."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import trustme

from tests.support.fake_vllm import FakeVllm
from tests.support.ports import free_port
from tests.support.sidecar import Sidecar, eventually_async
from tests.support.waiting import LIMIT_S, PATIENCE_S, eventually

LINK = """
judge:
  address: 127.0.0.1:{port}
  sidecar: {name}
  tls: {{ca_file: {directory}/ca.pem, cert_file: {directory}/cert.pem, key_file: {directory}/key.pem}}
"""


def certificates(directory: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(directory / "ca.pem")
    issued.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    issued.private_key_pem.write_to_path(directory / "key.pem")


def start(one: Sidecar, command: str) -> subprocess.Popen[bytes]:
    with one.log_file.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "forkgate", command, str(one.file)], stdout=log, stderr=log
        )


def test_edge_and_judge_apart_move_a_tenant_back(tmp_path: Path) -> None:
    async def main() -> None:
        certificates(tmp_path)
        port = free_port()
        async with FakeVllm().serving() as old, FakeVllm("forks at token 2").serving() as new:
            parts = {}
            for name in ("edge", "judge"):
                (tmp_path / name).mkdir()
                parts[name] = one = Sidecar(tmp_path / name, old.url, new.url, workers=1)
                lines = [line for line in one.file.read_text().splitlines() if not line.startswith("judge:")]
                one.file.write_text("\n".join(lines) + LINK.format(port=port, name=name, directory=tmp_path))
            edge, judge = parts["edge"], parts["judge"]
            processes = [start(judge, "judge"), start(edge, "edge")]
            async with aiohttp.ClientSession() as session:
                try:
                    edge.session = session

                    async def ready() -> bool:
                        try:
                            found = await judge.status()
                        except (aiohttp.ClientError, OSError):
                            return False
                        reached = [one for one in found["edges"] if one["epoch"] == found["epoch"]]
                        return len(reached) == 1 and not found["troubles"]

                    await eventually_async(ready, "an edge at the judge")

                    async def canary() -> bool:
                        await edge.request("acme", "it forks")
                        return any(body.get("prompt") == "it forks" for _, body in new.requests)

                    await eventually_async(canary, "the canary's request")

                    async def home() -> bool:
                        try:
                            found = await judge.status()
                        except (aiohttp.ClientError, OSError):
                            return False
                        return bool(
                            found["edges"]
                            and found["rollouts"][0]["state"] == "rolled_back"
                            and found["edges"][0]["epoch"] == found["epoch"]
                            and found["routes"] == {}
                        )

                    await eventually_async(home, "the rollback at the edge")
                    await edge.request("acme", "after")
                    assert sum(1 for _, body in old.requests if body.get("prompt") == "after") == 1

                    def answered(times: int) -> bool:
                        told = [line["event"] for line in edge.log() if line["process"] == "supervisor"]
                        return told.count("the judge answers") == times

                    await eventually(lambda: answered(1), "the edge's supervisor at the judge")

                    # Of the rollback nothing is left at the judge, as when its disk refused the latch: the
                    # next judge can hear of it from the edge alone.
                    processes[0].send_signal(signal.SIGTERM)
                    assert await asyncio.to_thread(processes[0].wait, PATIENCE_S) == 0
                    for name in ("rollback.latch", "rollouts.json"):
                        (judge.state / name).unlink()
                    processes[0] = start(judge, "judge")
                    await eventually_async(home, "the rollback at a judge that knew nothing of it")
                    assert "an edge was told of a rollback without a latch: it stands" in [
                        line["event"] for line in judge.log()
                    ]
                    await eventually(lambda: answered(2), "the edge's supervisor at the next judge")
                    await edge.request("acme", "still")
                    assert not any(body.get("prompt") == "still" for _, body in new.requests)
                finally:
                    # The edge first: its last counts are for the judge.
                    for process in reversed(processes):
                        process.send_signal(signal.SIGTERM)
                        assert await asyncio.to_thread(process.wait, PATIENCE_S) == 0

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))
    assert os.listdir(tmp_path / "edge" / "state" / "ledgers") == []
