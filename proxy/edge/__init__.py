"""The edge: client traffic in, the live answer out, a copy left on the side.

One process a core. Bytes take this way::

    client ──▶ ClientConnection ──▶ Exchange ──▶ UpstreamConnection ──▶ pool
               asks.AskReader       Router        answers.AnswerReader
               framing.*            sampling      framing.*

``states`` is where to begin reading: the table of everything that may happen to an exchange, and why.

The core (everything but ``worker``, ``dialer`` and ``__main__``) holds no socket, opens none and awaits
nothing. It is handed transports and called back by them, which is how its tests run it without a network. The
shadow side is behind ``ports.ShadowPort``: called after the live bytes went out, never waited for, and
whatever it raises ends there.

Run it as ``python -m proxy.edge`` with ``settings.EdgeSettings`` as JSON on standard input.
"""

from proxy.edge.errors import EdgeError, SettingsError
from proxy.edge.ports import CaptureHead, ShadowPort, TableListener
from proxy.edge.settings import EdgeSettings

__all__ = ["CaptureHead", "EdgeError", "EdgeSettings", "SettingsError", "ShadowPort", "TableListener"]
