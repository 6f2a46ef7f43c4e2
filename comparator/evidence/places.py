"""Where a sealed value stands: ``table.column``, NUL, and the row's own key. What it is bound to. Pure.

The key is what the row *is* (an exchange, a pair, a verdict), never its number in the file.
"""

from __future__ import annotations


def content_place(exchange_id: str) -> str:
    """Where a content blob stands."""
    return f"content.blob\0{exchange_id}"


def settings_place(exchange_id: str) -> str:
    """Where an exchange's settings stand, and with them what has no column of its own once sealed."""
    return f"exchange.settings\0{exchange_id}"


def fork_place(capture_id: str, left_arm: str, right_arm: str, replicate: int) -> str:
    """Where a fork's detail stands."""
    return f"fork.detail\0{capture_id}\0{left_arm}\0{right_arm}\0{replicate}"


def verdict_place(column: str, rollout: str, unix_s: float, gate: str, evidence: int) -> str:
    """Where a part of a verdict stands."""
    return f"verdict.{column}\0{rollout}\0{gate}\0{evidence}\0{unix_s!r}"


def cluster_place(capture_id: str) -> str:
    """Where a comparison's cluster stands."""
    return f"comparison.cluster\0{capture_id}"


def score_place(capture_id: str, arm: str, replicate: int, question: str) -> str:
    """Where a score's error stands."""
    return f"score.error\0{capture_id}\0{arm}\0{replicate}\0{question}"


def journal_place(rollout: str, sequence: int, before: int, after: int, unix_s: float, kind: str) -> str:
    """Where a journal entry's body stands."""
    return f"journal.body\0{rollout}\0{sequence}\0{before}\0{after}\0{float(unix_s)!r}\0{kind}"


def terminal_place(incarnation: str, sequence: int) -> str:
    """Where the words stand with which a capture ended."""
    return f"terminal.detail\0{incarnation}\0{sequence}"


def pair_place(left_exchange_id: str, right_exchange_id: str) -> str:
    """Where the reason stands why a pair was set aside."""
    return f"pair.set_aside_reason\0{left_exchange_id}\0{right_exchange_id}"
