"""Evidence: what every exchange said, kept so that every verdict can be checked.

The one leaf of ``comparator`` that touches a disk, and only through ``sqlite3``. ``comparator`` itself does
not import it.

=============  =====================================================================================
``rows``       values in and out
``codec``      an exchange's content as one blob, floats bit-exact
``schema``     the file: tables, versions, settings and why
``migrations`` from one version to the next
``journal``    what a rollout's gates folded, in order, as bytes; ``columns`` for its live records
``whole``      from stored rows to the comparison that gates saw
``hashes``     over token IDs
``tables``     values to rows and back
``connection`` the file, opened for reading
``folded``     comparisons, forks and journal, as gates took them in
``reader``     list, export, ledger counts; any number of readers beside the writer
``keeping``    retention, erasure and rotation of what is there, in bounded steps
``places``     what a sealed value is bound to; pure
``store``      the writer: batches in one transaction, deduplicated by (edge incarnation, sequence)
``retention``  ``max_bytes``
``keys``       keys as text, and what is derived from one; pure
``seal``       values sealed with AES-256-GCM, each bound to its place
``hashed``     keyed hashes in the place of token IDs and text
``records``    environment and artifact records by digest
``bundle``     what an export begins with; pure
``tenants``    retention by age and size of each tenant; ``forget``: whole captures leave
``erasure``    of one tenant or request; ``erasure_log``: its lines, chained
``rekey``      what stands in a file brought to the keys of today
``explain``    one pair in numbers, and what its fork can be traced to; pure
``words``      the same for a terminal; pure
``export``     comparisons as lines of JSON, and back; pure
``errors``     what can go wrong with a file, by what its user can do
=============  =====================================================================================

Time arrives as an argument. Nothing here is asynchronous; the judge gives the store a thread.
"""

from comparator.evidence.errors import (
    EvidenceAmbiguous,
    EvidenceBusy,
    EvidenceCorrupt,
    EvidenceDamaged,
    EvidenceErased,
    EvidenceError,
    EvidenceForeign,
    EvidenceFull,
    EvidenceHashed,
    EvidenceLocked,
    EvidenceNotFound,
    EvidencePruned,
    EvidenceReadOnly,
    EvidenceUnavailable,
)
from comparator.evidence.hashed import Kept
from comparator.evidence.keys import NO_KEYS, Key, Keyring, KeyTextError, key_of
from comparator.evidence.reader import EvidenceReader
from comparator.evidence.rekey import Rekeyed
from comparator.evidence.rows import (
    Added,
    Batch,
    ComparisonDone,
    Drop,
    ErasureRow,
    JournalEntry,
    JournalRow,
    LedgerCounts,
    Page,
    Pin,
    PlanRow,
    RecordSeen,
    RecordSight,
    Shown,
    StoredComparison,
    StoredExchange,
    StoredFork,
    StoredPair,
    StoredRecord,
    StoreStatus,
    Taken,
    VerdictRow,
)
from comparator.evidence.store import EvidenceStore
from comparator.evidence.tenants import Retained, Retention

__all__ = [
    "NO_KEYS",
    "Added",
    "Batch",
    "ComparisonDone",
    "Drop",
    "ErasureRow",
    "EvidenceAmbiguous",
    "EvidenceBusy",
    "EvidenceCorrupt",
    "EvidenceDamaged",
    "EvidenceErased",
    "EvidenceError",
    "EvidenceForeign",
    "EvidenceFull",
    "EvidenceHashed",
    "EvidenceLocked",
    "EvidenceNotFound",
    "EvidencePruned",
    "EvidenceReadOnly",
    "EvidenceReader",
    "EvidenceStore",
    "EvidenceUnavailable",
    "JournalEntry",
    "JournalRow",
    "Kept",
    "Key",
    "KeyTextError",
    "Keyring",
    "LedgerCounts",
    "Page",
    "Pin",
    "PlanRow",
    "RecordSeen",
    "RecordSight",
    "Rekeyed",
    "Retained",
    "Retention",
    "Shown",
    "StoreStatus",
    "StoredComparison",
    "StoredExchange",
    "StoredFork",
    "StoredPair",
    "StoredRecord",
    "Taken",
    "VerdictRow",
    "key_of",
]
