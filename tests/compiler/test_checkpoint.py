"""The canonical decoder: its numbers are those of the model in the file, its form is what the compiler relies on."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from tokenizers import Tokenizer

from ruvcompile.load.families import llama
from ruvcompile.load.gguf import load_gguf
from ruvcompile.load.gguf_data import read_tensor
from ruvcompile.load.gguf_dialect import checkpoint_of, unpermute
from ruvcompile.load.gguf_file import open_gguf
from ruvcompile.program import Program
from tests.models import EPSILON, ROPE_BASE, smollm2_path, write_tiny_gguf

Floats = npt.NDArray[np.float32]
Past = dict[str, Floats]

TOKENS = [1, 104, 117, 259, 33, 280, 270, 99, 41, 299, 3, 77]


class Running:
    """A canonical decoder in ONNX Runtime, as it is, with its state kept outside."""

    def __init__(self, program: Program, directory: Path) -> None:
        assert program.decoder is not None
        self.decoder = program.decoder
        ir.save(program.model, directory / "m.onnx", external_data="m.data")
        self.session = ort.InferenceSession(directory / "m.onnx")
        self.names = [output.name for output in self.session.get_outputs()]

    def empty(self, batch: int = 1) -> Past:
        shape = (batch, self.decoder.kv_heads, 0, self.decoder.head_size)
        layers = range(self.decoder.layers)
        return {f"past_{half}.{layer}": np.zeros(shape, np.float32) for layer in layers for half in ("key", "value")}

    def step(self, tokens: Sequence[Sequence[int]], past: Past) -> tuple[Floats, Past]:
        """Logits ``[batch, tokens, vocab]`` and the new state, for tokens that follow ``past``."""
        ids = np.array(tokens, np.int64)
        start = past["past_key.0"].shape[2]
        positions = np.broadcast_to(np.arange(start, start + ids.shape[1]), ids.shape)
        results = self.session.run(None, {"input_ids": ids, "position_ids": positions, **past})
        named = dict(zip(self.names, results, strict=True))
        logits = named.pop("logits")
        return logits, {name.replace("present", "past"): value for name, value in named.items()}


def reference_logits(path: Path, tokens: Sequence[int]) -> npt.NDArray[np.float64]:
    """The model in the file computed in float64 the way llama.cpp does: rows as stored, neighbouring pairs rotated."""
    file = open_gguf(path, "reference")
    weights = {name: read_tensor(file, stored).astype(np.float64) for name, stored in file.tensors.items()}
    heads, kv_heads = file.count("llama.attention.head_count"), file.count("llama.attention.head_count_kv")
    size, count = file.count("llama.embedding_length") // heads, len(tokens)

    def norm(x: npt.NDArray[np.float64], name: str) -> npt.NDArray[np.float64]:
        scaled: npt.NDArray[np.float64] = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPSILON) * weights[name]
        return scaled

    def rotate(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        angles = np.arange(count)[:, None] * ROPE_BASE ** (-np.arange(0, size, 2) / size)
        turned = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angles)[:, None, :]
        return np.stack([turned.real, turned.imag], -1).reshape(x.shape)

    x = weights["token_embd.weight"][list(tokens)]
    for layer in range(file.count("llama.block_count")):
        at = f"blk.{layer}."
        h = norm(x, at + "attn_norm.weight")
        query = rotate((h @ weights[at + "attn_q.weight"].T).reshape(count, heads, size))
        key = rotate((h @ weights[at + "attn_k.weight"].T).reshape(count, kv_heads, size))
        value = (h @ weights[at + "attn_v.weight"].T).reshape(count, kv_heads, size)
        key, value = (np.repeat(each, heads // kv_heads, axis=1) for each in (key, value))
        scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(size)
        scores[:, np.triu(np.ones((count, count), bool), 1)] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", shares, value).reshape(count, -1) @ weights[at + "attn_output.weight"].T
        h = norm(x, at + "ffn_norm.weight")
        gate = h @ weights[at + "ffn_gate.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ weights[at + "ffn_up.weight"].T)) @ weights[at + "ffn_down.weight"].T
    head = weights.get("output.weight", weights["token_embd.weight"])
    logits: npt.NDArray[np.float64] = norm(x, "output_norm.weight") @ head.T
    return logits


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return load_gguf(write_tiny_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf"), "tiny.gguf")


@pytest.fixture(scope="module")
def running(tiny: Program, tmp_path_factory: pytest.TempPathFactory) -> Running:
    return Running(tiny, tmp_path_factory.mktemp("running"))


@pytest.mark.parametrize(
    ("quant", "tied", "heads", "kv_heads"), [("Q4_1", True, 4, 2), ("F32", False, 2, 1), ("Q8_0", False, 4, 4)]
)
def test_logits_are_those_of_the_model_in_the_file(
    quant: str, tied: bool, heads: int, kv_heads: int, tmp_path: Path
) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", quant=quant, tied=tied, heads=heads, kv_heads=kv_heads, seed=3)
    running = Running(load_gguf(path, "m.gguf"), tmp_path)
    logits, _ = running.step([TOKENS], running.empty())
    np.testing.assert_allclose(logits[0], reference_logits(path, TOKENS), atol=2e-4)


@pytest.mark.parametrize("pieces", [[1] * 12, [5, 7], [4, 4, 3, 1], [11, 1]])
def test_pieces_with_state_give_what_one_pass_gives(pieces: list[int], running: Running) -> None:
    whole, end = running.step([TOKENS], running.empty())
    past, rows, at = running.empty(), [], 0
    for piece in pieces:
        logits, past = running.step([TOKENS[at : at + piece]], past)
        rows.append(logits[0])
        at += piece
    np.testing.assert_allclose(np.concatenate(rows), whole[0], atol=1e-4)
    for name, value in end.items():
        np.testing.assert_allclose(past[name], value, atol=1e-4)


def test_a_batch_gives_what_its_rows_give_alone(running: Running) -> None:
    rows = [TOKENS, TOKENS[::-1], [7] * len(TOKENS)]
    together, _ = running.step(rows, running.empty(3))
    for row, logits in zip(rows, together, strict=True):
        np.testing.assert_allclose(logits, running.step([row], running.empty())[0][0], atol=1e-4)


def test_greedy_output_of_a_tiny_model_varies(running: Running) -> None:
    logits, past = running.step([TOKENS], running.empty())
    out: list[int] = []
    for _ in range(40):
        out.append(int(logits[0, -1].argmax()))
        logits, past = running.step([[out[-1]]], past)
    assert len(set(out)) > 20
    assert not set(out) & {0, 1, 2}


def test_the_graph_is_valid_onnx_with_standard_operators_only(tiny: Program) -> None:
    proto = ir.to_proto(tiny.model)
    onnx.checker.check_model(proto, full_check=True)
    assert {entry.domain: entry.version for entry in proto.opset_import} == {"": 23}
    assert {node.domain for node in proto.graph.node} == {""}


def test_inputs_and_outputs_are_the_canonical_ones(tiny: Program) -> None:
    def shape(value: ir.Value) -> str:
        assert value.shape is not None
        return ",".join(str(dim) for dim in value.shape)

    state = [f"{half}.{layer}" for layer in range(3) for half in ("key", "value")]
    graph = tiny.model.graph
    assert [value.name for value in graph.inputs] == ["input_ids", "position_ids", *(f"past_{name}" for name in state)]
    assert [value.name for value in graph.outputs] == ["logits", *(f"present_{name}" for name in state)]
    assert {shape(value) for value in graph.inputs[:2]} == {"batch,sequence"}
    assert {shape(value) for value in graph.inputs[2:]} == {"batch,2,past,16"}
    assert shape(graph.outputs[0]) == "batch,sequence,300"
    assert {shape(value) for value in graph.outputs[1:]} == {"batch,2,total,16"}


def test_every_node_is_named_by_its_place_and_its_output_by_its_name(tiny: Program) -> None:
    layer = ["attn_norm", "attn/q_proj", "attn/k_proj", "attn/v_proj", "attn/q_rope", "attn/k_rope", "attn/attention"]
    layer += ["attn/o_proj", "attn/add", "mlp_norm", "mlp/gate_proj", "mlp/sigmoid", "mlp/silu", "mlp/up_proj"]
    layer += ["mlp/gated", "mlp/down_proj", "mlp/add"]
    names = ["/embed", *(f"/layers.{number}/{part}" for number in range(3) for part in layer), "/final_norm", "/head"]
    nodes = {str(node.name): node for node in tiny.model.graph}
    assert sorted(nodes) == sorted(names)
    for name, node in nodes.items():
        assert node.outputs[0].name == ("logits" if name == "/head" else name[1:])
        for value in [*node.inputs, *node.outputs]:
            assert value is None or (value.name and value.shape is not None and value.dtype is not None)


def test_weights_say_what_the_file_holds(tiny: Program) -> None:
    bits = {}
    for name, value in tiny.model.graph.initializers.items():
        assert value.const_value is not None
        bits[name] = int(value.metadata_props["ruv.bits"])
        assert value.const_value.metadata_props["ruv.bits"] == value.metadata_props["ruv.bits"]
        assert value.const_value.numpy().shape == value.shape
    assert bits["layers.1.attn.o_proj.weight"] == 4
    assert bits["embed.weight"] == bits["head.weight"] == 8
    assert bits["layers.1.attn_norm.weight"] == bits["rotary.cos"] == 32


def test_a_tied_head_is_the_transposed_embedding_and_says_so(tiny: Program, tmp_path: Path) -> None:
    weights = tiny.model.graph.initializers
    head, embed = weights["head.weight"], weights["embed.weight"]
    assert head.metadata_props["ruv.tied"] == "embed.weight"
    assert head.const_value is not None
    assert embed.const_value is not None
    np.testing.assert_array_equal(head.const_value.numpy(), embed.const_value.numpy().T)
    untied = load_gguf(write_tiny_gguf(tmp_path / "m.gguf", tied=False), "m.gguf").model.graph.initializers
    assert "ruv.tied" not in untied["head.weight"].metadata_props


def test_unpermuting_turns_rotation_of_pairs_into_rotation_of_halves() -> None:
    order = unpermute(np.arange(16, dtype=np.float32).reshape(16, 1), heads=2)[:, 0]
    assert order.tolist() == [0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15]


def test_frequencies_are_scaled_as_the_file_says(tmp_path: Path) -> None:
    file = open_gguf(write_tiny_gguf(tmp_path / "m.gguf"), "m.gguf")
    plain = llama.describe(checkpoint_of(file)).rotaries["rotary"].frequencies
    scaling = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    scaled = llama.describe(checkpoint_of(type(file)(file.path, "m.gguf", {**file.metadata, **scaling}, file.tensors)))
    assert plain[0] == 1.0
    assert plain[4] == pytest.approx(10000.0**-0.5)
    assert scaled.rotaries["rotary"].frequencies == pytest.approx([value / 4 for value in plain])


def test_the_rotary_tables_reach_to_the_context(tiny: Program) -> None:
    tables = tiny.model.graph.initializers
    cosines, sines = tables["rotary.cos"].const_value, tables["rotary.sin"].const_value
    assert cosines is not None
    assert sines is not None
    assert cosines.shape == sines.shape == (256, 8)
    np.testing.assert_allclose(cosines.numpy()[255, 0], np.cos(255), rtol=1e-6)
    np.testing.assert_allclose(sines.numpy()[:, 4], np.sin(np.arange(256) * 10000.0**-0.5), atol=1e-6)


@pytest.mark.model
def test_weights_are_decoded_when_read_and_released_after() -> None:
    program = load_gguf(smollm2_path(), "smollm2")
    weights = program.model.graph.initializers
    gc.collect()
    tracemalloc.start()
    try:
        for name in ("layers.0.mlp.up_proj.weight", "embed.weight", "layers.7.attn.q_proj.weight"):
            tensor = weights[name].const_value
            assert tensor is not None
            assert tensor.numpy().dtype == np.float32
        assert tracemalloc.get_traced_memory()[1] > 100 << 20  # the embedding in float32, so numpy is traced
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.model
def test_the_real_model_knows_the_capital_of_france(tmp_path: Path) -> None:
    program = load_gguf(smollm2_path(), "smollm2")
    tokenizer = Tokenizer.from_str(program.head_files["tokenizer.json"].decode())
    running = Running(program, tmp_path)
    logits, past = running.step([tokenizer.encode("The capital of France is").ids], running.empty())
    first = int(logits[0, -1].argmax())
    assert tokenizer.decode([first]) == " Paris"
    logits, _ = running.step([[first]], past)
    assert tokenizer.decode([int(logits[0, -1].argmax())]) in (".", ",")
