"""The cost table (``costs.toml``): its rows, and the file they stand in."""

from ruvrun.costs.files import dump_costs, load_costs, merge, table_at, write_costs
from ruvrun.costs.rows import (
    NOISY,
    SCALED,
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
from ruvrun.costs.told import costs_json, costs_text

COSTS = "costs.toml"

__all__ = [
    "COSTS",
    "NOISY",
    "SCALED",
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
    "costs_json",
    "costs_text",
    "dump_costs",
    "load_costs",
    "merge",
    "stage_key",
    "table_at",
    "write_costs",
]
