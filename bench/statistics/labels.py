"""Property 6: real generations under known changes get an allowed class."""

from __future__ import annotations

from pathlib import Path

from bench import attribution
from bench.statistics.findings import Finding


def labelled_pairs(folder: Path | None) -> Finding:
    """Pairs outside their allowed classes, benign pairs called a shift, and shares missed, all together."""
    name, bar = "6 labelled pairs in a wrong class", 0.0
    if folder is None:
        reason = "no battery: give --battery DIR with pairs.json and *.jsonl.gz"
        return Finding(name=name, value=None, bar=bar, holds=None, detail={"reason": reason})
    summary, _ = attribution.run(folder, reasons=False)
    wrong = summary["pairs"] - summary["correct"] + summary["benign_as_shift"] + len(summary["missed"])
    return Finding(name=name, value=float(wrong), bar=bar, holds=wrong == 0, detail=summary)
