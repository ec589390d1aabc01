"""Targets: kinds of machines, described by data in ``targets/<id>/target.toml``.

The frozen dataclass ``Target`` (``nouns``) is the schema: a field without a default is a key that must be there. Data
is checked when it is loaded (``data``, ``values``), so a target that loads is a target that is complete. What a build
asks of the kinds of machines in its fleet is held against what they have in ``asked``; ``packages`` is what a node
installs.
"""

from ruvcompile.targets.asked import fleet_targets
from ruvcompile.targets.data import load_target, target_names
from ruvcompile.targets.nouns import (
    FIGURE_KINDS,
    FIGURES,
    NATIVE,
    SHARED,
    TEMPLATES,
    Accelerator,
    Figure,
    Target,
    data_root,
)
from ruvcompile.targets.packages import requirements

__all__ = [
    "FIGURES",
    "FIGURE_KINDS",
    "NATIVE",
    "SHARED",
    "TEMPLATES",
    "Accelerator",
    "Figure",
    "Target",
    "data_root",
    "fleet_targets",
    "load_target",
    "requirements",
    "target_names",
]
