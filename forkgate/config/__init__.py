"""The configuration file: read once, checked whole, frozen.

``source`` reads YAML and knows lines, ``shape`` turns plain data into the structs of ``model`` and collects
all that is wrong, ``checks`` looks across sections, ``policy`` reads and freezes the policy files that
rollouts name, ``schema`` writes the JSON Schema. ``load`` does all of it. Nothing after this package meets
a string that somebody typed.
"""

from forkgate.config.load import load, loads
from forkgate.config.model import Config, PoolSection, RolloutSection, Tenant
from forkgate.config.problems import ConfigError, Problem

__all__ = ["Config", "ConfigError", "PoolSection", "Problem", "RolloutSection", "Tenant", "load", "loads"]
