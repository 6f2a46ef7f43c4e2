"""Who gets in over TCP, and to what: real TLS, every route against every role, and clients that misbehave."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from comparator.evidence import Batch, ComparisonDone, EvidenceStore
from comparator.pair import SetAside
from forkgate.admin import AdminServer
from forkgate.admin.openapi import described
from forkgate.admin.roles import Need, roles_for
from forkgate.admin.routes import Route
from forkgate.admin.tokens import Failures, Tokens, given_token
from forkgate.config import ConfigError, loads
from forkgate.config.admin import (
    AdminLimits,
    AdminListen,
    AdminSection,
    AdminTLS,
    AdminToken,
    Role,
    expiry_unix_s,
)
from tests.support.certificates import Authority
from tests.support.exchanges import comparison, pair
from tests.support.waiting import LIMIT_S
from tests.unit.forkgate.test_admin import NotedJudge

MARK = "xyzzy-a-clients-words"
TOKENS = {role: f"{role}-token-0123456789-0123456789" for role in Role}


def run(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work

    asyncio.run(bounded())


def token(name: str, role: Role, text: str, **changes: Any) -> AdminToken:
    return AdminToken(name=name, role=role, sha256=hashlib.sha256(text.encode()).hexdigest(), **changes)


def section(**changes: Any) -> AdminSection:
    fields: dict[str, Any] = {
        "listen": AdminListen(port=0),
        "tokens": tuple(token(f"a-{role}", role, text) for role, text in TOKENS.items()),
    }
    return AdminSection(**{**fields, **changes})


@asynccontextmanager
async def served(tmp_path: Path, settings: AdminSection) -> AsyncIterator[AdminServer]:
    server = AdminServer(tmp_path / "admin.sock", NotedJudge(tmp_path / "evidence.db"), settings)
    await server.start()
    try:
        yield server
    finally:
        await server.close()


async def ask(
    server: AdminServer, method: str, path: str, given: str | None = None, **options: Any
) -> tuple[int, str]:
    headers = {} if given is None else {"authorization": f"Bearer {given}"}
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
        session.request(method, f"{server.address}{path}", headers=headers, **options) as response,
    ):
        return response.status, await response.text()


def store(tmp_path: Path) -> None:
    evidence = EvidenceStore(tmp_path / "evidence.db", 100_000_000)
    one = pair((1, 2, 3), (1, 2, 4), capture_id="capture-1")
    aside = {"set_aside": SetAside.CONFIGURATION_MISMATCH, "set_aside_reason": MARK}
    made = comparison(msgspec.structs.replace(one, **aside))
    evidence.add(Batch(comparisons=(ComparisonDone(comparison=made, incarnation="e", sequence=1),)))
    evidence.close()


def filled(route: Route) -> tuple[str, dict[str, Any]]:
    path = route.path.replace("{name}", "r").replace("{id}", "capture-1")
    return path, {} if route.body is None else {"json": {"reason": "because", "tenant": "acme"}}


# --- roles


@pytest.mark.parametrize("role", list(Role))
def test_every_route_lets_in_the_roles_that_it_names_and_no_other(tmp_path: Path, role: Role) -> None:
    store(tmp_path)

    async def main() -> None:
        async with served(tmp_path, section()) as server:
            for route in server.routes:
                path, body = filled(route)
                status, text = await ask(server, route.method, path, TOKENS[role], **body)
                let_in = role in roles_for(*route.needs)
                assert (status != 403) is let_in, (route.method, path, status, text)
                assert status != 401
                if not let_in:
                    assert msgspec.json.decode(text)["error"]["code"] == "forbidden"

    run(main())


def test_without_a_token_nothing_but_the_two_probes_answers(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path, section()) as server:
            for route in server.routes:
                path, body = filled(route)
                for given in (None, "wrong" * 10):
                    status, text = await ask(server, route.method, path, given, **body)
                    assert (status == 401) is (route.path not in ("/healthz", "/readyz")), (path, text)
                    server.guard._failures._times.clear()

    run(main())


def test_everything_that_shows_content_or_moves_traffic_says_so() -> None:
    by_path = {(route.method, route.path): route for route in described()}
    for (method, path), route in by_path.items():
        if method == "POST" and not path.endswith("/verdict"):
            assert route.action is not None, path
            assert set(route.needs) & {Need.STEP, Need.CONTENT}, path
        if path.startswith("/v1/evidence/") and "records" not in path:
            assert Need.CONTENT in route.needs, path
    assert roles_for(Need.CONTENT, Need.STEP) == (Role.OWNER,)
    assert by_path["POST", "/v1/rollouts/{name}/rollback"].unlogged_too
    assert [route.path for route in by_path.values() if route.unlogged_too] == [
        "/v1/rollouts/{name}/rollback"
    ]


def test_viewers_list_of_pairs_holds_no_words_of_a_client(tmp_path: Path) -> None:
    store(tmp_path)

    async def main() -> None:
        async with served(tmp_path, section()) as server:
            _, seen = await ask(server, "GET", "/v1/evidence", TOKENS[Role.VIEWER])
            _, known = await ask(server, "GET", "/v1/evidence", TOKENS[Role.AUDITOR])
            assert MARK in known
            assert MARK not in seen
            (one,) = msgspec.json.decode(seen)["pairs"]
            assert one["set_aside_reason"] is None
            assert one["capture_id"] == "capture-1"

    run(main())


# --- tokens


@pytest.mark.parametrize(
    ("expires", "unix_s", "good"),
    [
        ("2027-01-31", "2027-01-31T23:59:59Z", True),
        ("2027-01-31", "2027-02-01T00:00:00Z", False),
        ("2027-01-31T12:00:00Z", "2027-01-31T11:59:59Z", True),
        ("2027-01-31T12:00:00Z", "2027-01-31T12:00:00Z", False),
        ("2027-01-31T12:00:00+02:00", "2027-01-31T10:00:01Z", False),
    ],
)
def test_token_expires_at_its_moment(expires: str, unix_s: str, good: bool) -> None:
    tokens = Tokens([token("ana", Role.VIEWER, "t" * 32, expires=expires)])
    found = tokens.owner("t" * 32, expiry_unix_s(unix_s))
    assert isinstance(found, AdminToken) is good
    if not good:
        assert "has expired" in str(found)


def test_token_of_a_file_is_taken_as_it_is_now(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first" * 8 + "\n")
    tokens = Tokens([AdminToken(name="ana", role=Role.VIEWER, file=str(file))])
    assert isinstance(tokens.owner("first" * 8, 0.0), AdminToken)
    file.write_text("second" * 8)
    assert isinstance(tokens.owner("first" * 8, 0.0), str)
    assert isinstance(tokens.owner("second" * 8, 0.0), AdminToken)
    file.write_text("short")
    assert isinstance(tokens.owner("short", 0.0), str)
    assert "a token has 32 at least" in tokens.troubles()[0]
    file.unlink()
    assert isinstance(tokens.owner("second" * 8, 0.0), str)
    assert "No such file" in tokens.troubles()[0]


def test_every_token_is_compared_whatever_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    import hmac

    compared: list[bytes] = []
    real = hmac.compare_digest

    def noted(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return real(one, other)

    monkeypatch.setattr("forkgate.admin.tokens.hmac.compare_digest", noted)
    tokens = Tokens([token(f"t{number}", Role.VIEWER, f"{number}" * 32) for number in range(5)])
    for given in ("0" * 32, "4" * 32, "nobody's"):
        compared.clear()
        tokens.owner(given, 0.0)
        assert len(compared) == 5


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (None, None),
        ("Bearer abc", "abc"),
        ("bearer  abc", "abc"),
        ("Bearer", None),
        ("Basic " + base64.b64encode(b"flagger:abc").decode(), "abc"),
        ("Basic !!!", None),
        ("Basic \u00e9\udcff", None),
        ("Basic " + base64.b64encode(b"\xff\xfe").decode(), None),
        ("Digest abc", None),
    ],
)
def test_token_is_read_from_bearer_or_a_basic_password(header: str | None, found: str | None) -> None:
    assert given_token(header) == found


def test_wrong_tokens_lock_their_address_out_for_a_minute() -> None:
    now = 0.0
    failures = Failures(3, lambda: now)
    for second in range(3):
        now = float(second)
        assert failures.wait_s("a") == 0.0
        failures.note("a")
    assert failures.wait_s("a") == 58.0
    assert failures.wait_s("b") == 0.0
    now = 60.0
    assert failures.wait_s("a") == 0.0
    for number in range(5_000):
        failures.note(f"host-{number}")
    assert len(failures._times) <= 1_024


def test_guessing_is_answered_429_with_right_tokens_too_and_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path, section(limits=AdminLimits(failures_per_minute=5))) as server:
            statuses = [(await ask(server, "GET", "/v1/ledger", "wrong" * 8))[0] for _ in range(7)]
            assert statuses == [401] * 5 + [429] * 2
            status, text = await ask(server, "GET", "/v1/ledger", TOKENS[Role.OWNER])
            assert status == 429
            assert msgspec.json.decode(text)["error"]["type"] == "rate_limit_error"
            assert (await ask(server, "GET", "/healthz"))[0] == 200
            assert server.guard.refused == {"401": 5, "429": 3}

    run(main())


# --- TLS


def test_a_flood_of_handshakes_that_are_never_finished_keeps_nobody_out(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = authority.issue("127.0.0.1")
    tls = AdminTLS(cert_file=certificate.cert_file, key_file=certificate.key_file)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        async with served(tmp_path, section(listen=AdminListen(port=0, tls=tls))) as server:
            assert server.address is not None
            port = int(server.address.rpartition(":")[2])
            held = [socket.socket() for _ in range(500)]
            try:
                for one in held:
                    one.setblocking(False)
                    await loop.sock_connect(one, ("127.0.0.1", port))
                context = ssl.create_default_context(cafile=authority.cert_file)
                status, _ = await ask(server, "GET", "/v1/ledger", TOKENS[Role.OWNER], ssl=context)
                assert status == 200
                assert await loop.sock_recv(held[0], 1) == b"", "its handshake's time is over"
            finally:
                for one in held:
                    one.close()

    run(main())


def test_tls_and_client_certificates(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    server_cert, client_cert = authority.issue("127.0.0.1"), authority.issue("client.internal")
    wrong_cert = stranger.issue("client.internal")
    tls = AdminTLS(
        cert_file=server_cert.cert_file, key_file=server_cert.key_file, client_ca_file=authority.cert_file
    )

    def context(certificate: Any = None, ca_file: str = authority.cert_file) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=ca_file)
        if certificate is not None:
            made.load_cert_chain(certificate.cert_file, certificate.key_file)
        return made

    async def main() -> None:
        async with served(tmp_path, section(listen=AdminListen(port=0, tls=tls))) as server:
            owner = TOKENS[Role.OWNER]
            assert server.address is not None
            assert server.address.startswith("https://")
            status, _ = await ask(server, "GET", "/v1/ledger", owner, ssl=context(client_cert))
            assert status == 200
            # A certificate opens no door by itself.
            assert (await ask(server, "GET", "/v1/ledger", ssl=context(client_cert)))[0] == 401
            for certificate in (None, wrong_cert):
                with pytest.raises(aiohttp.ClientError):
                    await ask(server, "GET", "/v1/ledger", owner, ssl=context(certificate))
            with pytest.raises(aiohttp.ClientError):
                await ask(server, "GET", "/v1/ledger", owner, ssl=context(client_cert, stranger.cert_file))
            assert b"HTTP" not in await raw(server, b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
            await ask(
                server,
                "POST",
                "/v1/rollouts/r/lift",
                owner,
                ssl=context(client_cert),
                json={"reason": "fixed"},
            )
            line = (tmp_path / "audit.jsonl").read_text().splitlines()[0]
            assert '"via":"mtls"' in line
            assert "certificate of client.internal" in line

    run(main())


def test_certificate_that_does_not_fit_its_key_is_refused_at_load_in_words(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, other = authority.issue("127.0.0.1"), authority.issue("other.internal")
    text = f"""
