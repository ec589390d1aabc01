"""All hypothesis strategies, in one file."""

from __future__ import annotations

import math
import typing
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from ruvcompile.partition import UNLIMITED, Hop, Kind, Shared, Task, Value
from ruvrun import frames
from ruvrun.engine import Request

SEEDS = st.integers(-(2**63), 2**64 - 1)


def samplings(vocab: int = 20) -> st.SearchStrategy[frames.Sampling]:
    """Greedy, any temperature and top_p, and all else a client may send, of a model with so many tokens."""
    drawn = st.builds(frames.Sampling, st.floats(0.05, 3.0), st.floats(0.01, 1.0), SEEDS)
    biases = st.dictionaries(st.integers(0, vocab - 1), st.floats(-100, 100), max_size=3)
    everything = st.builds(
        frames.Sampling,
        st.just(0.0) | st.floats(0.05, 3.0),
        st.just(1.0) | st.floats(0.01, 1.0),
        SEEDS,
        st.integers(0, vocab),
        st.just(0.0) | st.floats(0, 1),
        st.just(1.0) | st.floats(0.5, 2),
        st.just(0.0) | st.floats(-2, 2),
        st.just(0.0) | st.floats(-2, 2),
        biases.map(lambda found: tuple(found.items())),
        st.integers(-1, 3),
    )
    return st.just(frames.Sampling(0.0, 1.0, 0)) | drawn | everything


@st.composite
def requests(draw: st.DrawFn, number: int, *, context: int, vocab: int) -> Request:
    """A request that fits ``context``; a few of the tokens may end it."""
    length = draw(st.integers(1, context - 1))
    prompt = draw(st.lists(st.integers(0, vocab - 1), min_size=length, max_size=length))
    return Request(
        number,
        tuple(prompt),
        draw(st.integers(1, 12)),
        draw(samplings(vocab)),
        draw(st.frozensets(st.integers(0, vocab - 1), max_size=4)),
    )


