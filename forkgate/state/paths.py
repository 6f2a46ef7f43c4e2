"""Names of everything in ``state_dir``."""

from __future__ import annotations

from pathlib import Path

DIRECTORY_MODE = 0o700
"""Evidence holds what clients wrote."""


class StatePaths:
    """Paths below one sidecar's state directory."""

    def __init__(self, state_dir: str | Path) -> None:
        self.root = Path(state_dir)
        self.lock = self.root / "serve.lock"
        self.judge_lock = self.root / "judge.lock"
        self.table = self.root / "routes.json"
        self.latch = self.root / "rollback.latch"
        self.rollouts = self.root / "rollouts.json"
        """What the judge knew of its rollouts a second ago."""
        self.evidence = self.root / "evidence.db"
        self.admin_socket = self.root / "admin.sock"
        self.audit = self.root / "audit.jsonl"
        """What people did, through the admin API."""
        self.link_socket = self.root / "link.sock"
        self.ledgers = self.root / "ledgers"
        self.listen = self.root / "listen.json"
        """What the running supervisor bound, for people and tests that asked for port 0."""

    def create(self) -> None:
        """Make the directories. Raises OSError."""
        self.root.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        self.ledgers.mkdir(mode=DIRECTORY_MODE, exist_ok=True)

    def ledger(self, incarnation: str) -> Path:
        """The memory-mapped counters of one edge worker's life."""
        return self.ledgers / f"{incarnation}.ledger"
