"""Seconds, memory and gap of the exact partition: lattices of 100,000 downsets, decoders of 80 layers, nine light CNNs.

Every case is planned into four stages for two nodes of one kind and two of a slower one, joined by links of 1 Gbit,
in a process of its own: once with memory to spare, once with 40 % of the model's bytes on each node (or a tenth more
than the largest item's). Three things are asked: the least bottleneck, the least latency, and the shortest round of
four steps in the ring, which both limit. Work is the search alone; graphs are read and costs made up before the clock
starts. The graphs are real (the decoder is the canonical graph of a 70B's shapes; the CNNs are those of the onnx
package), the costs are synthetic: a node's time is its multiplications at 40 per ns plus the bytes it makes at 4 per ns
and 2 us; the slower kind takes 2.2 to 3 times as long, depending on the node.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import Benchmark, Target, finish, report, tell, versions

BENCHMARK = Benchmark("planner", "s", Target(at_most=20.0))
STAGES = 4
MOST_BYTES, MOST_SECONDS, MOST_GAP, LATTICE = 2**30, 5.0, 0.01, 100_000
LIGHT = (
    *("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50"),
    *("shufflenet", "squeezenet", "vgg19", "zfnet512"),
)
DRAW = random.Random(7)


@dataclass(frozen=True)
class Node:
    """An item before it is one: what it reads and makes by name, its multiplications, bytes it makes, its weights."""

    reads: tuple[str, ...]
    makes: tuple[str, ...]
    work: float
    made_bytes: int
    weight_bytes: int


def branches(number: int, length: int) -> list[Node]:
    """Chains side by side between a fork and a join."""
    nodes = [_any((), "fork")]
    for branch in range(number):
        for place in range(length):
            nodes.append(_any((f"{branch}.{place - 1}" if place else "fork",), f"{branch}.{place}"))
    return [*nodes, _any(tuple(f"{branch}.{length - 1}" for branch in range(number)), "join")]


def _any(reads: tuple[str, ...], makes: str) -> Node:
    work = DRAW.uniform(0.1e6, 4e6)
    return Node(reads, (makes,), work, DRAW.choice([4096, 8192, 16384]), int(work))


def decoder(*, whole_parts: bool) -> list[Node]:
    """The canonical decoder of a 70B's shapes, a token at a time: its 162 parts, or every node."""
    from ruvcompile.load.checkpoint import build_decoder
    from ruvcompile.load.form import ROTARY, Form, Layer, Rotary, Weight, weight_shapes
    from ruvcompile.passes.groups import group
    from ruvcompile.passes.pieces import unit_of
    from ruvcompile.passes.units import units

    turns = {ROTARY: Rotary(tuple(1e4 ** (-pair / 64) for pair in range(64)))}
    form = Form((Layer(),) * 80, 8192, 64, 8, 128, 28672, 128256, 4096, 1e-5, turns, tied=False)
    weights = {name: Weight(name, shape, 4, lambda: None) for name, shape in weight_shapes(form).items()}  # type: ignore[arg-type, return-value] # never read
    found = units(build_decoder(form, weights, "70b"))
    shapes = weight_shapes(form)
    hidden = ("past_", "present_", "position")
    return [
        Node(
            tuple(name for name in unit.inputs if not name.startswith(hidden)),
            tuple(name for name in unit.outputs if not name.startswith(hidden)),
            sum(math.prod(shapes[name]) for name in unit.weights if len(shapes.get(name, ())) > 1),
            16384,
            sum(math.prod(shapes.get(name, (0,))) * 9 // 16 for name in unit.weights),
        )
        for unit in (group(found, unit_of) if whole_parts else found)
    ]


def light(name: str) -> list[Node]:
    """A network of the onnx package; what only makes weights is none of its nodes."""
    import onnx

    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    model = onnx.shape_inference.infer_shapes(onnx.load(folder / f"light_{name}.onnx"), data_prop=True)
    graph = model.graph
    weights = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    weights |= {node.output[0]: () for node in graph.node if node.op_type == "ConstantOfShape"}
    shapes = {
        value.name: tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        for value in (*graph.value_info, *graph.input, *graph.output)
    }
    nodes = []
    for node in graph.node:
        if all(name in weights for name in node.input):
            weights |= dict.fromkeys(node.output, ())
            continue
        read = [math.prod(shapes.get(name, (1,))) for name in node.input if name in weights]
        made = math.prod(shapes.get(node.output[0], (1,)))
        channels = shapes.get(node.output[0], (1, 1))[1]
        heavy = node.op_type in ("Conv", "Gemm", "MatMul")
        work = max(read, default=0) / channels * made if heavy else 0
        reads = tuple(name for name in node.input if name not in weights)
        nodes.append(Node(reads, tuple(node.output), work, 4 * made, 4 * sum(read)))
    return nodes


CASES: dict[str, tuple[str, Callable[[], list[Node]]]] = {
    "lattice: 2 branches of 314": ("lattice", lambda: branches(2, 314)),
    "lattice: 4 branches of 16": ("lattice", lambda: branches(4, 16)),
    "lattice: 10 branches of 2": ("lattice", lambda: branches(10, 2)),
    "decoder of 80 layers, parts": ("quick", lambda: decoder(whole_parts=True)),
    "decoder of 80 layers, nodes": ("quick", lambda: decoder(whole_parts=False)),
    **{f"light {name}": ("quick", lambda name=name: light(name)) for name in LIGHT},  # type: ignore[misc] # its own name
}


def task_of(nodes: Sequence[Node], share: float) -> Any:
    """The partition task of some nodes; each machine has ``share`` of the bytes of all of them."""
    from ruvcompile.partition import UNLIMITED, Hop, Kind, Task, Value

    count = len(nodes)
    maker = {name: number for number, node in enumerate(nodes) for name in node.makes}
    readers: dict[str, list[int]] = {name: [] for node in nodes for name in (*node.makes, *node.reads)}
    for number, node in enumerate(nodes):
        for name in node.reads:
            readers[name].append(number)
    values = [
        Value(maker.get(name, -1), tuple(sorted(set(own))) or (count,), nodes[max(maker.get(name, 0), 0)].made_bytes)
        for name, own in readers.items()
    ]
    ms = [node.work / 40e6 + node.made_bytes / 4e6 + 0.002 for node in nodes]
    slower = [DRAW.uniform(2.2, 3.0) for _ in nodes]
    sizes = [node.weight_bytes for node in nodes]
    memory = int(max(share * sum(sizes), 1.1 * max(sizes))) if share else UNLIMITED
    kinds = (
        Kind(2, tuple(ms), memory, 0.05, 2e-7),
        Kind(2, tuple(a * b for a, b in zip(ms, slower, strict=True)), memory, 0.1, 5e-7),
    )
    hops = ((Hop(0.2, 8e-6),) * 2,) * 2
    return Task(kinds, tuple(sizes), tuple(values), hops=hops)


def run_case(name: str, share: float) -> dict[str, Any]:
    """Plan one case in this process."""
    from ruvcompile.partition import Ask, best, rounds, sets_of
    from ruvcompile.partition.fields import needs_of
    from ruvcompile.partition.lattice import downset_count
    from ruvrun.machine import peak_bytes

    task = task_of(CASES[name][1](), share)
    needs = tuple(map(tuple, needs_of(task)))
    before = peak_bytes()
    began, worked = time.perf_counter(), time.process_time()
    found = best(task, STAGES)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - worked
    latency = time.perf_counter()
    best(replace(task, objective="latency"), STAGES)
    latency = time.perf_counter() - latency
    asked, asked_cpu = time.perf_counter(), time.process_time()
    (ring,) = rounds(task, task, STAGES, [Ask(tuple(sets_of(task, STAGES)))])
    asked, asked_cpu = time.perf_counter() - asked, time.process_time() - asked_cpu
    return {
        "items": len(task.item_bytes),
        "downsets": downset_count(needs, 10 * LATTICE) + 1,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "latency_seconds": latency,
        "bytes": peak_bytes(),
        "bytes_before": before,
        "gap": None if found is None else found.gap,
        "exact": found is not None and found.exact,
        "bottleneck_ms": None if found is None else found.value_ms,
        "bound_ms": None if found is None else found.bound_ms,
        "round_seconds": asked,
        "round_cpu_seconds": asked_cpu,
        "round_gap": None if ring is None else ring.best.gap,
        "round_ms": None if ring is None else ring.best.value_ms,
        "narrowest_round_ms": None if ring is None else ring_ms(task, ring.narrowest.stages),
    }


def ring_ms(task: Any, stages: Any) -> float:
    """The round of a partition."""
    from ruvcompile.partition import evaluate

    costs = evaluate(task, stages)
    return max(STAGES * costs.bottleneck_ms, costs.latency_ms)


def kept(run: dict[str, Any]) -> bool:
    """Whether a case keeps what is demanded of it."""
    most = BENCHMARK.target.at_most if run["group"] == "lattice" else MOST_SECONDS
    assert most is not None
    quick = max(run["seconds"], run["latency_seconds"], run["round_seconds"]) <= most and run["bytes"] <= MOST_BYTES
    gaps = run["gap"], run["round_gap"]
    return quick and None not in gaps and (max(gaps) <= MOST_GAP or run["downsets"] > LATTICE)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--case", choices=sorted(CASES), help="plan one case in this process, and print what it took")
    parser.add_argument("--share", type=float, default=0.0, help="of the model's bytes, for each node; 0: no limit")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(run_case(options.case, options.share)))
        return 0
    runs = []
    for name, (group, _) in CASES.items():
        for share in (0.0, 0.4):
            command = [sys.executable, __file__, "--case", name, "--share", str(share)]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            run = {"case": name, "group": group, "memory_share": share, **json.loads(done.stdout)}
            runs.append({**run, "ok": kept(run)})
            memory = f", {share:.0%} of its bytes each" if share else ""
            ring = f"{run['round_seconds']:.2f} s ({run['round_cpu_seconds']:.2f} of CPU), gap {run['round_gap']}"
            tell(
                f"{name}{memory}: {run['items']} items, {run['downsets']} downsets, {run['seconds']:.2f} s "
                f"({run['cpu_seconds']:.2f} of CPU), {run['bytes'] / 2**20:.0f} MiB, gap {run['gap']}; the round {ring}"
            )
    seconds = [max(run["seconds"], run["round_seconds"]) for run in runs if run["group"] == "lattice"]
    details = {
        "what": "partition into 4 stages for 2 + 2 nodes; the longest of the lattices of 100,000 downsets",
        "cpu_seconds": max(run["cpu_seconds"] for run in runs if run["group"] == "lattice"),
        "quick_seconds": max(run["seconds"] for run in runs if run["group"] == "quick"),
        "bytes": max(run["bytes"] for run in runs),
        "round_seconds": max(run["round_seconds"] for run in runs if run["group"] == "lattice"),
        "round_cpu_seconds": max(run["round_cpu_seconds"] for run in runs if run["group"] == "lattice"),
        "gap": max(run["gap"] or 0.0 for run in runs if run["downsets"] <= LATTICE),
        "round_gap": max(run["round_gap"] or 0.0 for run in runs if run["downsets"] <= LATTICE),
    }
    every = all(run["ok"] for run in runs)
    return finish(
        report(BENCHMARK, max(seconds), runs=runs, spread=seconds, details=details, versions=versions(), also=every)
    )


if __name__ == "__main__":
    sys.exit(main())
