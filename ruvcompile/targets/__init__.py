"""Targets: kinds of machines, described by data in ``targets/<id>/target.toml``.

The frozen dataclass ``Target`` (``nouns``) is the schema: a field without a default is a key that must be there. Data
is checked when it is loaded (``data``), so a target that loads is a target that is complete. What a build asks of the
kinds of machines in its fleet is held against what they have in ``asked``.
"""

from ruvcompile.targets.asked import fleet_targets
from ruvcompile.targets.data import check_targets, load_target, target_names
from ruvcompile.targets.nouns import NATIVE, Figure, Target, data_root

__all__ = [
    "NATIVE",
    "Figure",
    "Target",
    "check_targets",
    "data_root",
    "fleet_targets",
    "load_target",
    "target_names",
]
