"""The sidecar's parent process: sockets, children, the last route table.

``listener`` binds what clients connect to, ``descriptors`` asks the system for as many as they need,
``child`` starts a process on a ``leash`` and waits for its word, ``backoff`` spaces restarts, ``plan`` turns
the configuration into settings and first tables, ``watch`` follows the judge's tables and tells it of dead
workers, ``keeper`` writes the last one down, ``supervisor`` does all of it in the right order.
"""

from forkgate.supervisor.listener import ListenError
from forkgate.supervisor.supervisor import Parts, Supervisor

__all__ = ["ListenError", "Parts", "Supervisor"]
