"""What only the whole file can be wrong about: names that must match, files that must exist, ranges together.

Each check appends to one list; none stops the others.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Collection
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from forkgate.config.admin import check_admin
from forkgate.config.declared import check_declared
from forkgate.config.evidence import check_evidence
from forkgate.config.hooks import check_hooks
from forkgate.config.model import Config, PoolSection
from forkgate.config.problems import Problem, did_you_mean
from forkgate.config.rollouts import check_rollouts
from forkgate.config.rules import SHA256, Found, check_files, check_name
from policies.routes import UNKNOWN_TENANT, PoolTLS

UNIX_PATH_BYTES = 107
"""``sun_path`` of Linux holds 108 bytes, one of them the closing NUL."""
LONGEST_SOCKET_NAME = "admin.sock"
ENGINE_KINDS = ("llamacpp", "reference", "sglang", "tensorrt_llm", "vllm", "vllm_grpc")

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def cross_check(config: Config, broken: Collection[str] = ()) -> list[Problem]:
    """Everything that makes these values unusable together.

    Args:
        broken: sections that could not be read as written; checks that read one of them are left out.
    """
    found: list[Problem] = []
    for check, reads in (
        (_state_dir, {"state_dir"}),
        (_listen, {"listen"}),
        (_pools, {"pools"}),
        (_home, {"home", "pools"}),
        (_identity, {"identity", "listen"}),
        (_tenants, {"tenants"}),
        (check_rollouts, {"rollouts", "pools", "home", "tenants", "identity"}),
        (_judge, {"judge"}),
        (_telemetry, {"telemetry", "listen"}),
        (check_admin, {"admin", "listen", "telemetry"}),
        (check_evidence, {"evidence", "tenants"}),
        (check_declared, {"pools"}),
        (check_hooks, {"hooks", "rollouts"}),
        (_positive, {"limits", "timeouts", "capture", "pools"}),
    ):
        if reads.isdisjoint(broken):
            found += [Problem(path=path, message=message) for path, message in check(config)]
    return found


def _state_dir(config: Config) -> Found:
    longest = len(os.fsencode(os.path.join(config.state_dir, LONGEST_SOCKET_NAME)))
    if longest > UNIX_PATH_BYTES:
        yield (
            "state_dir",
            f"its sockets' paths are {longest} bytes, a unix socket's holds {UNIX_PATH_BYTES}, shorten it",
        )
    path = Path(config.state_dir)
    if path.exists() and not path.is_dir():
        yield "state_dir", f"{config.state_dir!r} is not a directory, name one"


def _listen(config: Config) -> Found:
    tls = config.listen.tls
    if tls is not None:
        yield from check_files("listen.tls", cert_file=tls.cert_file, key_file=tls.key_file)
        yield from check_files("listen.tls", client_ca_file=tls.client_ca_file)


def _pools(config: Config) -> Found:
    seen: set[str] = set()
    for index, pool in enumerate(config.pools):
        path = f"pools[{index}]"
        yield from check_name(f"{path}.name", pool.name)
        if pool.name in seen:
            yield f"{path}.name", f"{pool.name!r} is the name of an earlier pool too, rename one"
        seen.add(pool.name)
        yield from _endpoints(path, pool)
        if pool.tls is not None:
            yield from _pool_tls(f"{path}.tls", pool.tls)
        digest = pool.environment_digest
        if digest is not None and not (digest.startswith("sha256:") and SHA256.fullmatch(digest[7:])):
            yield f"{path}.environment_digest", f"{digest!r} is not sha256: and 64 lower-case hex digits"
        if pool.engine.kind not in ENGINE_KINDS:
            yield (
                f"{path}.engine.kind",
                f"unknown engine {pool.engine.kind!r}, {did_you_mean(pool.engine.kind, ENGINE_KINDS)}",
            )
        yield from check_files(f"{path}.engine", credential_file=pool.engine.credential_file)


def _endpoints(path: str, pool: PoolSection) -> Found:
    for key, urls in (
        ("endpoints", pool.endpoints),
        ("shadow_endpoints", pool.shadow_endpoints),
        ("watch.endpoints", pool.watch.endpoints),
    ):
        for index, url in enumerate(urls):
            where = f"{path}.{key}[{index}]"
            fault = _url_fault(url)
            if fault:
                yield where, fault
            elif pool.tls is not None and url.startswith("http://"):
                yield (
                    where,
                    f"{url!r} is plain http though {path}.tls is set, write https or remove the tls section",
                )
            if url in urls[:index]:
                yield where, f"{url!r} stands here twice, keep one"


def _url_fault(url: str) -> str | None:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        return f"{url!r} is not a URL: {error}"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return f"{url!r} is not http://host:port or https://host:port"
    if port == 0:
        return f"{url!r} has port 0, name a real one"
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        return f"{url!r} has a path, only scheme, host and port may stand here"
    if parts.username or parts.password:
        return "holds a credential, use engine.credential_file"  # and it is not repeated here
    return None


def _pool_tls(path: str, tls: PoolTLS) -> Found:
    yield from check_files(path, ca_file=tls.ca_file, client_cert_file=tls.client_cert_file)
    yield from check_files(path, client_key_file=tls.client_key_file)
    if (tls.client_cert_file is None) != (tls.client_key_file is None):
        missing = "client_key_file" if tls.client_key_file is None else "client_cert_file"
        yield f"{path}.{missing}", "missing, a client certificate needs its key and the other way round"


def _home(config: Config) -> Found:
    yield from _known_pool(config, "home", config.home)


def _known_pool(config: Config, path: str, name: str) -> Found:
    names = [pool.name for pool in config.pools]
    if name not in names:
        yield path, f"no pool is called {name!r}, {did_you_mean(name, names)}"


def _identity(config: Config) -> Found:
    header = config.identity.tenant_header
    mtls = config.listen.tls is not None and config.listen.tls.client_ca_file is not None
    if header is not None:
        if not _HEADER_NAME.fullmatch(header):
            yield "identity.tenant_header", f"{header!r} is not a header's name"
        if not config.identity.trusted_peers and not mtls:
            yield (
                "identity.tenant_header",
                f"nobody may send {header!r}, set identity.trusted_peers or listen.tls.client_ca_file",
            )
    for index, network in enumerate(config.identity.trusted_peers):
        path = f"identity.trusted_peers[{index}]"
        try:
            ipaddress.ip_network(network)
        except ValueError:
            try:
                meant = ipaddress.ip_network(network, strict=False)
            except ValueError:
                yield path, f"{network!r} is not a network in CIDR form, such as '10.0.0.0/8' or '::1/128'"
            else:
                yield path, f"{network!r} has host bits set, write '{meant}'"


def _tenants(config: Config) -> Found:
    names: set[str] = set()
    keys: dict[str, str] = {}
    for index, tenant in enumerate(config.tenants):
        path = f"tenants[{index}]"
        if tenant.name == UNKNOWN_TENANT:
            yield f"{path}.name", f"{UNKNOWN_TENANT!r} stands for unknown tenants, choose another name"
        else:
            yield from check_name(f"{path}.name", tenant.name)
        if tenant.name in names:
            yield f"{path}.name", f"{tenant.name!r} is the name of an earlier tenant too, rename one"
        names.add(tenant.name)
        for at, key in enumerate(tenant.api_key_sha256):
            where = f"{path}.api_key_sha256[{at}]"
            if not SHA256.fullmatch(key):
                yield (
                    where,
                    "not 64 lower-case hex digits, make it with `printf %s KEY | sha256sum`",
                )
            elif key in keys:
                yield where, f"this key names {keys[key]!r} already, it can name one tenant only"
            else:
                keys[key] = tenant.name


def _judge(config: Config) -> Found:
    judge = config.judge
    if judge.tls is not None:
        yield from check_files("judge.tls", ca_file=judge.tls.ca_file, cert_file=judge.tls.cert_file)
        yield from check_files("judge.tls", key_file=judge.tls.key_file)
    if judge.address is None:
        if judge.tls is not None:
            yield "judge.tls", "TLS is for HOST:PORT, set judge.address or remove this section"
        return
    if judge.address.startswith("unix:"):
        path = os.fsencode(judge.address[5:])
        if not path.startswith(b"/"):
            yield "judge.address", f"{judge.address!r} is not an absolute path"
        elif len(path) > UNIX_PATH_BYTES:
            yield (
                "judge.address",
                f"the path is {len(path)} bytes and a unix socket's path holds {UNIX_PATH_BYTES}",
            )
        return
    host, _, port = judge.address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        yield "judge.address", f"{judge.address!r} is neither unix:PATH nor HOST:PORT"
    elif judge.tls is None:
        yield (
            "judge.tls",
            f"missing, captures hold what clients wrote and travel to {judge.address} with mutual TLS only",
        )


def _telemetry(config: Config) -> Found:
    prometheus = config.telemetry.prometheus
    if prometheus is not None and prometheus.port and prometheus.port == config.listen.port:
        anywhere = {"0.0.0.0", "::", ""}  # noqa: S104 - recognised, not bound
        if prometheus.host == config.listen.host or anywhere & {prometheus.host, config.listen.host}:
            yield "telemetry.prometheus.port", f"{prometheus.port} is listen.port too, choose another"


def _positive(config: Config) -> Found:
    sections: list[tuple[str, msgspec.Struct]] = [
        ("limits", config.limits),
        ("timeouts", config.timeouts),
        ("capture", config.capture),
    ]
    sections += [(f"pools[{index}].engine", pool.engine) for index, pool in enumerate(config.pools)]
    may_be_zero = {"retry_body_bytes", "drain_s", "tunnel_grace_s", "upstream_idle_connections", "eject_s"}
    for path, section in sections:
        for key, value in msgspec.structs.asdict(section).items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                continue
            if value < 0 or (value == 0 and key not in may_be_zero):
                yield f"{path}.{key}", f"{value:g} is not above zero"
    if config.capture.batch_items > config.capture.queue_items:
        yield (
            "capture.batch_items",
            f"{config.capture.batch_items} is more than queue_items, {config.capture.queue_items}, lower it",
        )
