"""What metrics are told of a judge: its parts' own counts, side by side."""

from __future__ import annotations

from forkgate.fleet import Fleet
from forkgate.hooks import Hooks
from forkgate.judge.desk import Desk
from forkgate.judge.pool_watch import PoolWatch
from forkgate.judge.publisher import Publisher
from forkgate.judge.writer import EvidenceWriter
from forkgate.telemetry import Observed
from proxy.link.server import LinkServer
from proxy.mirror import Mirror


def observed(
    server: LinkServer,
    publisher: Publisher,
    desk: Desk,
    writer: EvidenceWriter,
    mirror: Mirror,
    fleet: Fleet,
    pool_watch: PoolWatch,
    hooks: Hooks,
) -> Observed:
    """What metrics read of a judge's parts, at each export and each look at the page."""
    balance = server.ledger.balance()
    lanes = mirror.status()
    spent = {status.rollout: status.spent for status in lanes}
    return Observed(
        edges=sum(1 for edge in server.edges() if edge.connected and not edge.is_supervisor),
        epoch=publisher.table.epoch,
        captured=balance.captured,
        compared=balance.compared,
        dropped=balance.dropped,
        in_flight=balance.in_flight_edge + balance.in_flight_judge,
        rolled_back={state.plan.name: state.latch is not None for state in desk.states()},
        evidence_bytes=writer.size_bytes,
        shadow_tokens={
            (rollout, pool): tokens
            for rollout, its in spent.items()
            for pool, tokens in its.total_by_pool.items()
        },
        shadow_requests={
            (rollout, pool): count
            for rollout, its in spent.items()
            for pool, count in its.requests_by_pool.items()
        },
        rollout_drops={
            (lane.rollout, reason): count for lane in lanes for reason, count in lane.dropped.items()
        },
        shadow_refused={
            (lane.rollout, refusal): count for lane in lanes for refusal, count in lane.refused.items()
        },
        live_set_aside={
            (name, pool): count
            for name, tally in desk.tallies.items()
            for pool, count in tally.live_set_aside.items()
        },
        environments={key: len(urls) for key, urls in fleet.environments().items()},
        pools_ready=pool_watch.ready(),
        pools_silent=pool_watch.silences(),
        hooks_waiting=hooks.waiting(),
        hook_deliveries=hooks.deliveries(),
        hook_answers=hooks.answers(),
    )
