from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EdgeIdentity(_message.Message):
    __slots__ = ("sidecar", "worker", "incarnation")
    SIDECAR_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    sidecar: str
    worker: int
    incarnation: str
    def __init__(self, sidecar: _Optional[str] = ..., worker: _Optional[int] = ..., incarnation: _Optional[str] = ...) -> None: ...

class Capture(_message.Message):
    __slots__ = ("capture_id", "sequence", "request_id", "tenant", "rollout", "target", "headers", "body", "live_pool", "received_unix_s")
    CAPTURE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ROLLOUT_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    LIVE_POOL_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    capture_id: str
    sequence: int
    request_id: str
    tenant: str
    rollout: str
    target: str
    headers: _containers.RepeatedScalarFieldContainer[bytes]
    body: bytes
    live_pool: str
    received_unix_s: float
    def __init__(self, capture_id: _Optional[str] = ..., sequence: _Optional[int] = ..., request_id: _Optional[str] = ..., tenant: _Optional[str] = ..., rollout: _Optional[str] = ..., target: _Optional[str] = ..., headers: _Optional[_Iterable[bytes]] = ..., body: _Optional[bytes] = ..., live_pool: _Optional[str] = ..., received_unix_s: _Optional[float] = ...) -> None: ...

class EdgeLedger(_message.Message):
    __slots__ = ("captured", "delivered", "dropped", "held")
    class DroppedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CAPTURED_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    captured: int
    delivered: int
    dropped: _containers.ScalarMap[str, int]
    held: int
    def __init__(self, captured: _Optional[int] = ..., delivered: _Optional[int] = ..., dropped: _Optional[_Mapping[str, int]] = ..., held: _Optional[int] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("edge", "batch", "captures", "live_records", "names", "ledger", "live_lost", "record_bytes")
    EDGE_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    CAPTURES_FIELD_NUMBER: _ClassVar[int]
    LIVE_RECORDS_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    LIVE_LOST_FIELD_NUMBER: _ClassVar[int]
    RECORD_BYTES_FIELD_NUMBER: _ClassVar[int]
    edge: EdgeIdentity
    batch: int
    captures: _containers.RepeatedCompositeFieldContainer[Capture]
    live_records: bytes
    names: _containers.RepeatedScalarFieldContainer[str]
    ledger: EdgeLedger
    live_lost: int
    record_bytes: int
    def __init__(self, edge: _Optional[_Union[EdgeIdentity, _Mapping]] = ..., batch: _Optional[int] = ..., captures: _Optional[_Iterable[_Union[Capture, _Mapping]]] = ..., live_records: _Optional[bytes] = ..., names: _Optional[_Iterable[str]] = ..., ledger: _Optional[_Union[EdgeLedger, _Mapping]] = ..., live_lost: _Optional[int] = ..., record_bytes: _Optional[int] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("batch",)
    BATCH_FIELD_NUMBER: _ClassVar[int]
    batch: int
    def __init__(self, batch: _Optional[int] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("edge", "epoch", "is_supervisor", "rolled_back")
    class RolledBackEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    EDGE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    IS_SUPERVISOR_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    edge: EdgeIdentity
    epoch: int
    is_supervisor: bool
    rolled_back: _containers.ScalarMap[str, int]
    def __init__(self, edge: _Optional[_Union[EdgeIdentity, _Mapping]] = ..., epoch: _Optional[int] = ..., is_supervisor: _Optional[bool] = ..., rolled_back: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Acknowledge(_message.Message):
    __slots__ = ("epoch",)
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    def __init__(self, epoch: _Optional[int] = ...) -> None: ...

class EdgeGone(_message.Message):
    __slots__ = ("edge", "ledger")
    EDGE_FIELD_NUMBER: _ClassVar[int]
    LEDGER_FIELD_NUMBER: _ClassVar[int]
    edge: EdgeIdentity
    ledger: EdgeLedger
    def __init__(self, edge: _Optional[_Union[EdgeIdentity, _Mapping]] = ..., ledger: _Optional[_Union[EdgeLedger, _Mapping]] = ...) -> None: ...

class WatchUp(_message.Message):
    __slots__ = ("hello", "acknowledge", "gone")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    GONE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    acknowledge: Acknowledge
    gone: EdgeGone
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., acknowledge: _Optional[_Union[Acknowledge, _Mapping]] = ..., gone: _Optional[_Union[EdgeGone, _Mapping]] = ...) -> None: ...

class WatchDown(_message.Message):
    __slots__ = ("route_table", "epoch", "settled")
    ROUTE_TABLE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    route_table: bytes
    epoch: int
    settled: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, route_table: _Optional[bytes] = ..., epoch: _Optional[int] = ..., settled: _Optional[_Iterable[str]] = ...) -> None: ...
