"""Request headers by which an engine tells our load from live traffic. Standard library only: they are read
inside engines too.
"""

from __future__ import annotations

SHADOW_HEADER = "x-forkgate-shadow"
"""On every request that goes out here, with the value 1: an engine's log, or a proxy before it, can tell our
load from live traffic. The same on all arms."""
REQUEST_ID_HEADER = "x-request-id"
"""Names one generation. vLLM 0.32 takes it into its request ID, which it logs and makes unique by a random
suffix. It samples and caches nothing by it; the ID orders requests of one priority and one arrival time, and
the MoRI-IO connector finds addresses in one that its own router made."""
