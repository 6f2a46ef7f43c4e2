"""Steps from one schema version to the next. Each runs inside the transaction that raises the version."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

Migration = Callable[[sqlite3.Connection], None]

COMPARISON = """
CREATE TABLE comparison (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  capture_id TEXT NOT NULL UNIQUE,
  rollout TEXT NOT NULL,
  tenant TEXT NOT NULL,
  cluster TEXT NOT NULL,
  repeat INTEGER NOT NULL,
  timing INTEGER NOT NULL,
  suite TEXT,
  suite_digest TEXT,
  suite_stage TEXT,
  sample_id TEXT,
  passage INTEGER,
  sample BLOB,
  unix_s REAL NOT NULL,
  incarnation TEXT,
  sequence INTEGER,
  pairs INTEGER NOT NULL,
  scores INTEGER NOT NULL
);
CREATE INDEX comparison_sample ON comparison (rollout, suite_digest, suite_stage)
  WHERE sample_id IS NOT NULL;

CREATE TABLE score (
  id INTEGER PRIMARY KEY,
  capture_id TEXT NOT NULL,
  arm TEXT NOT NULL,
  replicate INTEGER NOT NULL,
  question TEXT NOT NULL,
  value REAL,
  error TEXT
);
CREATE INDEX score_capture ON score (capture_id);
"""

JOURNAL = """
CREATE TABLE journal (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  rollout TEXT NOT NULL,
  sequence INTEGER NOT NULL,
  number_before INTEGER NOT NULL,
  number_after INTEGER NOT NULL,
  unix_s REAL NOT NULL,
  kind TEXT NOT NULL,
  body BLOB NOT NULL,
  plan_digest TEXT
);
CREATE INDEX journal_rollout ON journal (rollout, id);

CREATE TABLE plan (
  digest TEXT NOT NULL,
  rollout TEXT NOT NULL,
  unix_s REAL NOT NULL,
  policy_digest TEXT NOT NULL,
  policy TEXT NOT NULL,
  body BLOB NOT NULL,
  PRIMARY KEY (rollout, digest)
) WITHOUT ROWID;

CREATE TABLE taken (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  incarnation TEXT NOT NULL UNIQUE,
  batch INTEGER NOT NULL
);
"""

AT_REST = """
CREATE INDEX comparison_tenant ON comparison (tenant, id);
CREATE INDEX exchange_kept ON exchange (tenant, id, content_bytes) WHERE NOT pruned;

CREATE TABLE data_key (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  key_id TEXT NOT NULL,
  wrapped BLOB NOT NULL
);

CREATE TABLE record (
  kind TEXT NOT NULL,
  digest TEXT NOT NULL,
  document BLOB NOT NULL,
  first_seen_unix_s REAL NOT NULL,
  PRIMARY KEY (kind, digest)
) WITHOUT ROWID;

CREATE TABLE record_seen (
  kind TEXT NOT NULL,
  digest TEXT NOT NULL,
  pool TEXT NOT NULL,
  endpoint TEXT NOT NULL,
  first_unix_s REAL NOT NULL,
  last_unix_s REAL NOT NULL,
  PRIMARY KEY (kind, digest, pool, endpoint)
) WITHOUT ROWID;

CREATE TABLE erasing (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  unix_s REAL NOT NULL,
  who TEXT NOT NULL,
  scope TEXT NOT NULL,
  name TEXT NOT NULL,
  reason TEXT NOT NULL,
  captures INTEGER NOT NULL DEFAULT 0,
  exchanges INTEGER NOT NULL DEFAULT 0,
  deleted INTEGER NOT NULL DEFAULT 0
);

CREATE TABLE erasure (
  id INTEGER PRIMARY KEY,
  unix_s REAL NOT NULL,
  done_unix_s REAL NOT NULL,
  who TEXT NOT NULL,
  scope TEXT NOT NULL,
  name TEXT NOT NULL,
  reason TEXT NOT NULL,
  captures INTEGER NOT NULL,
  exchanges INTEGER NOT NULL,
  previous TEXT NOT NULL,
  hash TEXT NOT NULL
);

