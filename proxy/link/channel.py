"""How both ends of the link set up gRPC: limits, keep-alive, credentials."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from proxy.edge.settings import LinkTLS

MESSAGE_BYTES = 67_108_864
"""Largest message either way. Both ends hold it: a batch is closed well before."""

_COMMON: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
]
_CLIENT: list[tuple[str, Any]] = [
    *_COMMON,
    # A peer that is alive but stopped, or a host that went away without a reset, is found in 8 s.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Reconnect within a judge's restart, not within gRPC's default of up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_retries", 0),  # a batch is sent again by its owner, who knows when to stop
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),  # an environment's http_proxy is not for the link
]
_SERVER: list[tuple[str, Any]] = [
    *_COMMON,
    ("grpc.so_reuseport", 0),  # a second judge on one port must fail, not share
    ("grpc.http2.min_ping_interval_without_data_ms", 2_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # A connection that does not get through TLS holds one of the judge's descriptors no longer than this. How
    # many may be there at once gRPC does not let us say.
    ("grpc.server_handshake_timeout_ms", 5_000),
]


class LinkError(Exception):
    """The link cannot be set up: a wrong address, a certificate that cannot be read, a port in use."""


def open_channel(target: str, tls: LinkTLS | None) -> grpc.aio.Channel:
    """A channel that connects, and reconnects, when it is used.

    Raises:
        LinkError: a TLS file cannot be read.
    """
    if tls is None:
        return grpc.aio.insecure_channel(target, options=_CLIENT)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_read(tls.ca_file, "link_tls.ca_file"),
        private_key=_read(tls.key_file, "link_tls.key_file"),
        certificate_chain=_read(tls.cert_file, "link_tls.cert_file"),
    )
    options = list(_CLIENT)
    if tls.server_name is not None:
        options.append(("grpc.ssl_target_name_override", tls.server_name))
    return grpc.aio.secure_channel(target, credentials, options=options)


def open_server() -> grpc.aio.Server:
    """A server with the link's options, bound to nothing yet."""
    return grpc.aio.server(options=_SERVER)


def bind_server(server: grpc.aio.Server, bind: str, tls: LinkTLS | None) -> int:
    """Bind ``unix:PATH`` or ``host:port``; returns the port (0 for a unix socket).

    A remote address without TLS is refused: tables on it move traffic.

    Raises:
        LinkError: the address is taken or no address, or a TLS file cannot be read.
    """
    if tls is None and not _is_local(bind):
        raise LinkError(f"link {bind}: give it TLS, or bind it to a unix socket or a loopback address")
    if bind.startswith("unix:"):
        _clear_socket(Path(bind.removeprefix("unix:")))
    try:
        if tls is None:
            port = server.add_insecure_port(bind)
        else:
            credentials = grpc.ssl_server_credentials(
                [(_read(tls.key_file, "link.tls.key_file"), _read(tls.cert_file, "link.tls.cert_file"))],
                root_certificates=_read(tls.ca_file, "link.tls.ca_file"),
                require_client_auth=True,
            )
            port = server.add_secure_port(bind, credentials)
    except RuntimeError as error:
        raise LinkError(f"link {bind}: cannot listen there: {error}") from error
    if bind.startswith("unix:"):
        os.chmod(bind.removeprefix("unix:"), stat.S_IRUSR | stat.S_IWUSR)
        return 0
    return port


def _is_local(bind: str) -> bool:
    if bind.startswith("unix:"):
        return True
    host = bind.rpartition(":")[0].strip("[]")
    return host in ("localhost", "::1") or host.startswith("127.")


def _clear_socket(path: Path) -> None:
    """Remove what a killed judge left; anything that is no socket is somebody's file and stays."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise LinkError(f"link unix:{path}: there is a file of that name, and it is no socket")
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


def _read(path: str, name: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise LinkError(f"{name}: {path} cannot be read: {error.strerror}") from error
