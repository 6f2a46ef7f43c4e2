"""Types of the services in ``link.proto``, written by ``make proto``."""

from collections.abc import AsyncIterator, Awaitable
from typing import Any

import grpc.aio

from . import link_pb2 as pb

class LinkStub:
    def __init__(self, channel: grpc.aio.Channel) -> None: ...
    Submit: grpc.aio.UnaryUnaryMultiCallable[pb.Batch, pb.Receipt]
    Watch: grpc.aio.StreamStreamMultiCallable[pb.WatchUp, pb.WatchDown]

class LinkServicer:
    def Submit(self, request: pb.Batch, context: Any) -> Awaitable[pb.Receipt]: ...
    def Watch(self, request_iterator: AsyncIterator[pb.WatchUp], context: Any) -> Awaitable[None]: ...

def add_LinkServicer_to_server(
    servicer: LinkServicer, server: grpc.aio.Server
) -> None: ...
