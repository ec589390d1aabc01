"""Writes our one-stage build as a model directory of onnxruntime-genai: the same weights in the graph that its own
builder makes of such a model, so that each side runs the kernels and fusions it would choose itself.

What differs from the stage in the bundle:

1. Lengths come from ``attention_mask``, and key/value tensors have that library's names.
2. Every row gets logits; the final norm is fused with the residual like all others; the first one is
   ``SimplifiedLayerNormalization``.
3. Gate and up projection are two nodes, and the activation is ``x * Sigmoid(x)``: that is its builder's default
   (ONNX Runtime makes a QuickGelu of it). ``fused=True`` leaves our single projection in place, as its option
   ``fuse_mlp_gate_up`` would.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ruvrun.manifest import Manifest

MS_DOMAIN = "com.microsoft"
MODEL = "model.onnx"


def write_peer_model(bundle: Path, manifest: Manifest, directory: Path, *, context: int, fused: bool = False) -> None:
    """Write ``directory`` from the bundle of a build with one stage.

    Args:
        bundle: its directory.
        manifest: of the build.
        directory: is made; files in it are replaced.
        context: positions to reserve for keys and values.
        fused: keep gate and up projection in one node.
    """
    model = ir.load(bundle / "stage.onnx")
    graph = model.graph
    _lengths(graph)
    _names(graph)
    _ends(graph)
    if not fused:
        for node in [node for node in graph if node.op_type == "QuickGelu"]:
            _apart(graph, node)
    for name in [name for name, value in graph.initializers.items() if not value.uses()]:
        del graph.initializers[name]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{MODEL}.data").unlink(missing_ok=True)
    ir.save(model, directory / MODEL, external_data=f"{MODEL}.data")
    attention = next(node for node in graph if node.op_type == "GroupQueryAttention")
    (directory / "genai_config.json").write_text(json.dumps(_config(manifest, attention, context=context), indent=4))


def _lengths(graph: ir.Graph) -> None:
    """``attention_mask`` -> ``seqlens_k`` and ``total_sequence_length``."""
    first = graph[0]
    mask = ir.Value(name="attention_mask", shape=ir.Shape(["batch", "total"]), type=ir.TensorType(ir.DataType.INT64))
    graph.inputs.insert(1, mask)
    one, ones = _constant(graph, "one", np.array(1, np.int64)), _constant(graph, "ones", np.array([1], np.int64))
    summed = _add(graph, first, "ReduceSum", [mask, ones], {"keepdims": 0})
    lengths = _add(graph, first, "Cast", [_add(graph, first, "Sub", [summed, ones])], {"to": ir.DataType.INT32.value})
    shape = _add(graph, first, "Shape", [mask])
    size = _add(graph, first, "Gather", [shape, one], {"axis": 0})
    total = _add(graph, first, "Cast", [size], {"to": ir.DataType.INT32.value})
    for name, made in (("seqlens_k", lengths), ("total_sequence_length", total)):
        given = next(value for value in graph.inputs if value.name == name)
        ir.convenience.replace_all_uses_with(given, made)
        graph.inputs.remove(given)


def _names(graph: ir.Graph) -> None:
    """``past_key.3`` -> ``past_key_values.3.key``, ``present_key.3`` -> ``present.3.key``; likewise values."""
    for value in [*graph.inputs, *graph.outputs]:
        kind, _, layer = str(value.name).rpartition(".")
        if kind in ("past_key", "past_value"):
            value.name = f"past_key_values.{layer}.{kind.removeprefix('past_')}"
        elif kind in ("present_key", "present_value"):
            value.name = f"present.{layer}.{kind.removeprefix('present_')}"


def _ends(graph: ir.Graph) -> None:
    """The first and the final norm, and logits of every row."""
    first, final = (node for node in graph if node.op_type == "RMSNormalization")
    simplified = {"axis": -1, "epsilon": first.attributes["epsilon"].as_float(), "stash_type": 1}
    _put(graph, first, _node("SimplifiedLayerNormalization", first.inputs, simplified))
    wanted = _maker(final, "Gather")
    packed = _maker(wanted, "Reshape")
    add = _maker(packed, "Add")
    operands = [*add.inputs, final.inputs[1]]
    epsilon = {"epsilon": final.attributes["epsilon"].as_float()}
    _put(graph, final, _node("SkipSimplifiedLayerNormalization", operands, epsilon, MS_DOMAIN))
    for node in (wanted, packed, add):
        graph.remove(node, safe=True)
    graph.inputs.remove(next(value for value in graph.inputs if value.name == "logit_rows"))
    logits = graph.outputs[0]
    assert logits.shape is not None
    logits.shape = ir.Shape(["batch", "sequence", logits.shape[-1]])


def _apart(graph: ir.Graph, activation: ir.Node) -> None:
    """One projection, ``Split``, ``QuickGelu`` -> two projections and ``x * Sigmoid(x)``."""
    split = _maker(activation, "Split")
    both = _maker(split, "MatMulNBits")
    halves = []
    for part, old in enumerate(split.outputs):
        inputs = [both.inputs[0], *(_half(graph, value, part) for value in both.inputs[1:] if value is not None)]
        sizes = {name: both.attributes[name].as_int() for name in ("K", "N", "bits", "block_size", "accuracy_level")}
        made = _add(graph, activation, "MatMulNBits", inputs, {**sizes, "N": sizes["N"] // 2}, MS_DOMAIN)
        ir.convenience.replace_all_uses_with(old, made)
        halves.append(made)
    sigmoid = _add(graph, activation, "Sigmoid", halves[:1])
    _put(graph, activation, _node("Mul", [halves[0], sigmoid], {}))
    graph.remove([split, both], safe=True)


def _half(graph: ir.Graph, value: ir.Value, part: int) -> ir.Value:
    assert value.const_value is not None
    array = value.const_value.numpy()
    rows = array.shape[0] // 2
    return _constant(graph, f"{value.name}.{part}", array[part * rows : (part + 1) * rows])


def _maker(node: ir.Node, op_type: str) -> ir.Node:
    """The node that makes the first input of ``node``."""
    value = node.inputs[0]
    made_by = value.producer() if value is not None else None
    assert made_by is not None and made_by.op_type == op_type, f"{node.name} is not lowered as this file expects"
    return made_by


def _constant(graph: ir.Graph, name: str, array: np.ndarray[Any, Any]) -> ir.Value:
    tensor = ir.Tensor(np.ascontiguousarray(array).reshape(array.shape), name=name)
    value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
    graph.register_initializer(value)
    return value


def _node(
    op_type: str, inputs: Sequence[ir.Value | None], attributes: dict[str, int | float], domain: str = ""
) -> ir.Node:
    return ir.node(op_type, inputs, attributes=attributes, domain=domain)


def _add(
    graph: ir.Graph,
    before: ir.Node,
    op_type: str,
    inputs: Sequence[ir.Value | None],
    attributes: dict[str, int | float] | None = None,
    domain: str = "",
) -> ir.Value:
    """Insert a node and return its output."""
    made = _node(op_type, inputs, attributes or {}, domain)
    graph.insert_before(before, made)
    return made.outputs[0]


def _put(graph: ir.Graph, old: ir.Node, new: ir.Node) -> None:
    """Put ``new`` in the place of ``old``, which has one output."""
    graph.insert_before(old, new)
    ir.convenience.replace_all_uses_with(old.outputs[0], new.outputs[0])
    graph.remove(old, safe=True)


def _config(manifest: Manifest, attention: ir.Node, *, context: int) -> dict[str, Any]:
    """``genai_config.json``, as the builder writes it for a decoder on the CPU; one thread, greedy."""
    program, (stage,) = manifest.program, manifest.stage
    assert stage.kv is not None
    heads = attention.attributes["num_heads"].as_int()
    return {
        "model": {
            # An answer is measured at its full length, so nothing that may be picked ends it.
            "bos_token_id": program.vocab - 1,
            "eos_token_id": program.vocab - 1,
            "pad_token_id": program.vocab - 1,
            "context_length": context,
            "type": "llama",
            "vocab_size": program.vocab,
            "decoder": {
                "filename": MODEL,
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": [], "intra_op_num_threads": 1},
                "head_size": stage.kv.head_size,
                "hidden_size": heads * stage.kv.head_size,
                "num_attention_heads": heads,
                "num_key_value_heads": stage.kv.heads,
                "num_hidden_layers": stage.kv.layers,
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
        },
        "search": {
            "do_sample": False,
            "num_beams": 1,
            "num_return_sequences": 1,
            "max_length": context,
            "min_length": 0,
            "past_present_share_buffer": True,
            "repetition_penalty": 1.0,
            "temperature": 1.0,
            "top_k": 50,
            "top_p": 1.0,
        },
    }
