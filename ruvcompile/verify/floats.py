"""The float program of a decoder, computed without ever being in memory.

Its weights may be many times larger than the memory, and a single one of them too large. So the graph is walked in
small groups of nodes:

1. A product with a large matrix is computed here, a few rows of the stored matrix at a time: while the product with
   some is computed, the next ones are read.
2. Of a large embedding only the rows that are asked for are read.
3. What lies between is run by ONNX Runtime. Large weights that such nodes share (rotary tables) are read once and
   handed in from outside.

An activation is let go of behind its last reader. So the memory is that of the activations, whatever the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np
import onnx_ir as ir

from ruvcompile.matrices import read_rows, row_blocks
from ruvcompile.passes.extract import extract
from ruvcompile.passes.scope import is_weight, reads
from ruvcompile.program import Program
from ruvcompile.whole import open_session
from ruvrun.executors import Array

LARGE = 64 << 10
"""Bytes from which a weight is not simply handed to ONNX Runtime with the nodes that read it."""

Group = tuple[ir.Node, ...]
Arrays = dict[ir.Value, Array]


def float_groups(program: Program) -> list[Group]:
    """The nodes of a canonical decoder in the groups in which they are computed: large ones alone."""
    found: list[list[ir.Node]] = [[]]
    for node in program.model.graph:
        if _is_product(node) or _is_lookup(node):
            found += [[node], []]
        else:
            found[-1].append(node)
    return [tuple(group) for group in found if group]


def run_floats(
    program: Program, groups: Sequence[Group], ids: Array, threads: int, advance: Callable[[], None]
) -> Array:
    """The logits ``[tokens, vocab]`` of the float ``program`` for ``ids`` ``[tokens]``: all at once, nothing past.

    Args:
        program: in canonical form, not quantised.
        groups: all of it (``float_groups``).
        ids: the tokens.
        threads: for what ONNX Runtime computes.
        advance: is called behind every group.
    """
    known = _inputs(program, ids)
    logits = program.model.graph.outputs[0]
    last = {value: number for number, group in enumerate(groups) for node in group for value in reads(node)}
    last[logits] = len(groups)
    shared: dict[str, Array] = {}
    with ThreadPoolExecutor(1) as reader:
        for number, group in enumerate(groups):
            node = group[0]
            if _is_product(node):
                known[node.outputs[0]] = _product(known[_input(node, 0)], _tensor(_input(node, 1)), reader)
            elif _is_lookup(node):
                known[node.outputs[0]] = _lookup(_tensor(_input(node, 0)), known[_input(node, 1)])
            else:
                known |= _run(program, group, known, shared, threads)
            for value in [value for value in known if last.get(value, -1) <= number]:
                del known[value]
            advance()
    found: Array = known[logits][0]
    return found


def _inputs(program: Program, ids: Array) -> Arrays:
    assert program.decoder is not None
    empty = np.zeros((1, program.decoder.kv_heads, 0, program.decoder.head_size), np.float32)
    given = {"input_ids": ids[None], "position_ids": np.arange(len(ids))[None]}
    return {value: given.get(str(value.name), empty) for value in program.model.graph.inputs}


def _product(left: Array, matrix: ir.TensorProtocol, reader: Executor) -> Array:
    """``left`` ``[..., K]`` times ``matrix`` ``[K, N]``."""
    columns = int(matrix.shape.numpy()[1])
    # With the large matrix on the left, as it is stored, the product takes half the time.
    right = np.ascontiguousarray(left.reshape(-1, left.shape[-1]).T)
    result = np.empty((right.shape[1], columns), np.float32)
    blocks = row_blocks(matrix, transposed=True)
    waiting, done = reader.submit(next, blocks, None), 0
    while (block := waiting.result()) is not None:
        waiting = reader.submit(next, blocks, None)
        result[:, done : done + len(block)] = (block @ right).T
        done += len(block)
    return result.reshape(*left.shape[:-1], columns)


def _lookup(table: ir.TensorProtocol, ids: Array) -> Array:
    read = read_rows(table, transposed=False)
    wanted, places = np.unique(ids, return_inverse=True)
    rows = np.concatenate([read(number, number + 1) for number in wanted.tolist()])
    found: Array = rows[places.reshape(ids.shape)]
    return found


def _run(
    program: Program, group: Group, known: Mapping[ir.Value, Array], shared: dict[str, Array], threads: int
) -> Arrays:
    """Run what is no large product; ``shared`` keeps large weights for the next group that reads them."""
    made = {value for node in group for value in node.outputs}
    read = dict.fromkeys(value for node in group for value in reads(node) if value not in made)
    entering = [value for value in read if not is_weight(value)]
    leaving = [value for value in made if _is_wanted(value, group)]
    names = [str(value.name) for value in leaving]
    piece = extract(
        program.model,
        [str(node.name) for node in group],
        inputs=[str(value.name) for value in entering],
        outputs=names,
        name="piece",
    )
    arrays = {str(value.name): known[value] for value in entering}
    for value in read:
        if is_weight(value) and _tensor(value).nbytes >= LARGE:
            name = str(value.name)
            arrays[name] = shared[name] if name in shared else _tensor(value).numpy()
            shared[name] = arrays[name]
            handed = piece.graph.initializers.pop(name)
            handed.const_value = None
            piece.graph.inputs.append(handed)
    results = open_session(piece, threads=threads).run(names, arrays)
    return dict(zip(leaving, results, strict=True))


def _is_wanted(value: ir.Value, group: Group) -> bool:
    """Whether something behind the group reads it; what a decoder keeps of the past is of no use here."""
    return any(use.node not in group for use in value.uses()) or value.name == "logits"


def _is_product(node: ir.Node) -> bool:
    return node.op_type == "MatMul" and not node.domain and _is_large_matrix(node.inputs[1])


def _is_lookup(node: ir.Node) -> bool:
    return node.op_type == "Gather" and not node.domain and _is_large_matrix(node.inputs[0])


def _is_large_matrix(value: ir.Value | None) -> bool:
    if value is None or not is_weight(value):
        return False
    tensor = _tensor(value)
    return len(tensor.shape) == 2 and tensor.dtype == ir.DataType.FLOAT and tensor.nbytes >= LARGE


def _input(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value


def _tensor(value: ir.Value) -> ir.TensorProtocol:
    assert value.const_value is not None
    return value.const_value
