"""The one door: HTTP with JSON on a unix socket that only the sidecar's user may open, and where configured
on a TCP address with TLS and tokens. The command line is a client of it.

A request's road: ``server`` binds and routes by ``table``, one row a route
(:class:`~forkgate.admin.routes.Route`); ``guard`` says who asks (``tokens``, ``roles``), refuses, and
writes the ``audit`` log before an act; then a handler (``general``, ``rollouts``, ``evidence``,
``keeping``, ``verdict``) answers for the judge behind :class:`AdminPort`. ``errors`` turns refusals into
OpenAI-shaped error objects; ``openapi`` makes the document of the same table and the types in ``answers``.
"""

from forkgate.admin.port import AdminPort, Refused, Verb
from forkgate.admin.server import AdminError, AdminServer

__all__ = ["AdminError", "AdminPort", "AdminServer", "Refused", "Verb"]
