"""The rollback latch: a small file, its space taken beforehand, that survives whatever happens next.

It holds what no crash may undo: rollouts that stand rolled back, tenants that were sent home alone, and where
home is once a promotion has moved it. All three are in one file since they change together: the write that
latches a promoted rollout is the write that takes its home back.

Two slots of fixed size hold the whole latch as JSON under a checksum and a rising sequence number. A write
goes to the slot that is *not* current and is synced before it counts, so a crash in the middle leaves the
other slot whole. The space is allocated when the file is made: on a disk that filled up since, a rollback
can still be latched.

Only :meth:`Latch.with_lifted` opens a latch again, and only a person calls it. Files of version 1 (rollouts
alone) are read; a file of a version to come counts as unreadable, for nobody knows what it holds.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from policies.rollout import Latch as Rollback
from policies.rollout import Stage
from policies.routes import TENANT_MARK, PoolName, RolloutName, TenantName
from policies.verdict import Answer, Verdict

SLOT_BYTES = 65_536
SLOTS = 2
_HEAD = struct.Struct("<8sQII")  # magic, sequence, length of the body, CRC-32 of the body
_MAGIC = b"fglatch1"
MAX_BODY_BYTES = SLOT_BYTES - _HEAD.size
VERSION = 2
"""1 knew rollouts alone; 2 knows tenants sent home, and a home that moved."""
MAX_LIFTED = 32
"""Lifted latches kept for people to read; older ones leave first."""
SHORT_REASON_CHARS = 80
"""Of a tenant's rollback, where many tenants are home and their reasons do not fit."""


class LatchCorrupt(Exception):  # noqa: N818 - reads as the fact that it is
    """The file is there, and neither slot is whole, or a newer forkgate wrote it. Nobody can say what was
    latched."""


