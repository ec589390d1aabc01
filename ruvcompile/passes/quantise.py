"""Quantise the linear weights and the embedding of a decoder, once, for every node of the fleet.

All nodes, whatever their back end, hold the same numbers: the float weight of the file is dequantised and
quantised here, into the program, and never again.

1. ``MatMul(x, W)`` with a two-dimensional weight ``W [K, N]`` becomes ``com.microsoft.MatMulNBits``: blocks of 32
   along K, one float32 scale per block.
2. ``Gather(E, ids)`` with an embedding ``E [vocab, hidden]`` becomes ``com.microsoft.GatherBlockQuantized``, the same
   blocks along hidden.
3. A head tied to the embedding has the same values, scales and zero points, byte by byte, under names of its own.
4. Everything else (norms, rotary tables) stays as it is.

How a weight becomes levels is told in ``levels``; the error against the file is measured (``verify/loss.py``), never
assumed.

All results are lazy: a tensor is quantised when a file is written, and forgotten soon after. The float weight is
never whole in memory where it can be read in parts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace

import onnx_ir as ir

from ruvcompile.errors import InputError
from ruvcompile.matrices import Floats, row_blocks
from ruvcompile.passes.levels import BLOCK, Bytes, Quantised, quantise_rows
from ruvcompile.passes.state import by_position
from ruvcompile.program import BITS, TIED, Program

MS_DOMAIN = "com.microsoft"
ACCURACY = {"int8": 4, "float": 1}  # MatMulNBits' accuracy_level, by what it is to do with activations
# Values, scales and zeros of one tensor are read in turn, those of three stacked projections side by side. Each
# thread that writes weights keeps this many results meanwhile.
KEPT = 3


def quantise(program: Program, quant: str, *, accuracy: int = 4) -> Program:
    """Quantise a decoder; any other program, and ``quant`` ``none``, is returned as it is.

    Args:
        program: in canonical form, float weights.
        quant: ``auto`` (never below the bits the file holds; 4 for 16- and 32-bit weights, 8 where others of the file
            are quantised already), ``int4``, ``int8`` or ``none``.
        accuracy: MatMulNBits' ``accuracy_level``: 4 computes with int8 activations, 1 with float32.
    """
    if program.decoder is None or quant == "none" or (quant == "auto" and not _floats(program)):
        return program
    if program.decoder.exported:
        what = f"{program.source.path} is run as it was exported, and such a graph is not quantised"
        raise InputError("quant-as-exported", what, hint="build with --quant none")
    model = program.model.clone()
    weights = _Weights(model.graph)
    held = [int(value.metadata_props.get(BITS, "32")) for value in model.graph.initializers.values()]
    wide = 8 if min(held, default=32) <= 8 else 4
    for node in list(model.graph):
        if node.op_type == "MatMul" and node.domain == "":
            _linear(weights, node, _bits(node.inputs[1], quant, wide), accuracy)
        elif node.op_type == "Gather" and node.domain == "" and not by_position(node.inputs[1]):
            _embedding(weights, node, _bits(node.inputs[0], quant, wide))
    for name in [name for name, value in model.graph.initializers.items() if not value.uses()]:
        del model.graph.initializers[name]
    model.graph.opset_imports[MS_DOMAIN] = 1
    return replace(program, model=model)


def _floats(program: Program) -> bool:
    """Whether the weights are floats, ours to quantise: not those of a file that was quantised by whoever made it."""
    assert program.decoder is not None
    return not program.decoder.exported and all(node.op_type != "MatMulNBits" for node in program.model.graph)


def _bits(weight: ir.Value | None, quant: str, wide: int) -> int:
    """Bits for one weight, ``wide`` for one of 16 or more; 0 leaves it as it is."""
    if weight is None or weight.const_value is None or weight.shape is None or len(weight.shape) != 2:
        return 0
    if quant in ("int4", "int8"):
        return int(quant[3:])
    if quant != "auto":
        raise InputError("quant-not-made", f"nothing is quantised to {quant} here", hint="auto, none, int8 or int4")
    held = int(weight.metadata_props.get(BITS, "32"))
    return wide if held > 8 else 8 if held > 4 else 4


class _Weights:
    """The quantised tensors of a graph: registered as lazy initializers, each thread's last few results kept."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self._thread = threading.local()

    def register(self, weight: ir.Value, bits: int, *, transposed: bool, form: str) -> list[ir.Value]:
        """Initializers of one weight: values (``form`` ``linear`` or ``rows``), scales, and zeros for 4 bits.

        ``transposed`` tells that the float weight is ``[columns, rows]``.
        """
        assert weight.shape is not None
        sizes = reversed(weight.shape) if transposed else weight.shape
        rows, columns = (int(size) for size in sizes)  # type: ignore[arg-type]  # weights have static shapes
        if columns % BLOCK:
            raise InputError(
                "quant-block",
                f"{weight.name}: size {columns} is not a multiple of {BLOCK}",
                hint="build with --quant none",
            )
        name = weight.metadata_props.get(TIED) or str(weight.name)
        tensor = weight.const_value
        assert tensor is not None

        def read() -> Quantised:
            return self._read(name, lambda: row_blocks(tensor, transposed=transposed), (rows, columns), bits)

        blocks = columns // BLOCK
        shape = (rows, columns * bits // 8) if form == "rows" else (rows, blocks, BLOCK * bits // 8)
        # A tied weight is registered in both forms, each complete: its two files are then the same bytes.
        base = f"{name}.int{bits}.{form}"
        values = [
            self._lazy(base, ir.DataType.UINT8, shape, lambda: read().values.reshape(shape)),
            self._lazy(f"{base}.scales", ir.DataType.FLOAT, (rows, blocks), lambda: read().scales),
        ]
        if bits == 4:
            zeros = (rows, (blocks + 1) // 2)
            values.append(self._lazy(f"{base}.zeros", ir.DataType.UINT8, zeros, lambda: _present(read().zeros)))
        return values

    def _read(self, name: str, parts: Callable[[], Iterable[Floats]], shape: tuple[int, int], bits: int) -> Quantised:
        kept: dict[tuple[str, int], Quantised] = self._thread.__dict__.setdefault("kept", {})
        found = kept.get((name, bits))
        if found is None:
            found = kept[name, bits] = quantise_rows(parts(), shape, bits)
            if len(kept) > KEPT:
                del kept[next(iter(kept))]
        return found

    def _lazy(self, name: str, dtype: ir.DataType, shape: tuple[int, ...], read: Callable[[], Bytes]) -> ir.Value:
        if name in self.graph.initializers:
            return self.graph.initializers[name]
        tensor = ir.LazyTensor(lambda: ir.Tensor(read(), name=name), dtype=dtype, shape=ir.Shape(shape), name=name)
        value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype), const_value=tensor)
        self.graph.register_initializer(value)
        return value


