"""A real judge's admin API over TCP: fuzzed from its own document, and asked by the command line."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from forkgate.admin.openapi import described
from forkgate.admin.roles import Need
from tests.support.certificates import Authority
from tests.support.fake_vllm import FakeVllm
from tests.support.sidecar import Sidecar, eventually_async
from tests.support.waiting import LIMIT_S

ROLES = ("viewer", "auditor", "operator", "owner")
TOKEN = {role: f"{role}-0123456789abcdef0123456789abcdef" for role in ROLES}
SCHEMATHESIS = Path(sys.executable).with_name("schemathesis")
MARK = "xyzzy plugh, says a client"
MARK_IDS = ",".join(str(byte) for byte in MARK.encode())
"""As the engine here encodes it, and the store has it."""


def admin_section(tls: dict[str, str] | None = None) -> str:
    listen: dict[str, Any] = {"host": "127.0.0.1", "port": 0, **({} if tls is None else {"tls": tls})}
    tokens = [
        {"name": role, "role": role, "sha256": hashlib.sha256(token.encode()).hexdigest()}
        for role, token in TOKEN.items()
    ]
    limits = {"failures_per_minute": 1_000_000}
    return f"\nadmin: {json.dumps({'listen': listen, 'tokens': tokens, 'limits': limits})}\n"


@asynccontextmanager
async def served(directory: Path, tls: dict[str, str] | None = None) -> AsyncIterator[tuple[Sidecar, str]]:
    """A sidecar with a fork in its evidence, and its admin address."""
    async with FakeVllm().serving() as old, FakeVllm("forks at token 2").serving() as new:
        one = Sidecar(directory, old.url, new.url, workers=1)
        one.file.write_text(one.file.read_text() + admin_section(tls))
        try:
            await one.start()
            await one.request("globex", MARK)

            async def kept() -> bool:
                return bool((await one.admin("/v1/evidence"))["pairs"])

            await eventually_async(kept, "a stored pair")
            yield one, (await one.admin("/v1/status"))["admin"]["address"]
        finally:
            await one.close()


async def text_of(one: Sidecar, path: str) -> str:
    connector = aiohttp.UnixConnector(str(one.state / "admin.sock"))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"http://judge{path}") as response,
    ):
        return await response.text()


async def finished(*command: str, **environment: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={"PATH": "/usr/bin:/bin", **environment}
    )
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def test_the_api_keeps_what_its_document_says(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), served(tmp_path) as (one, address):
            code, out, err = await finished(
                str(SCHEMATHESIS),
                "run",
                f"{address}/v1/openapi.json",
                "--header",
                f"Authorization: Bearer {TOKEN['owner']}",
                "--checks=all",
                "--phases=examples,coverage,fuzzing",
                "--max-examples=5",
                "--seed=1",
                "--no-color",
                "--suppress-health-check=all",
                HOME=str(tmp_path),
            )
            assert code == 0, out[-6000:] + err[-2000:]
            # The judge is as well as before, and the log of all this holds.
            status = await one.admin("/v1/status")
            assert status["ledger"]["balanced"]
            code, out, err = await finished(
                sys.executable, "-m", "forkgate", "audit", "verify", "--state-dir", str(one.state)
            )
            assert (code, err) == (0, "")
            assert ": holds, " in out

    asyncio.run(main())


def test_command_line_reaches_a_judge_elsewhere_as_whoever_its_token_says(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    issued, client = authority.issue("127.0.0.1"), authority.issue("client.internal")
    both = tmp_path / "client.pem"
    both.write_text(Path(client.cert_file).read_text() + Path(client.key_file).read_text())
    tls = {
        "cert_file": issued.cert_file,
        "key_file": issued.key_file,
        "client_ca_file": authority.cert_file,
    }
    for role in ROLES:
        (tmp_path / role).write_text(TOKEN[role] + "\n")

    async def main() -> None:
        directory = tmp_path / "sidecar"
        directory.mkdir()
        async with asyncio.timeout(LIMIT_S), served(directory, tls) as (one, address):

            async def cli(role: str, *words: str, certificate: bool = True) -> tuple[int, str, str]:
                cert = {"FORKGATE_CLIENT_CERT": str(both)} if certificate else {}
                return await finished(
                    sys.executable,
                    "-m",
                    "forkgate",
                    "--server",
                    address,
                    "--token-file",
                    str(tmp_path / role),
                    *words,
                    FORKGATE_CA_FILE=authority.cert_file,
                    **cert,
                )

            code, out, _ = await cli("viewer", "rollout", "show", "old-to-new")
            assert (code, out.split()[:2]) == (0, ["rollout", "old-to-new"])
            code, out, err = await cli("viewer", "evidence", "export")
            assert (code, out) == (2, "")
            assert "'viewer' is viewer, and this is for auditor or owner" in err
            code, out, _ = await cli("auditor", "evidence", "export")
            assert code == 0
            assert MARK_IDS in out
            code, _, err = await cli("auditor", "rollout", "rollback", "old-to-new", "--reason", "no")
            assert code == 2
            assert "this is for operator or owner" in err
            code, _, err = await cli("operator", "rollout", "lift", "old-to-new", "--reason", "looked at it")
            assert code == 0, err
            assert (await cli("viewer", "status", certificate=False))[0] == 4
            (tmp_path / "viewer").write_text("wrong" * 10)
            code, _, err = await cli("viewer", "status")
            assert (code, err) == (2, "this token is not known here\n")
            code, out, _ = await cli("auditor", "audit", "show")
            lines = out.splitlines()
            wanted = (
                ("denied", "evidence.export", "→ 403"),
                ("read", "auditor (auditor, mtls, 127.0.0.1:", "evidence.export"),
                ("denied", "rollout.rollback", "→ 403"),
                ("asked", "certificate of client.internal", "rollout.lift", "because: looked at it"),
                ("done", "rollout.lift", "of 4", "→ 200 ok, epoch "),
            )
            for line, words in zip(lines, wanted, strict=True):
                for word in words:
                    assert word in line.replace("  ", " "), lines
            assert one.process is not None

    asyncio.run(main())


def test_nothing_that_a_viewer_may_ask_holds_a_clients_words_or_tokens(tmp_path: Path) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_S), served(tmp_path) as (one, address):
            assert MARK_IDS in await text_of(one, "/v1/evidence/export")
            async with aiohttp.ClientSession(
                headers={"authorization": f"Bearer {TOKEN['viewer']}"}
            ) as session:
                for route in described():
                    if route.method != "GET" or route.needs != (Need.VIEW,):
                        continue
                    path = route.path.replace("{name}", "old-to-new")
                    async with session.get(address + path) as response:
                        text = await response.text()
                        assert response.status == 200, (path, text)
                        assert MARK not in text, path
                        assert MARK_IDS not in text.replace(" ", ""), path
                        for key in ("token_ids", "prompt", '"text"', "steps_"):
                            assert key not in text or path == "/v1/openapi.json", (path, key)

    asyncio.run(main())