state_dir: state
pools: [{{name: old, endpoints: ["http://127.0.0.1:9001"]}}]
home: old
admin:
  listen: {{tls: {{cert_file: {one.cert_file}, key_file: {other.key_file}}}}}
  tokens: [{{name: ana, role: viewer, sha256: {"a" * 64}}}]
"""
    with pytest.raises(ConfigError) as caught:
        loads(text)
    (problem,) = caught.value.problems
    assert problem.path == "admin.listen.tls"
    assert problem.message.startswith("cannot be used: ")


def test_taken_address_leaves_the_owners_socket_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forkgate.admin.server.RETRY_S", 0.02)

    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            async with served(tmp_path, section(listen=AdminListen(port=port))) as server:
                connector = aiohttp.UnixConnector(str(tmp_path / "admin.sock"))
                async with aiohttp.ClientSession(connector=connector) as session:
                    async with session.get("http://judge/v1/status") as response:
                        (trouble,) = (await response.json())["troubles"]
                    assert trouble.startswith(f"admin.listen: 127.0.0.1 port {port}: cannot be listened on")
                    taken.close()
                    while server.address is None:
                        await asyncio.sleep(0.01)
                    assert (await ask(server, "GET", "/healthz"))[0] == 200
                    async with session.get("http://judge/v1/status") as response:
                        assert (await response.json())["troubles"] == []

    run(main())


# --- clients that misbehave


async def raw(server: AdminServer, *parts: bytes) -> bytes:
    assert server.address is not None
    host, _, port = server.address.rpartition("//")[2].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        return await reader.read()
    finally:
        writer.close()


def authorized(head: str) -> bytes:
    return f"{head}\r\nhost: x\r\nauthorization: Bearer {TOKENS[Role.OWNER]}\r\n".encode()


def test_slow_and_oversized_requests_are_cut_off(tmp_path: Path) -> None:
    limits = AdminLimits(idle_s=0.3, body_s=0.3)
    post = authorized("POST /v1/rollouts/r/lift HTTP/1.1")

    async def main() -> None:
        async with served(tmp_path, section(limits=limits)) as server:
            assert await raw(server) == b""  # says nothing
            assert await raw(server, b"GET /healthz HTT") == b""  # never ends its head
            slow = await raw(server, post + b"content-length: 100\r\n\r\n", b'{"reason"')
            assert slow.startswith(b"HTTP/1.1 408 ")
            assert b"the body did not come within 0.3 s" in slow
        async with served(tmp_path, section()) as server:
            large = await raw(
                server, post + b"content-length: 70000\r\nconnection: close\r\n\r\n", b"x" * 70_000
            )
            assert large.startswith(b"HTTP/1.1 413 ")
            assert b"invalid_request_error" in large
            get = authorized("GET /healthz HTTP/1.1")
            assert b" 400 " in (await raw(server, get + b"x: " + b"y" * 20_000 + b"\r\n\r\n"))[:15]
            many = b"".join(b"x-%d: y\r\n" % number for number in range(200))
            assert b" 400 " in (await raw(server, get + many + b"\r\n"))[:15]
            assert (await ask(server, "GET", "/healthz"))[0] == 200

    run(main())


def test_connections_beyond_the_limit_are_closed_and_the_unix_socket_stays(tmp_path: Path) -> None:
    async def main() -> None:
        async with served(tmp_path, section(limits=AdminLimits(connections=3))) as server:
            assert server.address is not None
            host, _, port = server.address.removeprefix("http://").rpartition(":")
            held = [await asyncio.open_connection(host, int(port)) for _ in range(3)]
            while len(server._remote.server.connections) < 3:  # type: ignore[union-attr]
                await asyncio.sleep(0)
            reader, writer = await asyncio.open_connection(host, int(port))
            assert await reader.read() == b""
            writer.close()
            connector = aiohttp.UnixConnector(str(tmp_path / "admin.sock"))
            async with (
                aiohttp.ClientSession(connector=connector) as session,
                session.get("http://judge/v1/status") as response,
            ):
                told = await response.json()
                assert told["admin"]["turned_away"] == 1
            for _, one in held:
                one.close()

    run(main())


def test_expired_token_is_refused_by_name_and_counts_as_a_failure(tmp_path: Path) -> None:
    old = token("ana", Role.OWNER, "t" * 32, expires="2020-01-01")

    async def main() -> None:
        async with served(tmp_path, section(tokens=(old,))) as server:
            status, text = await ask(server, "GET", "/v1/ledger", "t" * 32)
            assert status == 401
            assert "the token 'ana' has expired, at 2020-01-01" in text
            assert server.guard.refused == {"401": 1}

    run(main())


def test_a_body_that_does_not_decode_is_the_clients_mistake(tmp_path: Path) -> None:
    async def test() -> None:
        async with served(tmp_path, section()) as server:
            zipped = {"content-encoding": "gzip", "authorization": f"Bearer {TOKENS[Role.OWNER]}"}
            async with (
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
                session.post(
                    f"{server.address}/v1/rollouts/r/pause", data=b"hello", headers=zipped
                ) as response,
            ):
                assert (response.status, "cannot be read" in await response.text()) == (400, True)

    run(test())


def test_garbage_and_resets_leave_no_traceback_and_no_token_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Anybody who reaches the port could fill the log with errors else."""
    mark = "a-token-" * 2_000

    async def test() -> None:
        async with served(tmp_path, section()) as server:
            head = f"GET /v1/status HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {mark}\r\n\r\n"
            assert b" 400 " in await raw(server, head.encode())
            host, _, port = str(server.address).removeprefix("http://").rpartition(":")
            for _ in range(20):
                one = socket.create_connection((host, int(port)))
                one.send(b"GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n")
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                one.close()
            assert (await ask(server, "GET", "/healthz"))[0] == 200  # taken up after all of these

    run(test())
    assert [record for record in caplog.records if record.exc_info or record.levelname == "ERROR"] == []
    assert ("a-token-" in caplog.text, "no request" in caplog.text) == (False, True)