CREATE TABLE erased (capture_id TEXT PRIMARY KEY, erasure INTEGER NOT NULL) WITHOUT ROWID;
"""

_APPENDED = "BEGIN SELECT RAISE(ABORT, 'the erasure log is appended to only'); END"
ERASURE_TRIGGERS = (
    f"CREATE TRIGGER erasure_stays BEFORE UPDATE ON erasure {_APPENDED}",
    f"CREATE TRIGGER erasure_is_kept BEFORE DELETE ON erasure {_APPENDED}",
)

STORE_ID = "INSERT INTO meta (key, value) VALUES ('store_id', lower(hex(randomblob(16))))"
"""What binds a sealed value to this file."""

_COMPARISONS_OF_PAIRS = """
INSERT INTO comparison
  (capture_id, rollout, tenant, cluster, repeat, timing, unix_s, incarnation, sequence, pairs, scores)
SELECT capture_id, rollout, tenant, cluster,
  row_number() OVER (PARTITION BY rollout, cluster ORDER BY id) > 1,
  0, started_unix_s, incarnation, sequence, pairs, 0
FROM (
  SELECT min(pair.id) AS id, pair.capture_id, pair.rollout, pair.tenant,
    substr(left_arm.prompt_sha256, 1, 16) AS cluster,
    coalesce(right_arm.started_unix_s, 0.0) AS started_unix_s, pair.incarnation, pair.sequence,
    count(*) AS pairs
  FROM pair
  JOIN exchange left_arm ON left_arm.exchange_id = pair.left_exchange_id
  JOIN exchange right_arm ON right_arm.exchange_id = pair.right_exchange_id
  GROUP BY pair.capture_id
)
ORDER BY id
"""


def statements(ddl: str) -> list[str]:
    """The single statements of a script that holds no semicolon elsewhere.

    ``executescript`` would commit the transaction that a migration runs in.
    """
    return [statement for statement in ddl.split(";") if statement.strip()]


def to_version_2(db: sqlite3.Connection) -> None:
    """Comparisons, scores, the whole verdict, and the journal.

    Version 1 knew pairs only. Each of its captures becomes a comparison; the cluster, which it did not
    record, is the beginning of the prompt's own hash, so that a prompt that came twice is a repeat. What its
    gates folded was not kept, so its verdicts cannot be computed again: they have no journal.
    """
    for statement in statements(COMPARISON + JOURNAL):
        db.execute(statement)
    db.execute(_COMPARISONS_OF_PAIRS)
    db.execute("ALTER TABLE pair ADD COLUMN replicate INTEGER NOT NULL DEFAULT 0")
    db.execute("ALTER TABLE pair ADD COLUMN right_arm TEXT NOT NULL DEFAULT ''")
    db.execute(
        "UPDATE pair SET (replicate, right_arm) = "
        "(SELECT replicate, arm FROM exchange WHERE exchange_id = pair.right_exchange_id)"
    )
    db.execute("ALTER TABLE pair DROP COLUMN incarnation")
    db.execute("ALTER TABLE pair DROP COLUMN sequence")
    for column in (
        "estimand TEXT NOT NULL DEFAULT 'traffic'",
        "rollback_nats REAL",
        "promotion_nats REAL",
        "interval_low REAL",
        "interval_high REAL",
        "hold INTEGER NOT NULL DEFAULT 0",
        "verdict TEXT NOT NULL DEFAULT ''",
    ):
        db.execute(f"ALTER TABLE verdict ADD COLUMN {column}")


def to_version_3(db: sqlite3.Connection) -> None:
    """Sealed values, records, erasure, hashes in the place of token IDs.

    What stands in the file stays as it is, readable without a key: ``forkgate evidence rekey`` seals it.
    Pages that an older forkgate deleted from were not overwritten; one ``VACUUM`` does that.
    """
    db.execute("ALTER TABLE exchange ADD COLUMN hashed INTEGER NOT NULL DEFAULT 0")
    for statement in (*statements(AT_REST), *ERASURE_TRIGGERS, STORE_ID):
        db.execute(statement)


MIGRATIONS: dict[int, Migration] = {1: to_version_2, 2: to_version_3}
"""From version → one step up."""
