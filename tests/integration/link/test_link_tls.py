"""The link between machines: both ends prove who they are."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme
import uvloop

from proxy.edge.settings import LinkTLS
from proxy.link.channel import LinkError
from proxy.link.client import EdgeLink
from proxy.link.server import LinkServer
from tests.support.link import ListListener, ListSink, capture_head, edge_settings, route_table, unix_target
from tests.support.waiting import eventually


def issue(directory: Path, name: str, ca: trustme.CA, host: str) -> LinkTLS:
    """A certificate of ``ca`` for ``host``, as files."""
    certificate = ca.issue_cert(host)
    paths = {part: str(directory / f"{name}-{part}.pem") for part in ("ca", "cert", "key")}
    ca.cert_pem.write_to_path(paths["ca"])
    certificate.cert_chain_pems[0].write_to_path(paths["cert"])
    certificate.private_key_pem.write_to_path(paths["key"])
    return LinkTLS(ca_file=paths["ca"], cert_file=paths["cert"], key_file=paths["key"])


def test_captures_and_tables_pass_over_mutual_tls(tmp_path: Path) -> None:
    async def main() -> None:
        ca = trustme.CA()
        sink = ListSink()
        server = LinkServer("127.0.0.1:0", issue(tmp_path, "judge", ca, "judge.test"), sink, route_table(7))
        await server.start()
        tls = issue(tmp_path, "edge", ca, "edge.test")
        settings = edge_settings(
            f"127.0.0.1:{server.port}",
            link_tls=LinkTLS(
                ca_file=tls.ca_file, cert_file=tls.cert_file, key_file=tls.key_file, server_name="judge.test"
            ),
        )
        link = EdgeLink(settings, ListListener())
        await link.start()
        link.offer(link.begin(), capture_head(), b"secret")
        await eventually(lambda: sink.captures, "the capture")
        await eventually(lambda: link.epoch == 7, "the table")
        await link.close(1.0)
        await server.stop()

    uvloop.run(main())


@pytest.mark.parametrize("stranger", ["certificate of another CA", "no certificate", "judge of another name"])
def test_a_stranger_gets_and_gives_nothing(tmp_path: Path, stranger: str) -> None:
    async def main() -> None:
        ca = trustme.CA()
        sink = ListSink()
        server = LinkServer("127.0.0.1:0", issue(tmp_path, "judge", ca, "judge.test"), sink, route_table(7))
        await server.start()
        tls: LinkTLS | None = None
        if stranger != "no certificate":
            issuer = trustme.CA() if stranger == "certificate of another CA" else ca
            own = issue(tmp_path, "edge", issuer, "edge.test")
            ca.cert_pem.write_to_path(str(tmp_path / "anchor.pem"))
            tls = LinkTLS(
                ca_file=str(tmp_path / "anchor.pem"),
                cert_file=own.cert_file,
                key_file=own.key_file,
                server_name="other.test" if stranger == "judge of another name" else "judge.test",
            )
        target = f"127.0.0.1:{server.port}"
        link = EdgeLink(edge_settings(target, "stranger", link_tls=tls), ListListener())
        await link.start()
        link.offer(link.begin(), capture_head(), b"")
        # A welcome edge, started later and served, shows that the stranger had its time.
        own = issue(tmp_path, "good", ca, "edge.test")
        good_tls = LinkTLS(
            ca_file=own.ca_file, cert_file=own.cert_file, key_file=own.key_file, server_name="judge.test"
        )
        good = EdgeLink(edge_settings(target, "good", link_tls=good_tls), ListListener())
        await good.start()
        good.offer(good.begin(), capture_head(), b"")
        await eventually(lambda: sink.captures, "the welcome edge's capture")
        assert [edge.incarnation for edge, _ in sink.captures] == ["good"]
        assert link.epoch == 1
        assert not link.judge_answers
        await link.close(0.0)
        await good.close(1.0)
        await server.stop()

    uvloop.run(main())


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "judge.example.com:7000", "[::]:0"])
def test_a_remote_address_without_tls_is_refused(bind: str) -> None:
    async def main() -> None:
        server = LinkServer(bind, None, ListSink(), route_table(1))
        with pytest.raises(LinkError, match="give it TLS"):
            await server.start()

    uvloop.run(main())


def test_a_missing_certificate_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        tls = LinkTLS(ca_file=str(tmp_path / "nowhere.pem"), cert_file="x", key_file="y")
        link = EdgeLink(edge_settings("127.0.0.1:1", link_tls=tls), ListListener())
        with pytest.raises(LinkError, match=r"link_tls.ca_file: .*nowhere.pem cannot be read"):
            await link.start()
        await link.close(0.0)

    uvloop.run(main())


def test_a_port_in_use_is_an_error_that_names_it() -> None:
    async def main() -> None:
        first = LinkServer("127.0.0.1:0", None, ListSink(), route_table(1))
        await first.start()
        second = LinkServer(f"127.0.0.1:{first.port}", None, ListSink(), route_table(1))
        with pytest.raises(LinkError, match=f"127.0.0.1:{first.port}: cannot listen"):
            await second.start()
        await first.stop()

    uvloop.run(main())


def test_a_socket_left_by_a_killed_judge_is_replaced_and_a_file_is_not(tmp_path: Path) -> None:
    async def main() -> None:
        path = Path(unix_target(tmp_path).removeprefix("unix:"))
        path.write_text("somebody's notes")
        server = LinkServer(unix_target(tmp_path), None, ListSink(), route_table(1))
        with pytest.raises(LinkError, match="it is no socket"):
            await server.start()
        path.unlink()
        import socket

        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))
        await server.start()
        assert path.stat().st_mode & 0o777 == 0o600
        await server.stop()

    uvloop.run(main())
