"""What a role may do, as a lattice.

Two things are kept apart on purpose: reading what clients wrote, and moving their traffic. Neither contains
the other; whoever is to have both is an owner::

              owner               VIEW + CONTENT + STEP   (and the unix socket)
             /     \\
      auditor       operator      VIEW + CONTENT | VIEW + STEP
             \\     /
              viewer              VIEW
"""

from __future__ import annotations

import enum

import msgspec

from forkgate.config.admin import Role


class Need(enum.StrEnum):
    """What a route asks of its caller."""

    VIEW = "view"  # where things stand: no prompt, token or text of any client
    CONTENT = "content"  # evidence with its tokens and text, its export and replay, the audit log
    STEP = "step"  # moves a rollout


MAY: dict[Role, frozenset[Need]] = {
    Role.VIEWER: frozenset({Need.VIEW}),
    Role.AUDITOR: frozenset({Need.VIEW, Need.CONTENT}),
    Role.OPERATOR: frozenset({Need.VIEW, Need.STEP}),
    Role.OWNER: frozenset(Need),
}


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """Whoever sent a request."""

    name: str
    """A token's name, or the user behind the unix socket."""
    role: Role
    via: str
    """``unix``, ``tcp``, ``tls`` or ``mtls``."""
    peer: str
    """Address, or process and user."""

    def may(self, *needs: Need) -> bool:
        """Whether the role covers all of these."""
        return MAY[self.role].issuperset(needs)


def roles_for(*needs: Need) -> tuple[Role, ...]:
    """The roles that cover all of these, the smallest first."""
    return tuple(role for role, may in MAY.items() if may.issuperset(needs))
