"""Entry point ``vllm.endpoint_plugins``: puts the routes and the stamp onto each API server.

Checked against vLLM 0.32 (``vllm/plugins/endpoint_plugins/interface.py``): ``attach_router`` runs while the
application is built, ``init_state`` once the engine is up and before the first request.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Any

from engines.vllm_plugin import capture
from engines.vllm_plugin.asgi import Routes, Stamp, Told
from engines.vllm_plugin.channel import VARIABLE
from engines.vllm_plugin.follower import Follower
from engines.vllm_plugin.general import NAME

_ASK_S = 120.0
_LOG = logging.getLogger("vllm.forkgate")


class ForkgateEndpoint:
    """One API server's plugin. A server that generates nothing (embeddings, rendering) gets none."""

    name = NAME
    required_tasks: tuple[str, ...] | None = ("generate",)

    def __init__(self) -> None:
        self._told = Told()
        self._app: Any = None

    def attach_router(self, app: Any) -> None:
        """Mount the routes."""
        self._app = app
        app.mount("/forkgate", Routes(self._told))

    async def init_state(self, engine_client: Any, _state: Any, _args: Any) -> None:
        """Capture the environment, once, and begin to stamp.

        Trouble leaves the server as it would be without us, but for a 404 at ``/forkgate/identity`` that says
        why: an engine is not kept from its work by the record of it.
        """
        # Around all middleware, so that refusals and crashes are stamped too. The stack may be built already,
        # by the hosting standards that vLLM puts on last; `add_middleware` would refuse then.
        app = self._app
        app.middleware_stack = Stamp(app.middleware_stack or app.build_middleware_stack(), self._told)
        try:
            async with asyncio.timeout(_ASK_S):
                workers = await engine_client.collective_rpc(capture.METHOD)
            identity = await asyncio.to_thread(capture.of_server, workers, engine_client.vllm_config)
            self._told.know(identity)
        except Exception as error:
            self._told.trouble = f"the environment could not be captured: {type(error).__name__}: {error}"
            _LOG.exception("forkgate: no answer of this server will carry a digest")
        else:
            _LOG.info("forkgate: this environment is %s", identity.digest)
        self._told.follower = Follower(os.environ.get(VARIABLE))
