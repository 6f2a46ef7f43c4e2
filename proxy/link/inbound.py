"""Messages of the link to values, at the judge.

Each function raises ValueError for a message that breaks the protocol.
"""

from __future__ import annotations

from comparator.records import LiveRecord
from proxy.ledger import EdgeCounts
from proxy.link.pb import link_pb2 as pb
from proxy.link.values import Capture, EdgeIdentity
from proxy.live import (
    ABORTED_BY,
    FIRST_RECORD_BYTES,
    FLAG_CANARY,
    FLAG_DRAWABLE,
    FLAG_RETRIED,
    FLAG_SAMPLED,
    FLAG_STREAMED,
    RawRecord,
    unpack,
)


def identity_of(edge: pb.EdgeIdentity) -> EdgeIdentity:
    """Who an edge says it is. Raises ValueError without an incarnation."""
    if not edge.incarnation:
        raise ValueError("an edge without an incarnation")
    return EdgeIdentity(sidecar=edge.sidecar, worker=edge.worker, incarnation=edge.incarnation)


def counts_of(identity: EdgeIdentity, ledger: pb.EdgeLedger) -> EdgeCounts:
    """An edge's ledger as this process counts."""
    return EdgeCounts(
        sidecar=identity.sidecar,
        worker=identity.worker,
        incarnation=identity.incarnation,
        captured=ledger.captured,
        delivered=ledger.delivered,
        dropped=dict(ledger.dropped),
        held=ledger.held,
    )


def capture_of(capture: pb.Capture) -> Capture:
    """A capture as the judge reads it."""
    flat = capture.headers
    return Capture(
        sequence=capture.sequence,
        capture_id=capture.capture_id,
        request_id=capture.request_id,
        tenant=capture.tenant,
        rollout=capture.rollout,
        target=capture.target,
        headers=tuple(zip(flat[::2], flat[1::2], strict=True)),
        body=capture.body,
        live_pool=capture.live_pool,
        received_unix_s=capture.received_unix_s,
    )


def live_of(batch: pb.Batch) -> tuple[list[LiveRecord], list[float]]:
    """A batch's live records, in its order, and what its edge itself added to each, in seconds or NaN."""
    overheads: list[float] = []
    records: list[LiveRecord] = []
    for raw in unpack(batch.live_records, batch.names, batch.record_bytes or FIRST_RECORD_BYTES):
        overheads.append(raw.overhead_s)
        records.append(_record(raw, by_probe=not batch.record_bytes))
    return records, overheads


def _record(raw: RawRecord, *, by_probe: bool) -> LiveRecord:
    return LiveRecord(
        sequence=raw.sequence,
        started_unix_s=raw.started_unix_s,
        tenant=raw.tenant,
        pool=raw.pool,
        endpoint=raw.endpoint,
        status=raw.status,
        first_byte_s=raw.first_byte_s,
        total_s=raw.total_s,
        request_bytes=raw.request_bytes,
        response_bytes=raw.response_bytes,
        aborted_by=ABORTED_BY[raw.aborted_by],
        retried=bool(raw.flags & FLAG_RETRIED),
        canary=bool(raw.flags & FLAG_CANARY),
        sampled=bool(raw.flags & FLAG_SAMPLED),
        streamed=bool(raw.flags & FLAG_STREAMED),
        drawable=bool(raw.flags & FLAG_DRAWABLE),
        environment=raw.environment,
        environment_by_probe=by_probe,
    )
