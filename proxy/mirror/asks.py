"""A question of a suite, asked of the arms as a client's request is."""

from __future__ import annotations

import msgspec

from comparator.comparison import SampleRef
from engines.base import Call
from proxy.ledger import DropReason
from proxy.mirror.errors import Dropped
from proxy.mirror.pools import ShadowEndpoint

NO_TENANT = ""
"""The tenant of comparisons that no client's request stands behind."""


class SampleAsk(msgspec.Struct, frozen=True, kw_only=True):
    """One question, once: for :meth:`proxy.mirror.Mirror.run_sample`.

    The call says everything about sampling. Its own output limit holds, also over ``shadow.max_tokens``,
    which bounds a call that names none. A call whose model is empty is asked of the model that the baseline's
    endpoint serves. Its seed is derived from suite, sample and passage, so that it is the
    same on all arms and another in each pass.
    """

    call: Call
    sample: SampleRef
    candidate: bool = True
    """Ask the candidate. False compares the baseline with itself alone, and needs ``control``."""
    control: bool = False
    """Ask the baseline a second time: on another endpoint of its pool, else after its first answer."""

    def __post_init__(self) -> None:
        if not (self.candidate or self.control):
            raise ValueError(
                f"sample {self.sample.sample_id!r}: candidate and control are both off, so there is nothing "
                "to compare the baseline with; switch one of them on"
            )

    @property
    def request_id(self) -> str:
        """Stands in the exchanges where a client's request has its ID, and makes the seed."""
        return f"{self.sample.suite}/{self.sample.sample_id}/{self.sample.passage}"

    async def read_call(self, baseline: ShadowEndpoint) -> Call:
        """The call, with a model.

        Raises:
            Dropped: it names none, and the endpoint's probe found none.
        """
        if self.call.model:
            return self.call
        model = baseline.probe.model if baseline.probe is not None else None
        if model is None:
            raise Dropped(
                DropReason.UNSUPPORTED,
                f"{baseline.engine.base_url}: its probe found no model's name; set the pool's engine.model",
            )
        body = {**self.call.body, "model": model}
        return msgspec.structs.replace(self.call, model=model, body=body)
