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
``store``      the writer: batches in one transaction, deduplicated by (edge incarnation, sequence)
``retention``  ``max_bytes``
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
    EvidenceError,
    EvidenceForeign,
    EvidenceFull,
    EvidenceNotFound,
    EvidencePruned,
    EvidenceReadOnly,
    EvidenceUnavailable,
)
from comparator.evidence.reader import EvidenceReader
from comparator.evidence.rows import (
    Added,
    Batch,
    ComparisonDone,
    Drop,
    JournalEntry,
    JournalRow,
    LedgerCounts,
    Page,
    Pin,
    PlanRow,
    Shown,
    StoredComparison,
    StoredExchange,
    StoredFork,
    StoredPair,
    StoreStatus,
    Taken,
    VerdictRow,
)
from comparator.evidence.store import EvidenceStore

__all__ = [
    "Added",
    "Batch",
    "ComparisonDone",
    "Drop",
    "EvidenceAmbiguous",
    "EvidenceBusy",
    "EvidenceCorrupt",
    "EvidenceDamaged",
    "EvidenceError",
    "EvidenceForeign",
    "EvidenceFull",
    "EvidenceNotFound",
    "EvidencePruned",
    "EvidenceReadOnly",
    "EvidenceReader",
    "EvidenceStore",
    "EvidenceUnavailable",
    "JournalEntry",
    "JournalRow",
    "LedgerCounts",
    "Page",
    "Pin",
    "PlanRow",
    "Shown",
    "StoreStatus",
    "StoredComparison",
    "StoredExchange",
    "StoredFork",
    "StoredPair",
    "Taken",
    "VerdictRow",
]
