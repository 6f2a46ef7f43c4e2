"""The ``admin:`` section: who may reach the judge from another machine, and what each of them may do.

The unix socket in ``state_dir`` is the owner's door and needs nothing from here.
"""

from __future__ import annotations

import datetime
import enum
import ipaddress
import ssl
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from forkgate.config.rules import SHA256, Found, check_files, check_name

if TYPE_CHECKING:
    from forkgate.config.model import Config

TOKEN_CHARS = 32
"""A token's least length: 128 bits as hex digits."""


class Role(enum.StrEnum):
    """What a token may do. ``forkgate.admin.roles`` has the lattice."""

    VIEWER = "viewer"  # where things stand; no prompt, token or text of anybody
    AUDITOR = "auditor"  # and evidence with its content, and the audit log
    OPERATOR = "operator"  # viewer, and the steps of rollouts; no content
    OWNER = "owner"  # everything, like the unix socket


class AdminTLS(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """TLS of the admin API's TCP address."""

    cert_file: str
    """PEM chain."""
    key_file: str
    """Its key, not encrypted."""
    client_ca_file: str | None = None
    """When set, clients must show a certificate that chains to it, and a token all the same."""


class AdminListen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A TCP address of the admin API, beside the unix socket."""

    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535)] = 9465
    """0 asks the system for a free one; ``forkgate status`` tells which."""
    tls: AdminTLS | None = None
    """Needed for every host but loopback."""


class AdminToken(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bearer token. Exactly one of ``sha256`` and ``file``."""

    name: str
    """Who it is; what the audit log says."""
    role: Role
    """``viewer``, ``auditor``, ``operator`` or ``owner``."""
    sha256: str | None = None
    """SHA-256 (64 hex digits) of the token, so that the token itself stands in no file here."""
    file: str | None = None
    """A file that holds the token, such as a mounted secret. Read again when it changes."""
    expires: str | None = None
    """The last moment it is good for: ``2027-01-31`` (the end of that day) or ``2027-01-31T12:00:00Z``, UTC
    unless it says otherwise."""


class AdminLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one admin client may take."""

    connections: Annotated[int, Meta(ge=1)] = 64
    """TCP connections at once; further ones are closed."""
    idle_s: Annotated[float, Meta(gt=0)] = 15.0
    """How long a connection may take to send a request's head, or be silent between two."""
    body_s: Annotated[float, Meta(gt=0)] = 10.0
    """How long a request's body may take; then 408."""
    failures_per_minute: Annotated[int, Meta(ge=1)] = 30
    """Wrong tokens from one address before every request from there is answered 429, right tokens too."""


class AdminSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The admin API for other machines. Without ``listen`` there is the unix socket alone."""

    listen: AdminListen | None = None
    tokens: tuple[AdminToken, ...] = ()
    limits: AdminLimits = AdminLimits()
    audit_wait_s: Annotated[float, Meta(gt=0)] = 2.0
    """How long an action waits for the audit log's disk; then it is refused. A rollback goes through."""


def expiry_unix_s(text: str) -> float:
    """The moment that ``expires`` names. Raises ValueError."""
    try:
        day = datetime.date.fromisoformat(text)
    except ValueError:
        at = datetime.datetime.fromisoformat(text)
        return (at if at.tzinfo else at.replace(tzinfo=datetime.UTC)).timestamp()
    after = datetime.datetime.combine(day, datetime.time(), datetime.UTC) + datetime.timedelta(days=1)
    return after.timestamp()


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_admin(config: Config) -> Found:
    """What is wrong with this section, beside its shape."""
    admin = config.admin
    if admin.listen is None:
        if admin.tokens:
            yield "admin.tokens", "nothing listens for them, set admin.listen or remove them"
    else:
        yield from _listen(config, admin.listen)
        if not admin.tokens:
            yield "admin.tokens", "is empty and nobody could be let in, give one or remove admin.listen"
    names: set[str] = set()
    hashes: dict[str, str] = {}
    for index, token in enumerate(admin.tokens):
        path = f"admin.tokens[{index}]"
        yield from check_name(f"{path}.name", token.name)
        if token.name in names:
            yield f"{path}.name", f"{token.name!r} is the name of an earlier token too, rename one"
        names.add(token.name)
        yield from _token(path, token)
        if token.sha256 is not None:
            if token.sha256 in hashes:
                yield f"{path}.sha256", f"is {hashes[token.sha256]!r}'s token too, a token is one person's"
            hashes.setdefault(token.sha256, token.name)


def _listen(config: Config, listen: AdminListen) -> Found:
    if listen.tls is not None:
        yield from check_files("admin.listen.tls", cert_file=listen.tls.cert_file)
        yield from check_files("admin.listen.tls", key_file=listen.tls.key_file)
        yield from check_files("admin.listen.tls", client_ca_file=listen.tls.client_ca_file)
        if (fault := _tls_fault(listen.tls)) is not None:
            yield "admin.listen.tls", fault
    elif not is_loopback(listen.host):
        yield (
            "admin.listen.tls",
            (
                f"missing, tokens and evidence would reach {listen.host!r} in the clear: "
                "give cert_file and key_file, or listen on 127.0.0.1"
            ),
        )
    others = {"listen.port": config.listen.port}
    if config.telemetry.prometheus is not None:
        others["telemetry.prometheus.port"] = config.telemetry.prometheus.port
    for name, port in others.items():
        if listen.port and listen.port == port:
            yield "admin.listen.port", f"{listen.port} is {name} too, choose another"


def _tls_fault(tls: AdminTLS) -> str | None:
    """Why these files make no TLS; None also where one of them is not there, which is told elsewhere."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.cert_file, tls.key_file)
        if tls.client_ca_file is not None:
            context.load_verify_locations(tls.client_ca_file)
    except ssl.SSLError as error:
        return f"cannot be used: {error}; give a PEM chain, its unencrypted key, and PEM authorities"
    except OSError:
        return None
    return None


def _token(path: str, token: AdminToken) -> Found:
    if (token.sha256 is None) == (token.file is None):
        yield path, "needs exactly one of sha256 and file"
    if token.sha256 is not None and not SHA256.fullmatch(token.sha256):
        yield f"{path}.sha256", "not 64 lower-case hex digits, make it with `printf %s TOKEN | sha256sum`"
    if token.file is not None:
        yield from check_files(path, file=token.file)
    if token.expires is not None:
        try:
            expiry_unix_s(token.expires)
        except ValueError:
            yield (
                f"{path}.expires",
                (
                    f"{token.expires!r} is neither a date such as '2027-01-31' nor a time such as "
                    "'2027-01-31T12:00:00Z'"
                ),
            )
