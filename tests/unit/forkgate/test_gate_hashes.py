"""``gate evaluate`` on evidence kept as hashes: gates that read numbers answer, the others refuse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from comparator.evidence import Batch, ComparisonDone, EvidenceStore, Kept
from tests.support.at_rest import KEYS, secret_pair
from tests.support.exchanges import comparison
from tests.support.waiting import LIMIT_S


def evaluated(tmp_path: Path, *more: str) -> subprocess.CompletedProcess[str]:
    with EvidenceStore(tmp_path / "e", 50_000_000, keys=KEYS, kept=Kept.HASHES) as store:
        one = comparison(secret_pair("c"))
        store.add(Batch(comparisons=(ComparisonDone(comparison=one, incarnation="e", sequence=1),)))
        (tmp_path / "lines.jsonl").write_bytes(b"".join(store.export()))
    words = ["gate", "evaluate", "--policy", "sampling", "--pairs", str(tmp_path / "lines.jsonl"), *more]
    return subprocess.run(
        [sys.executable, "-m", "forkgate", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )


def test_a_gate_that_reads_token_ids_is_refused_with_the_line(tmp_path: Path) -> None:
    done = evaluated(tmp_path)
    assert done.returncode == 2, done.stdout
    assert "line 2: kept as hashes (evidence.store), and sampling" in done.stderr
    assert "name other gates with --gate" in done.stderr


def test_gates_that_read_numbers_answer(tmp_path: Path) -> None:
    done = evaluated(tmp_path, "--gate", "logit_error")
    assert done.returncode in (0, 1, 3, 4), done.stderr
    assert done.stdout.startswith("1 comparisons")
