"""The one door: HTTP with JSON on a unix socket that only the sidecar's user may open.

``server`` binds and routes, ``rollouts`` shows and moves rollouts, ``evidence`` answers about what was
compared, ``errors`` turns refusals into OpenAI-shaped error objects. The command line is a client of it, and
so is a console to come.
"""

from forkgate.admin.port import AdminPort, Refused, Verb
from forkgate.admin.server import AdminError, AdminServer

__all__ = ["AdminError", "AdminPort", "AdminServer", "Refused", "Verb"]