def _linear(weights: _Weights, node: ir.Node, bits: int, accuracy: int) -> None:
    weight = node.inputs[1]
    if not bits or weight is None or weight.shape is None:
        return
    inner, outer = int(weight.shape[0]), int(weight.shape[1])  # type: ignore[arg-type]  # weights have static shapes
    inputs = [node.inputs[0], *weights.register(weight, bits, transposed=True, form="linear")]
    sizes = {"K": inner, "N": outer, "bits": bits, "block_size": BLOCK, "accuracy_level": accuracy}
    _replace(weights.graph, node, "MatMulNBits", inputs, sizes)


def _embedding(weights: _Weights, node: ir.Node, bits: int) -> None:
    weight = node.inputs[0]
    if not bits or weight is None:
        return
    values, *rest = weights.register(weight, bits, transposed=False, form="rows")
    sizes = {"bits": bits, "block_size": BLOCK, "gather_axis": 0, "quantize_axis": 1}
    _replace(weights.graph, node, "GatherBlockQuantized", [values, node.inputs[1], *rest], sizes)


def _replace(
    graph: ir.Graph, node: ir.Node, op_type: str, inputs: list[ir.Value | None], attributes: dict[str, int]
) -> None:
    """Put a node of the contrib domain in ``node``'s place; its name, metadata and output value stay."""
    out = node.outputs[0]
    new = ir.node(op_type, inputs, attributes=attributes, domain=MS_DOMAIN, name=node.name, num_outputs=1)
    new.metadata_props.update(node.metadata_props)
    new.outputs[0].name, new.outputs[0].shape, new.outputs[0].type = out.name, out.shape, out.type
    graph.insert_before(node, new)
    ir.convenience.replace_all_uses_with(out, new.outputs[0], replace_graph_outputs=True)
    graph.remove(node, safe=True)


def _present(zeros: Bytes | None) -> Bytes:
    assert zeros is not None
    return zeros


__all__ = ["ACCURACY", "MS_DOMAIN", "quantise"]
