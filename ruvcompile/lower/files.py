"""The files of a stage: its weights by content, group by group, and an ONNX graph that refers to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx_ir as ir

from ruvcompile.lower.weights import DIRECTORY, INLINE_BYTES, Slice, WeightStore, size_of
from ruvcompile.passes.infer import spelt
from ruvcompile.passes.inline import inline
from ruvcompile.passes.pieces import unit_of
from ruvrun.bundle import File, State, file_sha256
from ruvrun.machine import cores
from ruvrun.manifest import Tensor

# A tensor of a graph that is larger than this gets a weight file of its own.
OWN_FILE_BYTES = 256 * 1024
Groups = Callable[[Sequence[ir.Value]], list[list[ir.Value]]]
ROTARY = "rotary"
"""What the names of rotary tables begin with."""


def hashed(directory: Path, path: str) -> File:
    """The entry of ``bundle.toml`` for a file in ``directory``."""
    return File(path=path, sha256=file_sha256(directory / path), bytes=(directory / path).stat().st_size)


def ports(values: Sequence[ir.Value], names: Sequence[str], *, packed: bool) -> list[Tensor]:
    """Those of ``values`` called ``names``, as tensors of the wire.

    Args:
        packed: whether the batch and sequence axes become one, ``tokens``: a decoder's.
    """
    return [_tensor(value, packed) for value in values if value.name in names]


def by_rows(tensor: Tensor) -> Tensor:
    """Logits come for the rows that are sampled, not for every token, and to the sampler always as float32."""
    return Tensor(name=tensor.name, dtype="float32", shape=["rows", *tensor.shape[1:]])


def state_pairs(graph: ir.Graph, past: Sequence[str], present: Sequence[str]) -> list[State]:
    """The state of a stage that keeps it in plain tensors."""
    assert {name.replace("past_", "present_", 1) for name in past} == set(present), "a block holds whole pairs"
    inputs = {str(value.name): value for value in graph.inputs}
    found = []
    for name in past:
        value = inputs[name]
        assert value.shape is not None and value.dtype is not None
        _, heads, _, head_size = (size if isinstance(size, int) else 0 for size in value.shape)
        other = name.replace("past_", "present_", 1)
        found.append(State(past=name, present=other, heads=heads, head_size=head_size, dtype=value.dtype.numpy().name))
    return found


def write_model(
    model: ir.Model, file: str, directory: Path, store: WeightStore, groups: Groups, *, passing: bool
) -> list[File]:
    """Write the weights group by group, on all cores, then the graph that refers to them, ``file``."""
    # Texts have no bytes that a file could hold as they are.
    numbers = [value for value in model.graph.initializers.values() if value.dtype != ir.DataType.STRING]
    large = [value for value in numbers if size_of(value) > INLINE_BYTES]
    with ThreadPoolExecutor(cores()) as pool:
        placed: dict[str, Slice] = {}
        for slices in pool.map(store.put, groups(large)):
            placed.update(slices)
    shas = sorted({entry.sha256 for entry in placed.values()})
    weights = [store.place(sha256, directory, passing=passing) for sha256 in shas]
    for value in large:
        entry = placed[str(value.name)]
        assert value.dtype is not None and value.const_value is not None
        value.const_value = ir.ExternalTensor(
            f"{DIRECTORY}/{entry.sha256}.bin",
            entry.offset,
            entry.length,
            value.dtype,
            shape=value.const_value.shape,  # type: ignore[arg-type]  # a Shape all the same
            name=str(value.name),
            base_dir=directory,
        )
    inline(model, kept=set(large))
    proto = ir.serde.serialize_model(model)
    (directory / file).write_bytes(proto.SerializeToString(deterministic=True))
    return [hashed(directory, file), *weights]


def decoder_groups(values: Sequence[ir.Value]) -> list[list[ir.Value]]:
    """By the part of the model that reads them: attention or MLP of a layer, embedding, head, rotary tables."""
    groups: dict[str, list[ir.Value]] = {}
    for value in values:
        if str(value.name).startswith(ROTARY):
            groups.setdefault(str(value.name).partition(".")[0], []).append(value)
            continue
        reader = next(use.node for use in value.uses())
        groups.setdefault(unit_of(str(reader.name)), []).append(value)
    # The order inside a file must not depend on the order in which a rule made its nodes.
    return [sorted(group, key=_rank) for group in groups.values()]


def graph_groups(values: Sequence[ir.Value]) -> list[list[ir.Value]]:
    """Large tensors one by one, the others together."""
    own = [[value] for value in values if size_of(value) > OWN_FILE_BYTES]
    rest = [value for value in values if size_of(value) <= OWN_FILE_BYTES]
    return [*own, rest] if rest else own


def _tensor(value: ir.Value, packed: bool) -> Tensor:
    """Type and shape of a wire tensor; what is no tensor has no shape."""
    assert value.name is not None and value.type is not None
    shape = [size if isinstance(size, int) else str(size.value) for size in value.shape or ()]
    shape = ["tokens", *shape[2:]] if packed else shape
    return Tensor(name=value.name, dtype=spelt(value.type), shape=shape)


def _rank(value: ir.Value) -> tuple[str, int]:
    name, _, suffix = str(value.name).rpartition(".")
    order = {"rows": 0, "linear": 0, "scales": 1, "zeros": 2}
    return name, order.get(suffix, 3)