@st.composite
def small_graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """Valid graphs of up to nine nodes on [2, 3] floats: branches, shared weights, an If that captures, dead ends.

    Weights hold any of the few values; a graph input may be a graph output, and so may an initialiser.
    """
    shape = [2, 3]
    inputs = [f"x{number}" for number in range(draw(st.integers(1, 2)))]
    weights = {f"w{number}": draw(st.integers(-2, 2)) * np.ones(shape, np.float32) / 2 for number in range(2)}
    weights["square"] = np.eye(3, dtype=np.float32)[::-1] * np.float32(0.5)
    values = [*inputs, "w0", "w1"]
    nodes = []
    for number in range(draw(st.integers(2, 9))):
        kind = draw(st.sampled_from(["Add", "Mul", "Sub", "Relu", "Tanh", "MatMul", "Constant", "If", "Split"]))
        first, second = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        out = f"v{number}"
        name = draw(st.sampled_from([f"n{number}", "same", ""]))
        if kind in ("Add", "Mul", "Sub"):
            nodes.append(helper.make_node(kind, [first, second], [out], name=name))
        elif kind in ("Relu", "Tanh"):
            nodes.append(helper.make_node(kind, [first], [out], name=name))
        elif kind == "MatMul":
            nodes.append(helper.make_node(kind, [first, "square"], [out], name=name))
        elif kind == "Constant":
            held = numpy_helper.from_array(np.full(shape, 0.25 * number, np.float32))
            nodes.append(helper.make_node(kind, [], [out], name=name, value=held))
        elif kind == "Split":
            nodes.append(helper.make_node(kind, [first], [out, f"{out}_rest"], name=name, axis=1, num_outputs=2))
            nodes.append(helper.make_node("Concat", [out, f"{out}_rest"], [f"{out}_joined"], axis=1))
            out = f"{out}_joined"
        else:
            nodes.append(_an_if(out, first, second, name))
        values.append(out)
    others = [each for each in values[:-1] if each != "w1"]
    outputs = [values[-1], *draw(st.lists(st.sampled_from(others), unique=True))]
    graph = helper.make_graph(
        nodes,
        "random",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in inputs]
        + [helper.make_tensor_value_info("flag", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def _an_if(out: str, first: str, second: str, name: str) -> onnx.NodeProto:
    """An If on ``flag`` whose branches read values of the graph around them and use the same inner names."""
    branches = [
        helper.make_graph(
            [
                helper.make_node(kind, [first, second], ["inner"], name="same"),
                helper.make_node("Relu", ["inner"], [f"{out}_{branch}"], name="same"),
            ],
            branch,
            [],
            [helper.make_tensor_value_info(f"{out}_{branch}", TensorProto.FLOAT, [2, 3])],
        )
        for branch, kind in (("then", "Add"), ("else", "Mul"))
    ]
    return helper.make_node("If", ["flag"], [out], name=name, then_branch=branches[0], else_branch=branches[1])


def messages() -> st.SearchStrategy[frames.Message]:
    """Any message a link may carry."""
    return st.one_of(*(_values(kind) for kind in typing.get_args(frames.Message)))


def _values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field of a message: a number, perhaps within bounds, a text, another struct, or tuples of these."""
    if typing.get_origin(hint) is typing.Annotated:
        _, bounds = typing.get_args(hint)
        return st.integers(bounds.ge, bounds.lt - 1)
    plain = {int: SEEDS, float: st.floats(allow_nan=False), str: st.text(max_size=8), bool: st.booleans()}
    if hint in plain or hint is bytes:
        return plain.get(hint, st.binary(max_size=8))
    if issubclass(typing.get_origin(hint) or hint, tuple):
        first, *rest = typing.get_args(hint)
        if rest == [...]:
            return st.lists(_values(first), max_size=3).map(tuple)
        return st.tuples(*map(_values, (first, *rest)))
    return st.builds(
        hint, **{name: _values(part) for name, part in typing.get_type_hints(hint, include_extras=True).items()}
    )


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """Up to three named arrays of the types that travel; empty ones and scalars too."""
    named = {}
    for name in draw(st.lists(st.text(max_size=8), max_size=3, unique=True)):
        dtype = np.dtype(draw(st.sampled_from(["?", "i1", "<i4", "<i8", "u1", "<u8", "<f2", "<f4", "<f8"])))
        shape = draw(st.lists(st.integers(0, 4), max_size=4))
        size = math.prod(shape) * dtype.itemsize
        named[name] = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype).reshape(shape)
    return named


@st.composite
def tasks(draw: st.DrawFn, *, shared: bool = False, items: int = 6) -> Task:
    """Partition tasks that can be solved by trying everything: any graph, up to three kinds, all rules; some kinds are
    the same nodes in two guises, and some need another amount of memory for the same items.

    Times are whole or halves, so that equal sums are equal numbers.
    """
    count, kinds = draw(st.integers(1, items)), draw(st.integers(1, 3))
    random = draw(st.randoms(use_true_random=True))  # one draw for all that need not shrink
    density, strict = random.random(), random.random()
    values = []
    for maker in range(-1, count):
        for _ in range(random.choice([0, 1, 1, 1, 2])):
            readers = tuple(reader for reader in range(maker + 1, count + 1) if random.random() < 0.6 * density)
            held = frozenset(kind for kind in range(kinds) if random.random() < 0.6)
            values.append(
                Value(
                    maker,
                    readers,
                    random.randint(0, 6),
                    crosses=random.random() > 0.2 * strict,
                    kinds=held if random.random() < 0.2 * strict else None,
                )
            )
    nodes = tuple(
        Kind(
            random.randint(1, 2),
            tuple(float(random.randint(0, 12)) for _ in range(count)),
            random.choice([10, 20, 30, UNLIMITED]),
            random.choice([0.0, 1.0, 2.0]),
            random.choice([0.0, 0.5]),
            frozenset(item for item in range(count) if random.random() < 0.1 * strict),
        )
        for _ in range(kinds)
    )
    ways = [[Hop(random.choice([0.0, 1.0, 3.0]), random.choice([0.0, 0.5, 2.0])) for _ in nodes] for _ in nodes]
    ends = [[float(random.randint(0, 3)) for _ in nodes] for _ in range(2)]
    weights = [
        Shared(tuple(sorted(random.sample(range(count), random.randint(1, min(count, 3))))), random.randint(0, 8))
        for _ in range(random.randint(1, 2))
    ]
    sizes = [random.randint(0, 9) for _ in range(count)]
    once = [each.size for each in weights] if shared else []
    if random.random() < 0.4:
        nodes = tuple(
            replace(
                kind,
                item_bytes=tuple(size + random.randint(0, 4) for size in sizes),
                shared_bytes=tuple(size + random.randint(0, 4) for size in once),
            )
            for kind in nodes
        )
    guises = frozenset(random.sample(range(kinds), 2)) if kinds > 1 and random.random() < 0.4 else frozenset()
    return Task(
        nodes,
        tuple(sizes),
        tuple(values),
        tuple(weights) if shared else (),
        random.randint(0, 4),
        tuple(map(tuple, ways)) if draw(st.booleans()) else (),
        tuple(ends[0]) if draw(st.booleans()) else (),
        tuple(ends[1]) if draw(st.booleans()) else (),
        draw(st.sampled_from(["throughput", "latency"])),
        ((guises, random.randint(1, 3)),) if guises else (),
    )
