"""What a machine can do, by models that are the same everywhere: figures to scale one machine's costs to another's.

Each is measured with the back end that serves, and is what bounds a part of a real model:

=================  =======  ======================================================================================
memory_bandwidth   B/s      reading memory, nothing else: what attention over a long context waits for
int4_matvec        B/s      bytes of 4-bit weights (scales included) that a decoder reads for one token
int4_matmat        FLOP/s   the same weights for many rows at once: prompts, many users
int8_matvec        B/s      of 8-bit weights
int8_matmat        FLOP/s
f32_matmat         FLOP/s   float weights: most of any other graph
node_overhead      s        a node that computes next to nothing
=================  =======  ======================================================================================

The quantised weights are ``MatMulNBits`` of block 32 with activations in 8 bits, as decoders are built. There are many
of them in a row, more bytes than caches hold, and no two alike: the back end keeps equal ones once. Models are written
as bytes (``onnx_bytes``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ruvrun.bundle import StageSpec
from ruvrun.costs import Rate
from ruvrun.elements import Array, Value
from ruvrun.errors import InputError
from ruvrun.executors import load_graph
from ruvrun.manifest import Tensor
from ruvrun.profile.conditions import Tell, silent
from ruvrun.profile.onnx_bytes import FLOAT, MS_DOMAIN, UINT8, Node, Weight, model_bytes
from ruvrun.scratch import scratch_folder

MEMORY, OVERHEAD, FLOATS = "memory_bandwidth", "node_overhead", "f32_matmat"
BLOCK = 32
RATED = ("onnxruntime", "openvino")
"""Back ends that the figures are measured on."""

OPTIONS = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "32"}
"""Of OpenVINO: what decoders are built with, activations in 8 bits among it."""


@dataclass(frozen=True)
class Size:
    """How much is run.

    Attributes:
        weights: bytes of the weights of a model.
        width: of every matrix, which is square.
        rows: of a matrix-matrix product.
        nodes: that compute next to nothing.
        seconds: of each measurement, at most, once there are ``runs``.
        runs: of each measurement, at least.
    """

    weights: int = 64 << 20
    width: int = 2048
    rows: int = 64
    nodes: int = 400
    seconds: float = 0.4
    runs: int = 3


USUAL = Size()


def measure_rates(target: str, backend: str, threads: int, *, size: Size = USUAL, tell: Tell = silent) -> list[Rate]:
    """All figures of this machine with ``threads`` threads; ``source`` is 0. Raises as ``require_rated``."""
    require_rated(backend)
    found: list[Rate] = []
    total = 7
    with scratch_folder("ruvrun") as folder:
        for name, unit, value, spread in _figures(folder, backend, threads, size):
            found.append(
                Rate(
                    name=name,
                    value=float(f"{value:.4g}"),
                    unit=unit,
                    target=target,
                    backend=backend,
                    threads=threads,
                    source=0,
                    spread=round(spread, 4),
                )
            )
            tell("rates", len(found), total)
    return found


def require_rated(backend: str) -> None:
    """See that there are figures of a back end.

    Raises:
        InputError: ``rates-unknown``: there are no models for it.
    """
    if backend not in RATED:
        raise InputError(
            "rates-unknown",
            f"there are no figures to be measured for {backend}",
            hint=f"measure on such a machine (ruvrun profile), and build with --costs; figures: {', '.join(RATED)}",
        )


def read_bandwidth(threads: int, size: int, seconds: float, runs: int) -> tuple[float, float]:
    """Bytes per second that ``threads`` threads read from memory, and the spread."""
    parts = [np.ones(size // 8 // threads, np.int64) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        took = _times(lambda: list(pool.map(np.ndarray.max, parts)), seconds, runs)
    return sum(part.nbytes for part in parts) / _quick(took), _spread(took)


def _figures(folder: Path, backend: str, threads: int, size: Size) -> Iterator[tuple[str, str, float, float]]:
    yield MEMORY, "B/s", *read_bandwidth(threads, size.weights, size.seconds, size.runs)
    for bits in (4, 8):
        session, stored, flops = _quantised(folder / f"int{bits}.onnx", bits, threads, size, backend)
        took = _run_times(session, (1, size.width), size)
        yield f"int{bits}_matvec", "B/s", stored / _quick(took), _spread(took)
        took = _run_times(session, (size.rows, size.width), size)
        yield f"int{bits}_matmat", "FLOP/s", flops * size.rows / _quick(took), _spread(took)
        del session  # two sets of weights need not be in memory
    session, flops = _floats(folder / "f32.onnx", threads, size, backend)
    took = _run_times(session, (size.rows, size.width), size)
    yield FLOATS, "FLOP/s", flops * size.rows / _quick(took), _spread(took)
    took = _run_times(_small(folder / "small.onnx", threads, size, backend), (1, 8), size)
    yield OVERHEAD, "s", _quick(took) / size.nodes, _spread(took)


def _quantised(path: Path, bits: int, threads: int, size: Size, backend: str = "onnxruntime") -> tuple[Any, int, int]:
    """A chain of quantised products; also bytes of its weights, and operations per row."""
    width = size.width
    packed, scales = width * width * bits // 8, width * (width // BLOCK) * 4
    count = max(1, size.weights // (packed + scales))
    attributes = {"K": width, "N": width, "bits": bits, "block_size": BLOCK, "accuracy_level": 4}
    nodes, weights = [], []
    with path.with_suffix(".bin").open("wb") as file:
        random = np.random.default_rng(bits)
        scale = np.full(scales // 4, 1e-3, np.float32).tobytes()
        for number in range(count):
            made = [f"v{number}", f"w{number}", f"s{number}"]
            nodes.append(Node("MatMulNBits", made, f"v{number + 1}", MS_DOMAIN, attributes))
            shapes = ([width, width // BLOCK, BLOCK * bits // 8], [width * width // BLOCK])
            for name, kind, shape, content in zip(
                made[1:], (UINT8, FLOAT), shapes, (random.bytes(packed), scale), strict=True
            ):
                weights.append(Weight(name, kind, shape, path.with_suffix(".bin").name, file.tell(), len(content)))
                file.write(content)
    session = _open(path, nodes, count, weights, width, threads, backend)
    return session, count * (packed + scales), 2 * count * width * width


def _floats(path: Path, threads: int, size: Size, backend: str = "onnxruntime") -> tuple[Any, int]:
    """A chain of float products, and operations per row."""
    width, length = size.width, 4 * size.width**2
    count = max(1, size.weights // length)
    with path.with_suffix(".bin").open("wb") as file:
        random = np.random.default_rng(0)
        for _ in range(count):
            file.write((random.random(width * width, np.float32) / width).tobytes())
    nodes = [Node("MatMul", [f"v{number}", f"w{number}"], f"v{number + 1}") for number in range(count)]
    weights = [
        Weight(f"w{number}", FLOAT, [width, width], path.with_suffix(".bin").name, number * length, length)
        for number in range(count)
    ]
    return _open(path, nodes, count, weights, width, threads, backend), 2 * count * width * width


def _small(path: Path, threads: int, size: Size, backend: str = "onnxruntime") -> Any:
    """A chain of sums of eight numbers; of OpenVINO, which would make one kernel of them, of shares of eight."""
    path.with_suffix(".bin").write_bytes(np.ones(8, np.float32).tobytes())
    names = [(f"v{number}", f"v{number + 1}") for number in range(size.nodes)]
    if backend == "openvino":
        nodes, weights = [Node("Softmax", [one], two, attributes={"axis": 1}) for one, two in names], []
    else:
        nodes = [Node("Add", [one, "one"], two) for one, two in names]
        weights = [Weight("one", FLOAT, [8], path.with_suffix(".bin").name, 0, 32)]
    return _open(path, nodes, size.nodes, weights, 8, threads, backend)


class _Graph:
    """A graph of OpenVINO, called like a session of ONNX Runtime."""

    def __init__(self, path: Path, taken: Tensor, given: Tensor, threads: int) -> None:
        self._spec = StageSpec(
            kind="graph",
            backend="openvino",
            target="",
            model=path.name,
            first=True,
            last=True,
            inputs=[taken],
            outputs=[given],
            forward=[],
            files=[],
            options=OPTIONS,
        )
        self._graph = load_graph(path.parent, self._spec, threads=threads)

    def run(self, _names: None, given: dict[str, Array]) -> list[Value]:
        """All outputs."""
        return list(self._graph.run(given).values())


def _open(
    path: Path, nodes: Sequence[Node], count: int, weights: Sequence[Weight], width: int, threads: int, backend: str
) -> Any:
    shape, last = ("rows", width), f"v{count}"
    path.write_bytes(model_bytes(nodes, {"v0": shape}, {last: shape}, weights))
    if backend == "openvino":
        return _Graph(path, Tensor("v0", "float32", [*shape]), Tensor(last, "float32", [*shape]), threads)
    from ruvrun.executors.sessions import open_session  # a node may have another back end alone

    return open_session(path, threads=threads)


def _run_times(session: Any, shape: tuple[int, int], size: Size) -> list[float]:
    given = {"v0": np.ones(shape, np.float32)}
    return _times(lambda: session.run(None, given), size.seconds, size.runs)


def _times(run: Callable[[], object], seconds: float, runs: int) -> list[float]:
    """How long some runs took, the first one, which warms up, left out."""
    run()
    took: list[float] = []
    until = time.perf_counter() + seconds
    while len(took) < runs or time.perf_counter() < until:
        start = time.perf_counter()
        run()
        took.append(time.perf_counter() - start)
    return took


def _quick(took: Sequence[float]) -> float:
    """What the machine can do, not what others that run on it leave: a tenth of the runs was quicker."""
    return float(np.quantile(took, 0.1))


def _spread(took: Sequence[float]) -> float:
    return float((np.quantile(took, 0.9) - np.quantile(took, 0.1)) / np.median(took))
