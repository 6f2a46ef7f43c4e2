"""Generates the link's Python code from its ``.proto``: ``make proto``.

protoc writes absolute imports of sibling modules (``import link_pb2``), which break inside a package; they
are made relative here. It types messages (``--pyi_out``) but not services, so the service's stub is written
here, for grpc.aio alone, since nothing else is used.
"""

from __future__ import annotations

import re
import sys
import tempfile
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proxy" / "link" / "link.proto"
TARGET = ROOT / "proxy" / "link" / "pb"

_INIT = '"""Generated from ``link.proto`` by ``make proto``. Never edited by hand."""\n'
_SIBLING = re.compile(r"^import (\w+_pb2)( as \w+)?$", re.MULTILINE)


class ProtocFailed(Exception):  # noqa: N818
    """protoc said no; its own words are on standard error."""


def render() -> dict[Path, str]:
    """What every generated file must hold, by its place in the repository."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from grpc_tools import protoc

    with tempfile.TemporaryDirectory() as scratch:
        described = Path(scratch) / "descriptors"
        code = protoc.main(
            [
                "protoc",
                f"-I{PROTO.parent}",
                f"-I{files('grpc_tools').joinpath('_proto')}",
                f"--python_out={scratch}",
                f"--pyi_out={scratch}",
                f"--grpc_python_out={scratch}",
                f"--descriptor_set_out={described}",
                str(PROTO),
            ]
        )
        if code != 0:
            raise ProtocFailed(f"{PROTO}: protoc ended with {code}; run `make proto` to see why")
        descriptors = FileDescriptorSet.FromString(described.read_bytes())
        made = {path.name: path.read_text() for path in sorted(Path(scratch).glob("*.py*"))}
    rendered = {TARGET / "__init__.py": _INIT}
    for name, text in made.items():
        rendered[TARGET / name] = _SIBLING.sub(_relative, text)
    for file in descriptors.file:
        messages = Path(file.name).stem + "_pb2"
        rendered[TARGET / f"{messages}_grpc.pyi"] = _service_stub(file, messages)
    return rendered


def _relative(match: re.Match[str]) -> str:
    """``import a_pb2 as x`` → ``from . import a_pb2 as x``."""
    module, alias = match.group(1), match.group(2) or ""
    return f"from . import {module}{alias}"


def _service_stub(file, messages: str) -> str:  # type: ignore[no-untyped-def]
    """Types of a service's client and server, as grpc.aio has them."""
    lines = [
        '"""Types of the services in ``' + file.name + '``, written by ``make proto``."""',
        "",
        "from collections.abc import AsyncIterator, Awaitable",
        "from typing import Any",
        "",
        "import grpc.aio",
        "",
        f"from . import {messages} as pb",
    ]
    for service in file.service:
        client, server = [], []
        for method in service.method:
            asked, answered = (
                f"pb.{name.rpartition('.')[2]}" for name in (method.input_type, method.output_type)
            )
            kind = ("Stream" if method.client_streaming else "Unary") + (
                "Stream" if method.server_streaming else "Unary"
            )
            client.append(f"    {method.name}: grpc.aio.{kind}MultiCallable[{asked}, {answered}]")
            given = f"AsyncIterator[{asked}]" if method.client_streaming else asked
            name = "request_iterator" if method.client_streaming else "request"
            # A handler that streams may write to its context and return nothing.
            result = "None" if method.server_streaming else answered
            server.append(
                f"    def {method.name}(self, {name}: {given}, context: Any) -> Awaitable[{result}]: ..."
            )
        lines += [
            "",
            f"class {service.name}Stub:",
            "    def __init__(self, channel: grpc.aio.Channel) -> None: ...",
            *client,
            "",
            f"class {service.name}Servicer:",
            *server,
            "",
            f"def add_{service.name}Servicer_to_server(",
            f"    servicer: {service.name}Servicer, server: grpc.aio.Server",
            ") -> None: ...",
        ]
    return "\n".join(lines) + "\n"


def main() -> int:
    rendered = render()
    TARGET.mkdir(exist_ok=True)
    for stale in set(TARGET.glob("*.py*")) - set(rendered):
        stale.unlink()
    for path, text in rendered.items():
        path.write_text(text)
        print(path.relative_to(ROOT))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
