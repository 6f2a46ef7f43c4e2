"""The file's schema, version 3. How older files get there: :mod:`comparator.evidence.migrations`.

=============  ==========================================================================================
``meta``       ``schema_version``, and counters that outlive pruning
``exchange``   one row an exchange. ``settings`` is MessagePack ``[Sampling, facts,
               environment_digest]``: every parameter and every fact *or the reason why it is unknown*. The
               plain columns beside it are copies for people with an ``sqlite3`` prompt; NULL there means
               "see settings".
``content``    the blob of an exchange (:mod:`comparator.evidence.codec`), in a table of its own: SQLite
               gives a deleted row's pages back, but not those of a row that shrinks. No row: pruned.
``comparison`` one row a captured request or sample of a suite: all its pairs are one observation. Without
               ``incarnation`` and ``sequence``: a sample, which settles no capture. ``sample`` is a
               MessagePack ``SampleRef``, the plain columns before it are copies; ``pairs`` and ``scores``
               are how many it had
``pair``       one row a pair; ``id`` is the order of evidence, in a comparison the order of its pairs
``score``      what scorers said of an arm's answer
``fork``       one row a fork; ``detail`` is a MessagePack ``Fork``. Written as soon as it is seen, maybe
               before its pair.
``pin``        captures whose content is kept whatever ``max_bytes`` says
``verdict``    gates' answers, with the state that they follow from; ``verdict`` is the whole of it as JSON
``journal``    what rollouts took in, in order (:mod:`comparator.evidence.journal`): comparisons and forks by
               reference, live records and engine samples as they are
``plan``       each plan that a rollout had, with the policy's text; never pruned
``taken``      edge incarnation → its last batch whose live records are in the journal
``terminal``   (edge incarnation, sequence) of captures that ended, newest ones: deliveries are repeated after
               a broken connection, and the second copy must find the first
``ledger``     ended captures by incarnation, rollout and reason (``compared`` among them), forever
``record``     environment and artifact records as they were captured, by digest; ``record_seen``: which
               endpoint of which pool answered with which, first and last
``data_key``   what seals values, wrapped by a key that is not here (:mod:`comparator.evidence.seal`)
``erasing``    erasures under way, with what they have come to; ``erasure``: those done, appended to only,
               each line with the hash of the one before; ``erased``: captures that are gone, and by which
=============  ==========================================================================================

Where a key is given these are sealed: ``content.blob``, ``exchange.settings`` (which then also holds error,
stop reason and both hashes; their own columns are empty), ``fork.detail`` (the columns of token IDs are
NULL), ``pair.set_aside_reason``, ``score.error``, ``comparison.cluster`` (a hash of the prompt without a
key), ``terminal.detail``, ``verdict``'s ``reason``, ``state`` and ``verdict``, ``journal.body``. Where
``exchange.hashed`` is set, keyed hashes stand in the place of token IDs (:mod:`comparator.evidence.hashed`).

Settings of the file: WAL, so that readers never wait for the writer nor the writer for them; ``synchronous =
NORMAL``, which loses nothing when the process is killed and never corrupts; a power cut may lose the last
transactions. That is enough here: the rollback itself is latched in a file of its own, fsynced before it is
announced. ``auto_vacuum = INCREMENTAL`` lets pruning give pages back to the disk, and ``secure_delete``
overwrites what is deleted.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from comparator.evidence.errors import EvidenceForeign
from comparator.evidence.migrations import (
    AT_REST,
    COMPARISON,
    ERASURE_TRIGGERS,
    JOURNAL,
    MIGRATIONS,
    STORE_ID,
    statements,
)

SCHEMA_VERSION = 3
APPLICATION_ID = 0x666F726B
"""``fork`` in ASCII; SQLite keeps it in the file's header, and ``file`` shows it."""

_DDL = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;