class Latched(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rollback, of a rollout or of one of its tenants, that stands until a person lifts it."""

    rollback: Rollback
    """Verdict, policy and time: why it was rolled back."""
    epoch: int
    """Route table that carried the flip."""


class Lifted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A latch that a person opened, and why."""

    latched: Latched
    reason: str
    at_unix_s: float
    tenant: str | None = None
    """The one that was lifted alone; None: the rollout."""


class Moved(msgspec.Struct, frozen=True, kw_only=True):
    """Home is where a promotion moved it, not where the configuration began."""

    rollout: str
    pool: str
    epoch: int
    """Epoch above which tables say so."""
    unix_s: float


class Latch(msgspec.Struct, frozen=True, kw_only=True):
    """All that the file says."""

    version: int = VERSION
    """Of the file's format. A file without it is of version 1, which says what it knew in the same words."""
    epoch: int = 0
    """Highest epoch ever announced; the next one is above it."""
    latched: dict[str, Latched] = {}
    """By rollout."""
    tenants: dict[str, dict[str, Latched]] = {}
    """By rollout and tenant: those who are home while their rollout goes on."""
    moved: Moved | None = None
    """None: home is the configuration's."""
    lifted: tuple[Lifted, ...] = ()
    names: dict[str, dict[str, int]] = {}
    """By rollout and tenant, the epoch: tenants who are home, where the file has no room for more than that.
    In the file alone; whoever reads it finds them among :attr:`tenants`."""

    def with_latched(self, rollback: Rollback, epoch: int) -> Latch:
        """This latch with one more rollback. The first reason stands when there are several.

        A home that this rollout moved is back where it was.
        """
        latched = self.latched
        if rollback.rollout not in latched:
            latched = {**latched, rollback.rollout: Latched(rollback=rollback, epoch=epoch)}
        moved = self.moved if self.moved is None or self.moved.rollout != rollback.rollout else None
        return msgspec.structs.replace(self, epoch=max(self.epoch, epoch), latched=latched, moved=moved)

    def with_tenant(self, tenant: str, rollback: Rollback, epoch: int) -> Latch:
        """This latch with one more tenant at home. The first reason stands."""
        its = self.tenants.get(rollback.rollout, {})
        if tenant not in its:
            mine = msgspec.structs.replace(rollback, tenant=TenantName(tenant))
            its = {**its, tenant: Latched(rollback=mine, epoch=epoch)}
        tenants = {**self.tenants, rollback.rollout: its}
        return msgspec.structs.replace(self, epoch=max(self.epoch, epoch), tenants=tenants)

    def with_lifted(self, rollout: str, reason: str, at_unix_s: float, tenant: str | None = None) -> Latch:
        """This latch without ``rollout``'s, or without that of one of its tenants.

        Raises KeyError when it is not latched.
        """
        latched, tenants = self.latched, self.tenants
        if tenant is None:
            entry = latched[rollout]
            latched = {name: other for name, other in latched.items() if name != rollout}
        else:
            entry = tenants[rollout][tenant]
            its = {name: other for name, other in tenants[rollout].items() if name != tenant}
            tenants = {**tenants, rollout: its} if its else _without(tenants, rollout)
        one = Lifted(latched=entry, reason=reason, at_unix_s=at_unix_s, tenant=tenant)
        lifted = (*self.lifted, one)[-MAX_LIFTED:]
        return msgspec.structs.replace(self, latched=latched, tenants=tenants, lifted=lifted)

    @property
    def announced(self) -> dict[RolloutName, int]:
        """What tables tell of it: :attr:`policies.routes.RouteTable.rolled_back`."""
        told = {name: one.epoch for name, one in self.latched.items()}
        for name, its in self.tenants.items():
            told |= {f"{name}{TENANT_MARK}{tenant}": one.epoch for tenant, one in its.items()}
        return {RolloutName(name): epoch for name, epoch in told.items()}

    def elsewhere(
        self,
        name: str,
        pools: tuple[PoolName, PoolName],
        named: Mapping[RolloutName, tuple[PoolName, PoolName]],
    ) -> tuple[Rollback, ...]:
        """Rollbacks, of rollouts and of single tenants, of these pools that stand under another name.

        Args:
            pools: baseline and candidate.
            named: the same of every rollout that the configuration names, for a latch that does not tell. One
                that nobody knows may be of these.
        """
        found = [one.rollback for one in self.latched.values()]
        for its in self.tenants.values():
            found += [
                msgspec.structs.replace(one.rollback, tenant=TenantName(tenant))
                for tenant, one in its.items()
            ]
        return tuple(
            one
            for one in found
            if one.rollout != name and (_told_pools(one) or named.get(one.rollout, pools)) == pools
        )

    def with_home(self, moved: Moved | None) -> Latch:
        """This latch with home there; None: where the configuration says."""
        epoch = self.epoch if moved is None else max(self.epoch, moved.epoch)
        return msgspec.structs.replace(self, epoch=epoch, moved=moved)


def _told_pools(rollback: Rollback) -> tuple[PoolName, PoolName] | None:
    if rollback.baseline is None or rollback.candidate is None:
        return None
    return rollback.baseline, rollback.candidate


def _without(tenants: dict[str, dict[str, Latched]], rollout: str) -> dict[str, dict[str, Latched]]:
    return {name: its for name, its in tenants.items() if name != rollout}


class LatchFile:
    """The file itself. One process writes (the judge); anybody reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._sequence = 0

    def open(self) -> Latch:
        """Open for writing, making and allocating the file when it is not there.

        Raises:
            LatchCorrupt: neither slot is whole, or its version is unknown.
            OSError: read-only or full disk; :func:`read_latch` may still work.
        """
        fresh = not self.path.exists()
        fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if fresh or os.fstat(fd).st_size < SLOTS * SLOT_BYTES:
                os.posix_fallocate(fd, 0, SLOTS * SLOT_BYTES)
                os.fsync(fd)
                _sync_directory(self.path.parent)
            sequence, latch = _current(fd, self.path)
        except BaseException:
            os.close(fd)
            raise
        self._fd, self._sequence = fd, sequence
        return latch

    @property
    def writable(self) -> bool:
        return self._fd is not None

    def write(self, latch: Latch) -> None:
        """Make ``latch`` durable before returning. Raises OSError; what stood before still stands."""
        if self._fd is None:
            raise OSError(f"{self.path}: not open for writing")
        body = _encoded(latch)
        if len(body) > MAX_BODY_BYTES:
            raise OSError(f"{self.path}: {len(body)} bytes do not fit a slot of {MAX_BODY_BYTES}")
        sequence = self._sequence + 1
        slot = _HEAD.pack(_MAGIC, sequence, len(body), zlib.crc32(body)) + body
        written = os.pwrite(self._fd, slot, (sequence % SLOTS) * SLOT_BYTES)
        if written != len(slot):
            raise OSError(f"{self.path}: {written} of {len(slot)} bytes written")
        os.fdatasync(self._fd)
        self._sequence = sequence

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _encoded(latch: Latch) -> bytes:
    """As JSON, with as much of its history and reasons as a slot holds: what is latched must always fit.

    Reasons leave before names do. Where not even the names of all tenants fit, the rollout with most of them
    is written as rolled back: more go home than had to, and nobody is forgotten.
    """
    body = msgspec.json.encode(latch)
    for shorter in (_without_history, _with_short_reasons, _with_names):
        if len(body) > MAX_BODY_BYTES:
            latch = shorter(latch)
            body = msgspec.json.encode(latch)
    while len(body) > MAX_BODY_BYTES and latch.names:
        latch = _with_most_at_home(latch)
        body = msgspec.json.encode(latch)
    return body


def _without_history(latch: Latch) -> Latch:
    return msgspec.structs.replace(latch, lifted=())


def _with_short_reasons(latch: Latch) -> Latch:
    tenants = {
        rollout: {tenant: _in_short(one) for tenant, one in its.items()}
        for rollout, its in latch.tenants.items()
    }
    return msgspec.structs.replace(latch, tenants=tenants)


def _with_names(latch: Latch) -> Latch:
    names = {
        rollout: {tenant: one.epoch for tenant, one in its.items()} for rollout, its in latch.tenants.items()
    }
    return msgspec.structs.replace(latch, tenants={}, names=names)


def _with_most_at_home(latch: Latch) -> Latch:
    rollout = max(latch.names, key=lambda name: len(latch.names[name]))
    its = latch.names[rollout]
    why = f"{len(its)} of its tenants were home, more than the latch's file can name"
    latch = latch.with_latched(unexplained(rollout, why), max(its.values()))
    names = {name: others for name, others in latch.names.items() if name != rollout}
    return msgspec.structs.replace(latch, names=names)


def _decoded(body: bytes) -> Latch:
    """Raises msgspec.DecodeError."""
    latch = msgspec.json.decode(body, type=Latch)
    why = "so many tenants are home that the latch's file holds their names alone"
    tenants = {
        rollout: {tenant: Latched(rollback=unexplained(rollout, why), epoch=at) for tenant, at in its.items()}
        for rollout, its in latch.names.items()
    }
    return msgspec.structs.replace(latch, tenants={**latch.tenants, **tenants}, names={})


def _in_short(latched: Latched) -> Latched:
    verdict = latched.rollback.verdict
    short = Verdict(
        gate=verdict.gate,
        answer=verdict.answer,
        value=verdict.value,
        limit=verdict.limit,
        n=verdict.n,
        reason=verdict.reason[:SHORT_REASON_CHARS],
    )
    rollback = msgspec.structs.replace(latched.rollback, verdict=short)
    return Latched(rollback=rollback, epoch=latched.epoch)


def unexplained(rollout: str, reason: str) -> Rollback:
    """A rollback of which nothing but that it stands is known; ``reason`` says why."""
    return Rollback(
        rollout=RolloutName(rollout),
        verdict=Verdict(gate="latch", answer=Answer.ERROR, value=None, limit=None, n=0, reason=reason),
        policy_digest="",
        from_stage=Stage.ROLLED_BACK,
        unix_s=0.0,
    )


def read_latch(path: Path) -> Latch:
    """What the file says; an empty latch when there is no file.

    Raises:
        LatchCorrupt: neither slot is whole.
        OSError: it cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return Latch()
    try:
        return _current(fd, path)[1]
    finally:
        os.close(fd)


def _current(fd: int, path: Path) -> tuple[int, Latch]:
    found: list[tuple[int, Latch]] = []
    blank = 0
    for index in range(SLOTS):
        raw = os.pread(fd, SLOT_BYTES, index * SLOT_BYTES)
        if not raw.strip(b"\0"):
            blank += 1
            continue
        slot = _slot(raw)
        if slot is None:
            continue
        if slot[1].version > VERSION:
            # Whatever stands in the other slot is older than what this one says.
            raise LatchCorrupt(
                f"{path}: version {slot[1].version}, a newer forkgate wrote it and this one knows {VERSION}; "
                "what was latched is unknown"
            )
        found.append(slot)
    if found:
        return max(found, key=lambda slot: slot[0])
    if blank == SLOTS:
        return 0, Latch()
    raise LatchCorrupt(f"{path}: neither slot is whole; what was latched is unknown")


def _slot(raw: bytes) -> tuple[int, Latch] | None:
    """The slot's sequence and latch; None when it was torn."""
    if len(raw) < _HEAD.size:
        return None
    magic, sequence, length, checksum = _HEAD.unpack_from(raw)
    body = raw[_HEAD.size : _HEAD.size + length]
    if magic != _MAGIC or len(body) != length or zlib.crc32(body) != checksum:
        return None
    try:
        return sequence, _decoded(body)
    except msgspec.DecodeError:
        return None


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
