"""From what is stored of one capture to the comparison that its gates saw, bit for bit. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from comparator.compare import compare
from comparator.comparison import Comparison
from comparator.errors import ComparatorError
from comparator.evidence.hashes import ids_sha256
from comparator.evidence.rows import Shown, StoredExchange, StoredPair
from comparator.pair import Pair
from comparator.records import CaptureId


class NotWholeError(ComparatorError):
    """What is stored makes no comparison any more. ``pruned``: it made room; else it is damaged."""

    def __init__(self, message: str, *, pruned: bool = False) -> None:
        super().__init__(message)
        self.pruned = pruned


def comparison_of(shown: Shown) -> Comparison:
    """The comparison, its pairs compared again from their exchanges.

    Raises:
        NotWholeError: steps were pruned, a row is missing, or a stored value contradicts another: token IDs
            their hash, a pair's row what comparing its exchanges gives.
    """
    stored = shown.comparison
    if stored is None:
        raise NotWholeError("its comparison was never finished")
    exchanges = {str(one.exchange.exchange_id): one for one in shown.exchanges}
    if any(one.pruned for one in shown.exchanges):
        raise NotWholeError("its steps were pruned to make room", pruned=True)
    for one in shown.exchanges:
        _check_hashes(one)
    pairs = tuple(_pair(row, exchanges) for row in shown.pairs)
    if (len(pairs), len(shown.scores)) != (stored.pairs, stored.scores):
        raise NotWholeError(
            f"it had {stored.pairs} pairs and {stored.scores} scores, of which {len(pairs)} and "
            f"{len(shown.scores)} are left"
        )
    return Comparison(
        capture_id=CaptureId(stored.capture_id),
        rollout=stored.rollout,
        tenant=stored.tenant,
        cluster=stored.cluster,
        pairs=pairs,
        repeat=stored.repeat,
        timing=stored.timing,
        sample=stored.sample,
        scores=shown.scores,
        unix_s=stored.unix_s,
    )


def _pair(row: StoredPair, exchanges: Mapping[str, StoredExchange]) -> Pair:
    left, right = exchanges.get(row.left_exchange_id), exchanges.get(row.right_exchange_id)
    if left is None or right is None:
        raise NotWholeError(f"pair {row.id}: an exchange of it is missing")
    pair = compare(left.exchange, right.exchange)
    fork = pair.fork
    found = (None if fork is None else fork.fork_index, pair.max_error_nats, pair.set_aside)
    if found != (row.fork_index, row.max_error_nats, row.set_aside):
        raise NotWholeError(
            f"pair {row.id} says fork {row.fork_index}, error {row.max_error_nats}, set aside "
            f"{row.set_aside}; its exchanges say {found[0]}, {found[1]}, {found[2]}"
        )
    return pair


def _check_hashes(stored: StoredExchange) -> None:
    if stored.hashed:
        return  # nothing is left that the hash was taken over
    exchange = stored.exchange
    for name, ids, digest in (
        ("prompt", exchange.prompt_token_ids, stored.prompt_sha256),
        ("output", exchange.token_ids, stored.output_sha256),
    ):
        if ids_sha256(ids) != digest:
            raise NotWholeError(
                f"exchange {exchange.exchange_id}: its {name} token IDs are not those of its hash"
            )
