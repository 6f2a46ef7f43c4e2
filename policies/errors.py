"""The errors of this package."""

from __future__ import annotations


class PolicyError(Exception):
    """A policy file that cannot be used: where, what, what to do. Never a fallback."""


class RouteError(Exception):
    """Configuration and rollout states that make no route table."""
