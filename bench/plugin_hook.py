"""Run by the Python of an engine's environment: the plugin's processor, called as vLLM's runner calls it.

Prints ``{"hook_off_us": ..., "hook_on_us": ...}``: the best of several runs, since the rest is other work.
"""

from __future__ import annotations

import json
import timeit
import types

from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor.interface import BatchUpdate

from engines.vllm_plugin import general
from engines.vllm_plugin.marks import MARK
from engines.vllm_plugin.processor import BatchProcessor

_STEPS = 20_000
_ROWS = 8

general.register()
config = types.SimpleNamespace(speculative_config=None)


def busy(processor: BatchProcessor, params: list[SamplingParams]) -> float:
    """Seconds of a step in which one of eight requests left and another took its row, and of one between."""
    for row, one in enumerate(params):
        processor.update_state(BatchUpdate(_ROWS, removed=[], added=[(row, one, [1], [1])], moved=[]))
    updates = [
        BatchUpdate(_ROWS - number % 2, removed=[], added=[(number, one, [1], [1] * number)], moved=[])
        for number, one in enumerate(params)
    ]

    def step() -> None:
        for update in updates:
            processor.update_state(update)
            processor.apply(None)

    return min(timeit.repeat(step, number=_STEPS // _ROWS, repeat=7)) / _STEPS


def main() -> None:
    """Time both."""
    plain = [SamplingParams() for _ in range(_ROWS)]
    marked = [SamplingParams(extra_args={MARK: f"request-{row}"}) for row in range(_ROWS)]
    off = busy(BatchProcessor(config, None, False), plain)
    on = busy(BatchProcessor(config, None, False), marked)
    print(json.dumps({"hook_off_us": off * 1e6, "hook_on_us": on * 1e6}))


main()
