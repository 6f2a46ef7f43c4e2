"""Where a request goes that its pool does not answer: home for a canary, its refuge for a tenant sent home.

Each moves an exchange at most once, before a byte of an answer was forwarded, and never one whose body is not
here to be sent again. Trouble alone leads here; a request that its pool answers passes none of this.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from proxy.edge.framing import CHUNKED
from proxy.live import FLAG_CANARY, FLAG_RETRIED

if TYPE_CHECKING:
    from proxy.edge.exchange import Exchange
    from proxy.edge.pool import LivePool


def begin(exchange: Exchange, now: float) -> None:
    """Its pool is known to take nobody now: begin elsewhere, if somebody may answer there."""
    home = exchange.edge.router.home
    if not exchange.canary:
        _take_refuge(exchange, now)
    elif home.healthy(now):
        _bypass(exchange, home)


def move(exchange: Exchange) -> bool:
    """Try again elsewhere, if it may; False when it ends here."""
    if exchange.canary and move_home(exchange):
        return True
    router = exchange.edge.router
    if not router.refuges or exchange.sheltered or exchange.pool is not router.home:
        return False
    if not _may_move(exchange) or not _take_refuge(exchange, monotonic()):
        return False
    exchange.tried = ()
    exchange.again()
    return True


def move_home(exchange: Exchange) -> bool:
    """Try again on home, once, if what was sent was kept and home can answer."""
    home = exchange.edge.router.home
    if exchange.flags & FLAG_RETRIED or exchange.pool is home or not _may_move(exchange):
        return False
    if not home.healthy(monotonic()):
        return False
    _bypass(exchange, home)
    exchange.tried = ()
    exchange.again()
    return True


def _may_move(exchange: Exchange) -> bool:
    """May another pool have it, too? However the body arrives: one that came with its head, or while a
    connection was opened, is here all the same, and one that is still to come is not yet."""
    if exchange.sent is None:
        return False
    if not exchange.sent_at:
        return True  # no pool was sent anything: this is no second time
    body_bytes = exchange.ask.length
    if body_bytes == CHUNKED:
        reader = exchange.ask_reader
        assert reader is not None
        body_bytes = max(reader.payload_bytes, 1)
    return body_bytes <= exchange.edge.limits.retry_body_bytes


def _take_refuge(exchange: Exchange, now: float) -> bool:
    """Nobody at home answers: the pool that the tenant was sent home from does, if it can."""
    refuge = exchange.edge.router.refuge(exchange.tenant, now)
    if refuge is None:
        return False
    exchange.sheltered = True
    exchange.flags |= FLAG_CANARY
    exchange.edge.took_refuge(exchange, refuge.name, now)
    exchange.pool = refuge
    return True


def _bypass(exchange: Exchange, home: LivePool) -> None:
    """Home answers for the canary pool, and the record says so."""
    exchange.flags |= FLAG_RETRIED
    exchange.edge.counts.retried_home += 1
    exchange.pool = home
