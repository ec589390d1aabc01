"""Cost rows of a kind of machine that was not measured: this machine's, scaled by memory bandwidth.

Decoding reads every weight once per token, so its speed follows the rate at which memory can be read. The rate of
this machine is measured; that of the target is a figure of its data, with its source. Such rows say ``scaled``, and
are no promise: measure on the machine where you can.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np

from ruvcompile.measure.provenance import provenance
from ruvcompile.targets import Target
from ruvrun.costs import CostTable, NodeCost, Provenance, UnitCost

FIGURE = "memory_bandwidth"
PROBE_BYTES = 256 * 2**20
PROBES = 5


def scale(table: CostTable, target: Target, threads: int, bandwidth: float) -> CostTable:
    """The rows of ``table`` as rows of ``target`` with ``threads`` threads.

    Args:
        table: measured here.
        bandwidth: bytes per second this machine reads (``read_bandwidth``).
    """
    figure = target.figure(FIGURE)
    factor = bandwidth / figure.value if figure else 1.0
    how = (
        f"scaled by memory bandwidth, {bandwidth / 1e9:.1f} GB/s here to {figure.value / 1e9:.1f} GB/s ({figure.kind})"
        if figure
        else "scaled by 1: the target names no memory bandwidth, so it is taken to be as fast as this machine"
    )
    here = provenance()
    source = Provenance(machine=here.machine, cpu=here.cpu, software=f"{how}; {here.software}", date=here.date)
    return CostTable(provenance=[source], unit=[_scaled(row, target, threads, factor) for row in table.unit])


def read_bandwidth(threads: int) -> float:
    """Bytes per second that ``threads`` threads read from memory, the best of a few passes."""
    parts = [np.ones(PROBE_BYTES // 8 // threads, np.int64) for _ in range(threads)]
    best = 0.0
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(PROBES):
            start = time.perf_counter()
            list(pool.map(np.ndarray.max, parts))
            best = max(best, sum(part.nbytes for part in parts) / (time.perf_counter() - start))
    return best


def _scaled(row: UnitCost, target: Target, threads: int, factor: float) -> UnitCost:
    return msgspec.structs.replace(
        row,
        target=target.name,
        backend=target.backend,
        threads=threads,
        ms=round(row.ms * factor, 6),
        ms_per_token=round(row.ms_per_token * factor, 6),
        node=[NodeCost(name=node.name, op=node.op, ms=round(node.ms * factor, 6)) for node in row.node],
        source=0,
    )
