"""Entry point ``vllm.general_plugins``: runs in every process of vLLM, first in the one that starts the rest.

There it makes the channel, before any engine core or API server is started that is to inherit its place. In
all of them it gives vLLM's workers one method more, which the API server calls over vLLM's own RPC: the pair
of entry points that vLLM's endpoint interface asks for.
"""

from __future__ import annotations

import logging
import os

from engines.vllm_plugin import capture
from engines.vllm_plugin.channel import VARIABLE, NoChannel, create

NAME = "forkgate"
"""By which ``VLLM_PLUGINS`` asks for us."""
_LOG = logging.getLogger("vllm.forkgate")


def register() -> None:
    """May run any number of times in a process. Never raises."""
    if not asked_for():
        return  # installed in the image, and not asked for: nothing is touched
    if VARIABLE not in os.environ:
        try:
            os.environ[VARIABLE] = create()
        except NoChannel as error:
            # Set all the same: the engine cores then say why they tell nothing.
            os.environ[VARIABLE] = ""
            _LOG.warning("forkgate: no batch facts: %s", error)
    try:
        from vllm.v1.worker.worker_base import WorkerBase

        setattr(WorkerBase, capture.METHOD, capture.of_worker)
    except ImportError:
        _LOG.exception("forkgate: this vLLM has no WorkerBase: its workers cannot be asked what they are")


def asked_for() -> bool:
    """Whether ``VLLM_PLUGINS`` names us; vLLM loads some kinds of plugins without being told to."""
    return NAME in os.environ.get("VLLM_PLUGINS", "").split(",")
