"""What may be told of a tenant: its name is a customer's."""

from __future__ import annotations

from collections.abc import Iterable

OTHER_TENANT = "other"
"""Tenants that the configuration does not name share this label: a client's header makes no new series."""


class Tenants:
    """``forkgate.tenant``, where the configuration allows it (``telemetry.tenant_attribute``)."""

    def __init__(self, names: Iterable[str] | None) -> None:
        """None: nothing may be told."""
        self._names = None if names is None else frozenset(names)

    def __call__(self, tenant: str) -> str | None:
        """Its label; None for none."""
        if self._names is None:
            return None
        return tenant if tenant in self._names else OTHER_TENANT
