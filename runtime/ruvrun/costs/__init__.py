"""The cost table (``costs.toml``): its rows, and the file they stand in."""

from ruvrun.costs.files import dump_costs, load_costs, merge
from ruvrun.costs.rows import (
    CostTable,
    LinkCost,
    NodeCost,
    Overhead,
    Point,
    Provenance,
    Rate,
    StageCost,
    UnitCost,
    along,
    stage_key,
)

COSTS = "costs.toml"

__all__ = [
    "COSTS",
    "CostTable",
    "LinkCost",
    "NodeCost",
    "Overhead",
    "Point",
    "Provenance",
    "Rate",
    "StageCost",
    "UnitCost",
    "along",
    "dump_costs",
    "load_costs",
    "merge",
    "stage_key",
]
