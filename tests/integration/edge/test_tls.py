"""TLS on the listener and to the pool."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import msgspec
import pytest

from policies.routes import PoolTLS, RouteTable
from proxy.edge.errors import SettingsError
from proxy.edge.settings import Identity, ListenTLS
from tests.support.certificates import Authority, Certificate
from tests.support.edge import (
    Arrived,
    RunningEdge,
    Upstream,
    answer,
    error_of,
    get,
    read_answer,
    run,
    running_edge,
    status_of,
    table,
)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Certificate:
    return authority.issue("localhost", "127.0.0.1")


async def hello(request: Arrived) -> None:
    request.say(answer(b"hello"))


def server_context(certificate: Certificate, client_ca: str | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert_file, certificate.key_file)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def with_pool_tls(initial: RouteTable, tls: PoolTLS) -> RouteTable:
    pools = tuple(msgspec.structs.replace(pool, tls=tls) for pool in initial.pools)
    return msgspec.structs.replace(initial, pools=pools)


async def ask(edge: RunningEdge, *headers: str, tls: ssl.SSLContext | None = None) -> tuple[bytes, bytes]:
    reader, writer = await edge.connect(ssl=tls, server_hostname="localhost" if tls else None)
    writer.write(get("/", "Connection: close", *headers))
    got = await read_answer(reader)
    writer.close()
    return got


def test_listener_speaks_tls_and_says_so_upstream(authority: Authority, server: Certificate) -> None:
    async def main() -> None:
        upstream = Upstream(hello)
        listen = ListenTLS(cert_file=server.cert_file, key_file=server.key_file)
        async with upstream.running() as url, running_edge(table(url), listen_tls=listen) as edge:
            context = ssl.create_default_context(cafile=authority.cert_file)
            assert (await ask(edge, tls=context))[1] == b"hello"
            assert upstream.arrived[0].header("x-forwarded-proto") == b"https"

    run(main())


def test_a_client_certificate_makes_a_trusted_peer_and_none_is_no_connection(
    authority: Authority, server: Certificate, tmp_path: Path
) -> None:
    async def main() -> None:
        upstream = Upstream(hello)
        listen = ListenTLS(
            cert_file=server.cert_file, key_file=server.key_file, client_ca_file=authority.cert_file
        )
        identity = Identity(tenant_header="x-tenant")
        async with (
            upstream.running() as url,
            running_edge(table(url), listen_tls=listen, identity=identity) as edge,
        ):
            context = ssl.create_default_context(cafile=authority.cert_file)
            client = authority.issue("client")
            context.load_cert_chain(client.cert_file, client.key_file)
            await ask(edge, "X-Request-Id: mine", tls=context)
            assert upstream.arrived[0].header("x-request-id") == b"mine"

            stranger = Authority(tmp_path, "stranger").issue("client")
            for wrong in (None, stranger):
                context = ssl.create_default_context(cafile=authority.cert_file)
                if wrong is not None:
                    context.load_cert_chain(wrong.cert_file, wrong.key_file)
                with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                    await ask(edge, tls=context)
            assert len(upstream.arrived) == 1

    run(main())


def test_pool_is_reached_over_mutual_tls(authority: Authority, server: Certificate) -> None:
    async def main() -> None:
        client = authority.issue("edge")
        tls = PoolTLS(
            ca_file=authority.cert_file, client_cert_file=client.cert_file, client_key_file=client.key_file
        )
        async with (
            Upstream(hello).running(ssl=server_context(server, authority.cert_file)) as url,
            running_edge(with_pool_tls(table(url), tls)) as edge,
        ):
            assert (await ask(edge))[1] == b"hello"
            assert (await ask(edge))[1] == b"hello"

    run(main())


@pytest.mark.parametrize("fault", ["unknown authority", "other name", "missing file", "plain server"])
def test_pool_that_cannot_prove_itself_gets_no_request(
    fault: str, authority: Authority, server: Certificate, tmp_path: Path
) -> None:
    async def main() -> None:
        tls = {
            "unknown authority": PoolTLS(),
            "other name": PoolTLS(ca_file=authority.cert_file, server_name="elsewhere"),
            "missing file": PoolTLS(ca_file=str(tmp_path / "no.crt")),
            "plain server": PoolTLS(ca_file=authority.cert_file),
        }[fault]
        context = None if fault == "plain server" else server_context(server)
        upstream = Upstream(hello)
        async with upstream.running(ssl=context) as url:
            secure = url.replace("http:", "https:")
            async with running_edge(with_pool_tls(table(secure), tls)) as edge:
                head, body = await ask(edge)
                if fault == "plain server":  # it waits for us as we for it
                    assert (status_of(head), error_of(body)["code"]) == (504, "connect_timeout")
                else:
                    assert (status_of(head), error_of(body)["code"]) == (502, "connect_failed")
                assert upstream.arrived == []

    run(main())


def test_bad_listener_files_name_themselves(tmp_path: Path) -> None:
    async def main() -> None:
        listen = ListenTLS(cert_file=str(tmp_path / "no.crt"), key_file=str(tmp_path / "no.key"))
        with pytest.raises(SettingsError, match=r"listen\.tls: .*no\.crt"):
            async with running_edge(table("http://127.0.0.1:1"), listen_tls=listen):
                pass

    run(main())
