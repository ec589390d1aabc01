"""A piece of the program, lowered for a back end and written where an executor can load it.

The same function writes the stage of a bundle, the whole decoder that is measured, and the uncut model that
``verify`` compares with: what is measured and checked is what will run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal

import onnx_ir as ir

import ruvrun
from ruvcompile.lower import onnxruntime
from ruvcompile.lower.halves import widen
from ruvcompile.lower.sheet import Keyed, sheet_of
from ruvcompile.lower.weights import DIRECTORY, INLINE_BYTES, Slice, WeightStore, size_of
from ruvcompile.passes.extract import extract
from ruvcompile.passes.infer import Type, spelt
from ruvcompile.passes.inline import inline
from ruvcompile.passes.pieces import unit_of
from ruvcompile.passes.scope import reads
from ruvcompile.program import Piece, Program
from ruvrun.bundle import BUNDLE, File, StageSpec, State, file_sha256
from ruvrun.machine import cores
from ruvrun.manifest import PROTOCOL, KeyValue, Tensor, dump_toml
from ruvrun.profile.sheet import UNITS

# A tensor of a graph that is larger than this gets a weight file of its own.
OWN_FILE_BYTES = 256 * 1024
Groups = Callable[[Sequence[ir.Value]], list[list[ir.Value]]]
ROTARY = "rotary"
"""What the names of rotary tables begin with."""


def write_stage(
    program: Program,
    piece: Piece,
    directory: Path,
    store: WeightStore,
    *,
    backend: str,
    target: str,
    types: Mapping[str, Type] | None = None,
    passing: bool = False,
    keyed: Keyed | None = None,
) -> StageSpec:
    """Lower ``piece`` and write its graph, weights and ``bundle.toml`` into ``directory``.

    Args:
        keyed: the program's units, so that the stage can be measured wherever it lies (``units.toml``).
        passing: the stage is for ourselves and soon gone (``WeightStore.place``).

    Returns:
        The stage's spec, without a golden check (see ``add_golden``).
    """
    directory.mkdir(parents=True, exist_ok=True)
    decoder = program.decoder
    nodes = _nodes(program.model, piece) if decoder is not None else []
    past, filled, present = _state(nodes, piece)
    # Positions (and a mask) are inputs too; the lowering of the canonical form takes them away again.
    inputs, outputs = [*piece.inputs, *past, *filled], [*piece.outputs, *present]
    summed = onnxruntime.summed_norms(program.model)
    # The model's name for people is no part of what a stage is: its bytes stay the same under another.
    model = extract(program.model, piece.nodes, inputs=inputs, outputs=outputs, name="stage", types=types)
    exported = decoder is not None and decoder.exported
    if decoder is None or exported:
        widen(model, program.model)
    wire = [_tensor(value, decoder is not None) for value in model.graph.inputs if value.name in piece.inputs]
    leaving = [_tensor(value, decoder is not None) for value in model.graph.outputs if value.name in piece.outputs]
    state = _pairs(model.graph, past, present) if exported else []
    if decoder is not None and not exported:
        model = onnxruntime.lower_decoder(model, summed=summed, last=piece.last)
    if decoder is not None:
        leaving = [_by_rows(tensor) if tensor.name == "logits" else tensor for tensor in leaving]
    if keyed is not None:
        (directory / UNITS).write_bytes(dump_toml(sheet_of(program, model, keyed)))
    files = _write(model, directory, store, _decoder_groups if decoder is not None else _graph_groups, passing)
    files += [hashed(directory, UNITS)] if keyed is not None else []
    spec = StageSpec(
        kind="decoder" if decoder is not None else "graph",
        backend=backend,
        target=target,
        model=onnxruntime.MODEL,
        first=piece.first,
        last=piece.last,
        inputs=wire,
        outputs=leaving,
        forward=list(piece.forward),
        files=files,
        requires={"protocol": str(PROTOCOL), "ruvrun": ruvrun.__version__},
        kv=_key_value(program, len(past) // 2, half=any(pair.dtype == "float16" for pair in state)),
        vocab=decoder.vocab if decoder is not None else 0,
        exported=exported,
        state=state,
    )
    (directory / BUNDLE).write_bytes(dump_toml(spec))
    return spec


def hashed(directory: Path, path: str) -> File:
    """The entry of ``bundle.toml`` for a file in ``directory``."""
    return File(path=path, sha256=file_sha256(directory / path), bytes=(directory / path).stat().st_size)


def _nodes(model: ir.Model, piece: Piece) -> list[ir.Node]:
    wanted = set(piece.nodes)
    return [node for node in model.graph if node.name in wanted]


def _state(nodes: Sequence[ir.Node], piece: Piece) -> tuple[list[str], list[str], list[str]]:
    """What a decoder's nodes read that is not sent to them, and keep: past, what positions decide, and present."""
    read = dict.fromkeys(value for node in nodes for value in reads(node) if value.is_graph_input())
    hidden = [str(value.name) for value in read if value.name not in piece.inputs]
    past = [name for name in hidden if name.startswith("past_")]
    made = (value for node in nodes for value in node.outputs if value.is_graph_output())
    present = [str(value.name) for value in made if str(value.name).startswith("present_")]
    return past, [name for name in hidden if name not in past], present


def _pairs(graph: ir.Graph, past: Sequence[str], present: Sequence[str]) -> list[State]:
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


def _tensor(value: ir.Value, packed: bool) -> Tensor:
    """Type and shape of a wire tensor; the batch and sequence axes of a decoder become one, ``tokens``.

    What is no tensor has no shape.
    """
    assert value.name is not None and value.type is not None
    shape = [size if isinstance(size, int) else str(size.value) for size in value.shape or ()]
    shape = ["tokens", *shape[2:]] if packed else shape
    return Tensor(name=value.name, dtype=spelt(value.type), shape=shape)


def _by_rows(tensor: Tensor) -> Tensor:
    """Logits come for the rows that are sampled, not for every token, and to the sampler always as float32."""
    return Tensor(name=tensor.name, dtype="float32", shape=["rows", *tensor.shape[1:]])


def _key_value(program: Program, layers: int, *, half: bool) -> KeyValue | None:
    decoder = program.decoder
    if decoder is None:
        return None
    dtype: Literal["float16", "float32"] = "float16" if half else "float32"
    return KeyValue(layers=layers, heads=decoder.kv_heads, head_size=decoder.head_size, dtype=dtype)


def _write(model: ir.Model, directory: Path, store: WeightStore, groups: Groups, passing: bool) -> list[File]:
    """Write the weights group by group, on all cores, then the graph that refers to them."""
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
    (directory / onnxruntime.MODEL).write_bytes(proto.SerializeToString(deterministic=True))
    return [hashed(directory, onnxruntime.MODEL), *weights]


def _decoder_groups(values: Sequence[ir.Value]) -> list[list[ir.Value]]:
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


def _rank(value: ir.Value) -> tuple[str, int]:
    name, _, suffix = str(value.name).rpartition(".")
    order = {"rows": 0, "linear": 0, "scales": 1, "zeros": 2}
    return name, order.get(suffix, 3)


def _graph_groups(values: Sequence[ir.Value]) -> list[list[ir.Value]]:
    """Large tensors one by one, the others together."""
    own = [[value] for value in values if size_of(value) > OWN_FILE_BYTES]
    rest = [value for value in values if size_of(value) <= OWN_FILE_BYTES]
    return [*own, rest] if rest else own


__all__ = ["hashed", "write_stage"]
