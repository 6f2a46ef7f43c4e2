"""The supervisor's ear on the judge: keeps its tables, and tells it what dead workers had counted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from forkgate.identifiers import uuid7
from policies.routes import RouteTable
from proxy.edge.settings import LinkTLS
from proxy.ledger import LedgerFileError, find_ledgers, read_ledger
from proxy.link.values import EdgeIdentity
from proxy.link.watcher import TableWatcher

log = logging.getLogger(__name__)

READ_AGAIN_S = 1.0
READ_ATTEMPTS = 60
"""For a ledger file that cannot be read: a machine out of descriptors has a minute to recover."""


class JudgeWatch:
    """A :class:`TableWatcher`, and the ledger files of workers that are no more."""

    def __init__(
        self,
        target: str,
        tls: LinkTLS | None,
        sidecar: str,
        ledgers: Path,
        table: RouteTable,
        on_table: Callable[[RouteTable, bytes], None],
    ) -> None:
        self._ledgers = ledgers
        self._watcher = TableWatcher(
            target,
            tls,
            EdgeIdentity(sidecar=sidecar, worker=0, incarnation=uuid7()),
            table,
            on_table,
            on_settled=self._settled,
            on_change=self._changed,
        )

    async def start(self) -> None:
        """Follow the judge, and report what an earlier supervisor's workers left behind.

        Called before the first worker of this life starts: every ledger found is a dead one's.
        """
        await self._watcher.start()
        for _, counts in find_ledgers(self._ledgers):
            log.info("a worker of an earlier life left its ledger", extra={"incarnation": counts.incarnation})
            self._watcher.edge_gone(counts)

    def worker_died(self, incarnation: str, attempts: int = READ_ATTEMPTS) -> None:
        """Read its ledger and have the judge charge what it held. Its file goes once that is done.

        A file that cannot be read now (no descriptor is left) is read later, ``attempts`` times in all.
        """
        path = self._path(incarnation)
        if not path.exists():
            return  # it died before it counted anything
        try:
            self._watcher.edge_gone(read_ledger(path))
        except LedgerFileError as error:
            left = attempts - 1
            log.error(
                "a dead worker's captures cannot be accounted for",
                extra={"error": str(error), "attempts_left": left},
            )
            if left:
                loop = asyncio.get_running_loop()
                loop.call_later(READ_AGAIN_S, self.worker_died, incarnation, left)

    async def close(self, drain_s: float) -> None:
        """Give the judge ``drain_s`` to count the workers that ended, then leave."""
        await self._watcher.close(drain_s)

    def _path(self, incarnation: str) -> Path:
        return self._ledgers / f"{incarnation}.ledger"

    def _settled(self, incarnation: str) -> None:
        try:
            self._path(incarnation).unlink(missing_ok=True)
        except OSError as error:
            log.warning(
                "a settled ledger stays behind", extra={"incarnation": incarnation, "error": str(error)}
            )

    def _changed(self, answers: bool) -> None:
        if answers:
            log.info("the judge answers")
        else:
            log.warning("no judge answers; edges go on with the last route table")
