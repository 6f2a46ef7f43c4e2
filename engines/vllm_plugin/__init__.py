"""Inside a vLLM server: who answers, and with whom a request shared its batches. See docs/engine-plugin.md.

::

    the process that starts all     general    makes the channel, adds one method to vLLM's workers
    each API server                 endpoint   asks the workers who they are (capture), once
                                    asgi       GET /forkgate/identity and /forkgate/batch/{request id}; the
                                               digest as a header on every answer, bodies untouched
                                    follower   hears of marked requests; their steps stand in the book
                                      ▲
                                    channel    shared memory: one ring an engine, written, never waited for
                                      │
    each engine core                processor  a logits processor that changes no logit, and hears from vLLM
                                    places     who joined, left or moved; marks says who is marked

vLLM finds ``general``, ``endpoint`` and ``processor`` by entry points (``pyproject.toml``). It loads every
installed logits processor, so ``processor`` does nothing until ``VLLM_PLUGINS`` names ``forkgate`` and the
channel is there. Standard library only, besides what vLLM hands over: it installs with ``--no-deps``.

No trouble in here ends an engine or an answer. What could not be seen is told as unknown, with the reason.
"""