CREATE TABLE exchange (
  id INTEGER PRIMARY KEY,
  exchange_id TEXT NOT NULL UNIQUE,
  capture_id TEXT NOT NULL,
  arm TEXT NOT NULL,
  replicate INTEGER NOT NULL,
  rollout TEXT NOT NULL,
  tenant TEXT NOT NULL,
  request_id TEXT NOT NULL,
  pool TEXT NOT NULL,
  endpoint TEXT NOT NULL,
  engine TEXT NOT NULL,
  environment_digest TEXT,
  adapter TEXT,
  template_sha256 TEXT,
  seed INTEGER NOT NULL,
  temperature REAL,
  top_p REAL,
  top_k INTEGER,
  max_tokens INTEGER NOT NULL,
  as_tokens INTEGER NOT NULL,
  token_only INTEGER NOT NULL,
  outcome TEXT NOT NULL,
  error TEXT,
  finish_reason TEXT,
  stop_reason TEXT,
  started_unix_s REAL,
  ttft_s REAL,
  last_token_s REAL,
  total_s REAL,
  timed_tokens INTEGER NOT NULL,
  prompt_tokens INTEGER NOT NULL,
  output_tokens INTEGER NOT NULL,
  prompt_sha256 TEXT NOT NULL,
  output_sha256 TEXT NOT NULL,
  settings BLOB NOT NULL,
  pruned INTEGER NOT NULL DEFAULT 0,
  content_bytes INTEGER NOT NULL,
  hashed INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX exchange_capture ON exchange (capture_id);

CREATE TABLE content (
  id INTEGER PRIMARY KEY REFERENCES exchange (id),
  blob BLOB NOT NULL
);

CREATE TABLE pair (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  capture_id TEXT NOT NULL,
  left_exchange_id TEXT NOT NULL,
  right_exchange_id TEXT NOT NULL,
  rollout TEXT NOT NULL,
  tenant TEXT NOT NULL,
  fork_index INTEGER,
  proper_prefix INTEGER NOT NULL,
  max_error_nats REAL,
  set_aside TEXT,
  set_aside_reason TEXT,
  replicate INTEGER NOT NULL,
  right_arm TEXT NOT NULL,
  UNIQUE (left_exchange_id, right_exchange_id)
);
CREATE INDEX pair_capture ON pair (capture_id);
CREATE INDEX pair_rollout ON pair (rollout, id);
CREATE INDEX pair_forked ON pair (id) WHERE fork_index IS NOT NULL;

CREATE TABLE fork (
  capture_id TEXT NOT NULL,
  left_arm TEXT NOT NULL,
  right_arm TEXT NOT NULL,
  replicate INTEGER NOT NULL,
  rollout TEXT NOT NULL,
  tenant TEXT NOT NULL,
  fork_index INTEGER NOT NULL,
  proper_prefix INTEGER NOT NULL,
  left_token_id INTEGER,
  right_token_id INTEGER,
  left_margin_nats REAL,
  right_margin_nats REAL,
  max_error_nats REAL,
  detail BLOB NOT NULL,
  PRIMARY KEY (capture_id, left_arm, right_arm, replicate)
) WITHOUT ROWID;

CREATE TABLE pin (
  capture_id TEXT PRIMARY KEY, rollout TEXT NOT NULL, why TEXT NOT NULL, unix_s REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE verdict (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  rollout TEXT NOT NULL,
  unix_s REAL NOT NULL,
  policy_digest TEXT NOT NULL,
  gate TEXT NOT NULL,
  answer TEXT NOT NULL,
  value REAL,
  "limit" REAL,
  n INTEGER NOT NULL,
  reason TEXT NOT NULL,
  alpha REAL,
  deciding_id TEXT,
  acted TEXT,
  state TEXT NOT NULL,
  evidence_sequence INTEGER NOT NULL,
  estimand TEXT NOT NULL,
  rollback_nats REAL,
  promotion_nats REAL,
  interval_low REAL,
  interval_high REAL,
  hold INTEGER NOT NULL,
  verdict TEXT NOT NULL
);
CREATE INDEX verdict_rollout ON verdict (rollout, id);
CREATE INDEX verdict_deciding ON verdict (deciding_id) WHERE deciding_id IS NOT NULL;

CREATE TABLE terminal (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  incarnation TEXT NOT NULL,
  sequence INTEGER NOT NULL,
  reason TEXT NOT NULL,
  detail TEXT NOT NULL,
  unix_s REAL,
  UNIQUE (incarnation, sequence)
);

CREATE TABLE ledger (
  incarnation TEXT NOT NULL,
  rollout TEXT NOT NULL,
  reason TEXT NOT NULL,
  count INTEGER NOT NULL,
  highest_sequence INTEGER NOT NULL,
  PRIMARY KEY (incarnation, rollout, reason)
) WITHOUT ROWID;
"""


def prepare(db: sqlite3.Connection, path: Path, *, writable: bool) -> None:
    """Make an empty file ours, bring an older one up, refuse what is not ours.

    Raises:
        EvidenceForeign: another program's database, or a newer forkgate's.
    """
    application = db.execute("PRAGMA application_id").fetchone()[0]
    if application == 0 and db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
        if not writable:
            raise EvidenceForeign(path, "empty: no judge has written to it yet")
        _create(db)
    elif application != APPLICATION_ID:
        raise EvidenceForeign(path, "a database of another program; set another path")
    found = version_of(db)
    if found > SCHEMA_VERSION:
        raise EvidenceForeign(
            path,
            f"written by a newer forkgate (schema_version {found}, this one knows {SCHEMA_VERSION}); "
            "upgrade, or move the file away",
        )
    if found < SCHEMA_VERSION:
        if not writable:
            raise EvidenceForeign(
                path,
                f"schema_version {found} is older than {SCHEMA_VERSION}; start the judge once to migrate it",
            )
        migrate(db, found, path)


def version_of(db: sqlite3.Connection) -> int:
    """The schema version that the file says it has."""
    row = db.execute("SELECT value FROM meta WHERE key = 'schema_version'").fetchone()
    return int(row[0])


def migrate(db: sqlite3.Connection, found: int, path: Path, target: int = SCHEMA_VERSION) -> None:
    """Run the steps from ``found`` up to ``target``, each all or nothing.

    Raises:
        EvidenceForeign: there is no step from some version between.
    """
    for version in range(found, target):
        step = MIGRATIONS.get(version)
        if step is None:
            raise EvidenceForeign(
                path, f"no way from schema_version {version} to {version + 1}; move it away"
            )
        db.execute("BEGIN IMMEDIATE")
        try:
            step(db)
            db.execute("UPDATE meta SET value = ? WHERE key = 'schema_version'", (version + 1,))
        except BaseException:
            db.execute("ROLLBACK")
            raise
        db.execute("COMMIT")


def _create(db: sqlite3.Connection) -> None:
    # Before the first table, or it takes a full VACUUM to change.
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    db.execute("BEGIN IMMEDIATE")
    try:
        # Somebody else may have been quicker between our look and our lock.
        if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            for statement in (
                *statements(_DDL + COMPARISON + JOURNAL + AT_REST),
                *ERASURE_TRIGGERS,
                STORE_ID,
            ):
                db.execute(statement)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute("INSERT INTO meta (key, value) VALUES ('schema_version', ?)", (SCHEMA_VERSION,))
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")
