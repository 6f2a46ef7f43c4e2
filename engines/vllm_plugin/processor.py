"""The logits processor that changes no logit: vLLM tells processors who is in the batch; this one listens.

vLLM 0.32 has two model runners with an interface each, and refuses to start with a processor of the other's;
this class has both. The older one asks for ``update_state`` before each pass, the newer one for ``apply``
when a request that it was added for is in the batch. With nobody marked the older one costs a comparison a
step, and the newer one nothing.

A processor that raises ends the engine, so whatever goes wrong here ends the watching instead, with one line
in the log. With speculative decoding nobody is watched: the older runner builds no processor then, and a step
has more than one token.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from engines.vllm_plugin.channel import VARIABLE, NoChannel, Writer
from engines.vllm_plugin.marks import check
from engines.vllm_plugin.places import BatchRows, BatchSlots

try:
    from vllm.v1.sample.logits_processor import LogitsProcessor as _OlderInterface
except ImportError:  # a vLLM that has dropped it

    class _OlderInterface:  # type: ignore[no-redef]
        pass


try:
    from vllm.v1.worker.gpu.sample.logits_processor.interface import LogitsProcessor as _NewerInterface
except ImportError:  # a vLLM that does not have it yet

    class _NewerInterface:  # type: ignore[no-redef]
        pass


_LOG = logging.getLogger("vllm.forkgate")


class BatchProcessor(_OlderInterface, _NewerInterface):
    """Entry point ``vllm.logits_processors``. One a worker; the one whose tokens count has the channel."""

    def __init__(self, vllm_config: Any, *given: Any) -> None:
        """``given``: device and is_pin_memory of the older runner, request states of the newer one."""
        self._writer: Writer | None = None
        self._rows: BatchRows | None = None
        self._slots: BatchSlots | None = None
        if os.environ.get(VARIABLE) is None:
            return  # installed, and not asked for
        if getattr(vllm_config, "speculative_config", None) is not None or not _samples():
            return
        try:
            self._writer = Writer(os.environ.get(VARIABLE))
        except NoChannel as error:
            _LOG.warning("forkgate: no batch facts from this engine core: %s", error)
            return
        states = given[0] if len(given) == 1 else None
        if states is None:
            self._rows = BatchRows(self._writer.write)
        else:
            self._slots = BatchSlots(self._writer.write, states.prompt_len.np)

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raises ValueError, which the client gets as HTTP 400: a mark that is no request ID."""
        check(sampling_params.extra_args)

    def is_argmax_invariant(self) -> bool:
        """No logit changes, so no argmax does: greedy batches do not even call :meth:`apply`."""
        return True

    def update_state(self, batch_update: Any) -> None:
        """Older runner, before each pass. None: the batch is the last one's."""
        if batch_update is None or self._rows is None:
            return
        try:
            self._rows.update(batch_update)
        except Exception:
            self._rows = None
            _LOG.exception("forkgate: no more batch facts from this engine core")

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Newer runner: a request enters. Whether :meth:`apply` is to be called for it."""
        if self._slots is None:
            return False
        try:
            return self._slots.add(req_idx, sampling_params.extra_args)
        except Exception:
            self._slots = None
            _LOG.exception("forkgate: no more batch facts from this engine core")
            return False

    def apply(self, logits: Any, ctx: Any = None) -> Any:
        """The logits as they came. Newer runner: ``ctx`` tells who stands where in this pass."""
        if ctx is not None and self._slots is not None:
            try:
                self._slots.step(ctx.idx_mapping_np.tolist(), ctx.seq_lens_upper_bound_np)
            except Exception:
                self._slots = None
                _LOG.exception("forkgate: no more batch facts from this engine core")
        return logits


def _samples() -> bool:
    """Whether this worker is the one whose tokens count: every worker hears the same, and one is enough."""
    try:
        from vllm.distributed.parallel_state import get_pp_group, get_tensor_model_parallel_rank

        return bool(get_pp_group().is_last_rank and get_tensor_model_parallel_rank() == 0)
    except (ImportError, AssertionError, AttributeError):  # no groups: one worker is all there is
        return True
