"""Which values are an input of the graph again, in another form.

"The raw image never leaves this machine" is not kept when a transposed, scaled or cropped copy of it does. So a copy
is what operators make that move, convert, scale or resample elements one by one, and copies of copies; what weighs
many elements into one by the model's weights (a convolution, a product of matrices) ends it. In doubt it is a copy: an
operator that is not known here because it is none of ONNX's own, or one with a body, may only hand its input on.

How much of an image can be read out of what a convolution makes of it is not asked: who wants more nodes to stay names
them too.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ruvcompile.passes.scope import bodies, is_weight, reads

# What is made of the first input alone; the others say how (shapes, indices, pads, scales, sizes).
_OF_THE_FIRST = frozenset(
    {
        *("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand", "Tile", "Split", "Slice"),
        *("Gather", "GatherElements", "GatherND", "Pad", "DepthToSpace", "SpaceToDepth", "ReverseSequence", "Compress"),
        *("Cast", "CastLike", "BitCast", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"),
        *("Resize", "Upsample", "GridSample", "AffineGrid", "CenterCropPad", "AveragePool", "MaxPool", "Clip", "Trilu"),
        *("BatchNormalization", "InstanceNormalization", "LayerNormalization", "GroupNormalization"),
        *("RMSNormalization", "LpNormalization", "MeanVarianceNormalization", "LRN", "Dropout", "Col2Im", "Unique"),
        *("SequenceAt", "SequenceErase", "SplitToSequence", "ConcatFromSequence", "OptionalGetElement", "Optional"),
    }
)
# What is made of all inputs, element by element or one beside another.
_OF_ALL = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Mod", "Pow", "Max", "Min", "Mean", "Sum", "PRelu", "Where", "Concat"),
        *("Abs", "Neg", "Ceil", "Floor", "Round", "Sqrt", "Reciprocal", "Exp", "Log", "Erf", "Sign", "Sin", "Cos"),
        *("Relu", "LeakyRelu", "Elu", "Selu", "Celu", "Gelu", "Mish", "Swish", "HardSwish", "HardSigmoid"),
        *("Sigmoid", "Tanh", "Softplus", "Softsign", "ThresholdedRelu", "Shrink", "Softmax", "LogSoftmax"),
        *("BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot", "ScatterElements", "ScatterND"),
        *("SequenceConstruct", "SequenceInsert"),
    }
)
_ONNX = frozenset({"", "ai.onnx.ml"})
# Of other domains, those that are known to weigh; and quantised forms of what is above count as unknown.
_WEIGHING = frozenset({"MatMulNBits", "GatherBlockQuantized", "FusedConv", "FusedMatMul", "FusedGemm", "QGemm"})


def copies(graph: ir.Graph, inputs: Mapping[str, frozenset[str]]) -> dict[str, frozenset[str]]:
    """Every value of ``graph`` that is one of ``inputs`` again, with what is to hold for it.

    Args:
        graph: in canonical form, its nodes in a topological order.
        inputs: names of graph inputs, and for each the nodes of the fleet that may hold it.

    Returns:
        The inputs, and all copies; what is made of several may be held by who may hold all of them.
    """
    found = dict(inputs)
    for node in graph:
        sources = [found[value.name] for value in _handed_on(node) if value.name in found]
        if not sources:
            continue
        holders = frozenset.intersection(*sources)
        found.update((output.name, holders) for output in node.outputs if output.name)
    return found


def _handed_on(node: ir.Node) -> tuple[ir.Value, ...]:
    """The values that ``node`` may give out again in another form."""
    read = tuple(value for value in reads(node) if not is_weight(value))
    if next(bodies(node), None) is not None:
        return read
    if node.domain not in _ONNX:
        return () if node.op_type in _WEIGHING else read
    if node.op_type in _OF_ALL:
        return read
    if node.op_type in _OF_THE_FIRST and node.inputs and node.inputs[0] is not None:
        return (node.inputs[0],)
    return ()
