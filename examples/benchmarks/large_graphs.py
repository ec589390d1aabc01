"""Seconds that ``ruvcompile plan`` takes of a chain of 20,000 nodes and of a graph of 50,000: load, measure, cut.

The graph is 12,500 blocks of a matrix, a bias, an activation and a residual sum, each with weights of its own: two
tensors cross most of its cuts. Everything is done anew: no cost table is given.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
from harness import CACHE, Benchmark, Options, Target, finish, read_options, report, tell, two_cores, versions
from onnx import NodeProto, TensorProto, helper, numpy_helper

BENCHMARK = Benchmark("large-graphs", "s", Target(at_most=60.0))
WIDTH = 8
CHAIN, BLOCKS = 20_000, 12_500


def chain() -> tuple[list[NodeProto], list[TensorProto]]:
    """``CHAIN`` activations one behind the other."""
    return [helper.make_node("Relu", [f"v{i}" if i else "x"], [f"v{i + 1}"]) for i in range(CHAIN)], []


def blocks() -> tuple[list[NodeProto], list[TensorProto]]:
    """``BLOCKS`` residual blocks of four nodes, and their weights."""
    draw = np.random.default_rng(1)
    nodes, weights = [], []
    for i in range(BLOCKS):
        before = f"b{i}" if i else "x"
        nodes += [
            helper.make_node("MatMul", [before, f"w{i}"], [f"m{i}"]),
            helper.make_node("Add", [f"m{i}", f"c{i}"], [f"a{i}"]),
            helper.make_node("Tanh", [f"a{i}"], [f"t{i}"]),
            helper.make_node("Add", [before, f"t{i}"], [f"b{i + 1}"]),
        ]
        drawn = draw.standard_normal((WIDTH + 1, WIDTH)).astype(np.float32) / WIDTH
        weights += [numpy_helper.from_array(drawn[1:], f"w{i}"), numpy_helper.from_array(drawn[0], f"c{i}")]
    return nodes, weights


def save(nodes: Sequence[NodeProto], weights: Sequence[TensorProto], path: Path) -> None:
    """Write the model of ``nodes``, from ``x`` to the output of the last, both ``[1, WIDTH]``."""
    names = ("x", nodes[-1].output[0])
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, WIDTH]) for name in names]
    graph = helper.make_graph(nodes, path.stem, ports[:1], ports[1:], initializer=weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def plan_once(path: Path) -> dict[str, float]:
    """One plan of two stages; wall-clock seconds, seconds of all cores, and bytes of the largest process."""
    program = str(Path(sys.executable).with_name("ruvcompile"))
    command = [program, "plan", str(path), "--target", "host", "--nodes", "2", "--stages", "2", "--quiet"]
    began = time.perf_counter()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    _, status, used = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"error: {' '.join(command)} ended with {child.returncode}")
    return {"seconds": seconds, "cpu_seconds": used.ru_utime + used.ru_stime, "bytes": used.ru_maxrss * 1024}


def main() -> int:
    read_options(__doc__ or "", Options(pairs=1))
    cpus = two_cores()
    os.sched_setaffinity(0, cpus)
    CACHE.mkdir(parents=True, exist_ok=True)
    runs = []
    for name, (nodes, weights) in {"chain-20000": chain(), "graph-50000": blocks()}.items():
        path = CACHE / f"{name}.onnx"
        save(nodes, weights, path)
        runs.append({"nodes": float(len(nodes)), **plan_once(path)})
        path.unlink()
        tell(f"{name}: {runs[-1]['seconds']:.1f} s, {runs[-1]['bytes'] / 2**30:.2f} GiB")
    seconds = [run["seconds"] for run in runs]
    details = {"what": "ruvcompile plan --target host --nodes 2; the longer of a chain and a graph", "cpus": cpus}
    result = report(BENCHMARK, max(seconds), runs=runs, spread=seconds, details=details, versions=versions(), also=True)
    return finish(result)


if __name__ == "__main__":
    sys.exit(main())
