"""A lowered stage computes what the canonical program says, and is lowered the same way wherever the cut is."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.quantise import quantise
from ruvcompile.program import BITS, Program
from ruvcompile.whole import open_session, run
from ruvrun.executors import Span
from tests.decoders import family_program, open_decoders, tiny_program, write_stages
from tests.logits import answer

LAYERS = 3
UNITS = 2 * LAYERS + 2
STATE = ("seqlens_k", "total_sequence_length", "logit_rows")


FORMS: dict[str, dict[str, object]] = {
    "gemma3": {"num_hidden_layers": LAYERS, "sliding_window_pattern": 2},
    "qwen2": {},
    "smollm3": {"num_hidden_layers": LAYERS, "no_rope_layer_interval": 2},
}


@pytest.fixture(scope="module")
def plain(folder) -> Program:
    return tiny_program(folder, layers=LAYERS)


@pytest.fixture(scope="module", params=["plain", *FORMS])
def program(request, plain) -> Program:
    return plain if request.param == "plain" else family_program(request.param, "int4", **FORMS[request.param])


@pytest.fixture(scope="module")
def store(program, tmp_path_factory) -> WeightStore:
    """Groups are known by their names: a store serves one program."""
    return WeightStore(tmp_path_factory.mktemp("store"))


def canonical_logits(program: Program, ids: np.ndarray, first: int) -> np.ndarray:
    """Logits of all positions, the canonical graph as it stands: ``first`` tokens at once, then one by one."""
    decoder = program.decoder
    assert decoder is not None
    session = open_session(program.model, threads=1)
    shape = (1, decoder.kv_heads, 0, decoder.head_size)
    names = [f"past_{half}.{i}" for half in ("key", "value") for i in range(decoder.layers)]
    state = dict.fromkeys(names, np.zeros(shape, np.float32))
    found = []
    for start, stop in [(0, first), *((at, at + 1) for at in range(first, len(ids)))]:
        tokens = {"input_ids": ids[None, start:stop], "position_ids": np.arange(start, stop)[None]}
        outputs = run(session, tokens | state)
        found.append(outputs["logits"][0])
        state = {name: outputs[name.replace("past", "present")] for name in state}
    return np.concatenate(found)


def lowered_logits(stages, ids: np.ndarray, chunks: list[int]) -> np.ndarray:
    """Logits of all positions from the lowered stages, in chunks of these sizes and then one by one."""
    executors = open_decoders(stages, context=len(ids), slots=2)
    sizes = [*chunks, *[1] * (len(ids) - sum(chunks))]
    return answer(executors, sizes, ids=np.stack([ids, ids]))


def graph_of(stage) -> onnx.GraphProto:
    directory, spec = stage
    return onnx.load(directory / spec.model, load_external_data=False).graph


@pytest.mark.parametrize(("quant", "accuracy"), [("none", 4), ("int4", 1), ("int8", 1)])
@pytest.mark.parametrize("chunks", [[9], [2, 5, 3], []], ids=["prompt", "chunks", "decode"])
@pytest.mark.parametrize("cuts", [(), (3, 6)], ids=["whole", "three stages"])
def test_computes_what_the_canonical_program_says(tmp_path, quant, accuracy, chunks, cuts) -> None:
    program = tiny_program(tmp_path, quant, accuracy=accuracy)
    ids = np.random.default_rng(1).integers(0, 300, 14)
    stages = write_stages(program, cuts, tmp_path, WeightStore(tmp_path / "store"))
    wanted = canonical_logits(program, ids, first=sum(chunks) or 1)
    found = lowered_logits(stages, ids, chunks)
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=2e-4 * np.abs(wanted).max())


def test_eight_bit_activations_stay_near(tmp_path) -> None:
    """What is served: accuracy level 4 is another kernel, not another model."""
    ids = np.random.default_rng(1).integers(0, 300, 14)
    program = tiny_program(tmp_path, "int8")
    stages = write_stages(program, (), tmp_path, WeightStore(tmp_path / "store"))
    wanted, found = canonical_logits(program, ids, first=9), lowered_logits(stages, ids, [9])
    assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > 0.98


def test_operators_are_those_the_kernels_are_fast_at(plain, tmp_path) -> None:
    (stage,) = write_stages(plain, (), tmp_path, WeightStore(tmp_path / "store"))
    kinds = [node.op_type for node in graph_of(stage).node]
    assert kinds.count("GroupQueryAttention") == LAYERS
    assert kinds.count("SkipSimplifiedLayerNormalization") == 2 * LAYERS - 1
    assert kinds.count("RMSNormalization") == 2, "the first, which nothing is added before, and the final one"
    assert kinds.count("QuickGelu") == LAYERS
    assert kinds.count("MatMulNBits") == 4 * LAYERS + 1, "stacked q/k/v, o, stacked gate/up, down; the head"
    assert not {"Attention", "RotaryEmbedding", "Sigmoid", "Mul"} & set(kinds) - {"Mul"}


def test_rows_are_gathered_before_the_head(program, store, tmp_path) -> None:
    (stage,) = write_stages(program, (), tmp_path, store)
    (executor,) = open_decoders([stage], context=32, slots=1)
    ids = np.arange(10, 20)
    assert executor.step([Span(0, 0, 10, 1)], {"input_ids": ids})["logits"].shape == (1, 300)
    assert executor.step([Span(0, 0, 10, 0)], {"input_ids": ids})["logits"].shape == (0, 300)
    order = [node.op_type for node in graph_of(stage).node]
    assert order.index("Gather") > len(order) - 5


def test_unlike_projections_are_not_stacked(tmp_path) -> None:
    """Projections that hold other bits than their neighbours stay nodes of their own, and compute what they should."""
    source = tiny_program(tmp_path, "none", layers=1)
    weights = source.model.graph.initializers
    weights["layers.0.attn.v_proj.weight"].metadata_props[BITS] = "8"
    weights["layers.0.mlp.up_proj.weight"].metadata_props[BITS] = "8"
    program = quantise(source, "auto", accuracy=1)
    (stage,) = write_stages(program, (), tmp_path, WeightStore(tmp_path / "store"))
    names = {node.name for node in graph_of(stage).node if node.op_type == "MatMulNBits"}
    assert {f"/layers.0/attn/{part}_proj" for part in "qkvo"} <= names
    assert {f"/layers.0/mlp/{part}_proj" for part in ("gate", "up", "down")} <= names
    ids = np.random.default_rng(1).integers(0, 300, 8)
    wanted, found = canonical_logits(program, ids, first=5), lowered_logits([stage], ids, [5])
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=2e-4 * np.abs(wanted).max())


@pytest.mark.parametrize("cut", range(1, UNITS))
def test_every_group_is_the_same_file_whatever_the_cut(program, store, tmp_path, cut) -> None:
    whole = {file.path: file.sha256 for file in write_stages(program, (), tmp_path / "whole", store)[0][1].files}
    weights = {path for path in whole if path.startswith("weights/")}
    held = [
        {file.path for file in spec.files if file.path.startswith("weights/")}
        for _, spec in write_stages(program, (cut,), tmp_path / "cut", WeightStore(tmp_path / "another"))
    ]
    assert set.union(*held) == weights


@pytest.mark.parametrize("cut", range(1, UNITS))
def test_a_piece_is_lowered_as_inside_the_whole(program, store, tmp_path, cut) -> None:
    """Same nodes, weights and attributes; but a sum and its norm are two nodes where the cut is between them."""

    def told(graph: onnx.GraphProto) -> dict[str, tuple]:
        return {
            node.name: (node.op_type, node.domain, sorted(a.SerializeToString() for a in node.attribute), weights(node))
            for node in graph.node
        }

    def weights(node: onnx.NodeProto) -> list[str]:
        return [name for name in node.input if name in known]

    (whole,) = write_stages(program, (), tmp_path / "whole", store)
    known = {each.name for each in graph_of(whole).initializer}
    wanted, found = told(graph_of(whole)), {}
    stages = write_stages(program, (cut,), tmp_path / "cut", store)
    for stage in stages:
        part = told(graph_of(stage))
        assert not found.keys() & part.keys()
        found |= part
    assert found.items() >= wanted.items()
    crossing = stages[0][1].outputs[0].name
    kinds = sorted(found[name][0] for name in found.keys() - wanted.keys())
    assert kinds == ([] if cut in (1, UNITS - 1) else ["Add", "Sub"]), "the sum, and the zero that the norm adds"
    assert all(name in (f"/{crossing}",) or name.endswith("/zero") for name in found.keys() - wanted.keys())


@pytest.mark.parametrize("cut", range(1, UNITS))
def test_one_tensor_of_hidden_width_crosses(program, store, tmp_path, cut) -> None:
    first, second = (spec for _, spec in write_stages(program, (cut,), tmp_path, store))
    assert first.first
    assert not first.last
    assert second.last
    assert not second.first
    assert [tensor.name for tensor in first.inputs] == ["input_ids"]
    assert first.forward == [tensor.name for tensor in second.inputs]
    assert [(tensor.dtype, tensor.shape) for tensor in second.inputs] == [("float32", ["tokens", 64])]
    assert first.kv.layers + second.kv.layers == LAYERS
    names = {entry.name for entry in graph_of((tmp_path / "stage-1", second)).input}
    assert "position_ids" not in names
    assert names - {tensor.name for tensor in second.inputs} <= {
        *STATE,
        *(f"past_{half}.{layer}" for half in ("key", "value") for layer in range(LAYERS)),
    }
