"""Which endpoint an arm gets: the least loaded of its pool, and another one for a control."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from comparator.records import Fact
from proxy.mirror.load import Busy, PoolLoads
from proxy.mirror.pools import ShadowEndpoint, ShadowPool
from proxy.mirror.refusals import Refusal
from proxy.mirror.settings import MirrorSettings

UNTOLD_S = 30.0
"""How long a pool that live work came back to is left alone where it does not tell whether requests wait."""


class _Yielded(msgspec.Struct):
    """Live work came back to the pool."""

    why: str
    since_s: float
    quiet_since_s: float | None = None
    """No request has waited there since; None while one does, or nobody has looked."""


class Place:
    """An endpoint that was picked, until :meth:`leave`. Arms run there one after another, or none does."""

    __slots__ = ("_index", "_left", "_picker", "endpoint", "pool")

    def __init__(self, picker: Picker, index: int) -> None:
        self._picker = picker
        self._index = index
        self._left = False
        self.pool = picker.pool
        self.endpoint: ShadowEndpoint = picker.pool.endpoints[index]

    def arm_starts(self) -> Fact:
        """See :meth:`PoolLoads.arm_starts`. Each is followed by one :meth:`arm_ends`."""
        return self._picker.loads.arm_starts(self._index)

    def arm_ends(self) -> None:
        self._picker.loads.arm_ends(self._index)

    def another(self) -> Place | None:
        """A place on another endpoint of the pool that can do all that this one can, and is not busy.

        None where there is none: the second run is then staggered on this one.
        """
        index = self._picker.another(self._index)
        return self._picker.take(index) if index is not None else None

    def leave(self) -> None:
        """Nothing more runs here. A second call is nothing."""
        if not self._left:
            self._left = True
            self._picker.leave(self._index)


class Picker:
    """Picks endpoints of one pool, the least loaded by our own count."""

    def __init__(self, pool: ShadowPool, monotonic: Callable[[], float], settings: MirrorSettings) -> None:
        self.pool = pool
        self._quiet_s = settings.quiet_s
        self.loads = PoolLoads(pool, monotonic, settings.kv_cache_percent)
        self._taken = [0] * len(pool.endpoints)
        self._turn = 0
        self._monotonic = monotonic
        self._yielded: _Yielded | None = None

    @property
    def probed(self) -> bool:
        """Whether any endpoint has ever answered a probe."""
        return any(endpoint.probe is not None for endpoint in self.pool.endpoints)

    def trouble(self) -> str:
        """Why none is probed, in words."""
        errors = [endpoint.error for endpoint in self.pool.endpoints if endpoint.error]
        return f"pool {self.pool.name}: {errors[0] if errors else 'no endpoint has answered a probe yet'}"

    def pick(self) -> Place:
        """A probed endpoint, not busy, with the fewest places taken."""
        return self.take(
            min(
                self._order(),
                key=lambda i: (
                    self.pool.endpoints[i].probe is None,
                    self.loads.busy(i) is not None,
                    self._taken[i],
                ),
            )
        )

    def another(self, index: int) -> int | None:
        """See :meth:`Place.another`."""
        able = self.pool.endpoints[index].probe
        if able is None:
            return None
        fit = [
            i
            for i in self._order()
            if i != index
            and (probe := self.pool.endpoints[i].probe) is not None
            and probe.has >= able.has
            and probe.max_logprobs >= able.max_logprobs
            and self.loads.busy(i) is None
        ]
        return min(fit, key=lambda i: self._taken[i], default=None)

    def take(self, index: int) -> Place:
        self._taken[index] += 1
        self.loads.keep(self._in_use)
        return Place(self, index)

    def leave(self, index: int) -> None:
        self._taken[index] -= 1

    def arms(self) -> dict[str, int]:
        """Our arms that run now, by the endpoint's URL."""
        return {
            one.engine.base_url.rstrip("/"): self.loads.arms(index)
            for index, one in enumerate(self.pool.endpoints)
        }

    def yield_to_live(self, why: str) -> None:
        """Live work comes back to this pool: no shadow starts until it has been quiet for a while."""
        if not self.pool.dedicated:
            self._yielded = _Yielded(why, self._monotonic())

    async def busy(self) -> Busy | None:
        """Why no shadow may start on this pool now; None when one may (design rule 10)."""
        if self.pool.dedicated:
            return None
        await self.loads.refresh(range(len(self._taken)))
        if self._yielded is not None and (yields := self._still_yields(self._yielded)) is not None:
            return Busy(Refusal.LIVE_CAME_BACK, yields)
        first: Busy | None = None
        for index, one in enumerate(self.pool.endpoints):
            if one.probe is None:
                continue
            busy = self.loads.busy(index)
            if busy is None:
                return None
            first = first or busy
        return None if first is None else Busy(first.refusal, f"pool {self.pool.name}: {first.detail}")

    def _still_yields(self, yielded: _Yielded) -> str | None:
        """In words; None once it has been quiet for long enough, which ends it."""
        now_s = self._monotonic()
        told = [self.loads.waiting(i, yielded.since_s) for i in range(len(self._taken))]
        if any(told):
            yielded.quiet_since_s = None
        elif all(one is None for one in told):
            # Where nobody tells, or nobody has yet, time alone has to do.
            yielded.quiet_since_s = None
        elif yielded.quiet_since_s is None:
            yielded.quiet_since_s = now_s
        quiet_s = 0.0 if yielded.quiet_since_s is None else now_s - yielded.quiet_since_s
        untold = yielded.quiet_since_s is None and not any(told)
        if quiet_s >= self._quiet_s or (untold and now_s - yielded.since_s >= UNTOLD_S):
            self._yielded = None
            return None
        waiting = sum(one or 0 for one in told)
        return (
            f"pool {self.pool.name}: {yielded.why}; shadows start again once no request has waited there for "
            f"{self._quiet_s:g} s ({waiting} wait)"
        )

    async def close(self) -> None:
        await self.loads.close()

    def _in_use(self) -> list[int]:
        return [index for index, taken in enumerate(self._taken) if taken]

    def _order(self) -> list[int]:
        """All endpoints, from the next in turn on: equals take turns."""
        count = len(self._taken)
        self._turn = (self._turn + 1) % count
        return [(self._turn + step) % count for step in range(count)]
