"""Decoders that already are ONNX: the exporters' own files, cut, against the same files run whole by ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnxruntime.transformers import float16

from ruvcompile.errors import InputError
from ruvcompile.load import load
from ruvcompile.load.decoder_onnx.canonical import Unclear, canonical
from ruvcompile.options import resolve
from ruvcompile.passes.cuts import boundaries
from ruvcompile.passes.pieces import program_units, wire
from ruvcompile.passes.quantise import quantise
from ruvcompile.plan import Facts
from ruvrun.bundle import StageSpec
from ruvrun.costs import CostTable
from ruvrun.executors import Array, Span, load_decoder
from ruvrun.pipeline import Request, Sampling, join_local
from tests.compiler.exports import EXPORTS, PROMPTS, copied, program_of, stages

CANONICAL = ("optimum-llama", "optimum-gpt2", "genai-llama-fp32", "genai-qwen2-int4", "genai-qwen3-int4")
STATEFUL = ("optimum-gpt_neox",)
ANSWER = 34
CHUNK = 16


class Export:
    """An exported decoder, whole, run call by call by ONNX Runtime as its exporter meant it to be."""

    def __init__(self, path: Path) -> None:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        self.session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs = {value.name: value for value in self.session.get_inputs()}
        self.outputs = [value.name for value in self.session.get_outputs()]
        self.state: dict[str, Array] = {}
        self.seen = 0
        for name, value in self.inputs.items():
            if name.startswith("past"):
                size = value.shape[3] if isinstance(value.shape[3], int) else 16
                kind = np.float16 if "float16" in value.type else np.float32
                self.state[name] = np.zeros((1, value.shape[1], 0, size), kind)

    def call(self, tokens: list[int]) -> Array:
        """Logits ``[tokens, vocab]``."""
        end = self.seen + len(tokens)
        known = {
            "input_ids": np.array([tokens], np.int64),
            "attention_mask": np.ones((1, end), np.int64),
            "position_ids": np.arange(self.seen, end)[None],
        }
        feeds = {name: array for name, array in known.items() if name in self.inputs}
        found = dict(zip(self.outputs, self.session.run(self.outputs, feeds | self.state), strict=True))
        self.state = {name: found[name.replace("past_key_values", "present")] for name in self.state}
        self.seen = end
        logits: Array = found["logits"][0]
        return logits

    def greedy(self, prompt: list[int], count: int) -> list[int]:
        answer = [int(self.call(prompt)[-1].argmax())]
        while len(answer) < count:
            answer.append(int(self.call(answer[-1:])[-1].argmax()))
        return answer


def answers(made: list[tuple[Path, StageSpec]]) -> dict[int, list[int]]:
    pipeline = join_local(made, context=100, streams=len(PROMPTS))
    pipeline.chunk = CHUNK
    greedy = Sampling(temperature=0.0, top_p=1.0, seed=0)
    return pipeline.generate(
        Request(number, tuple(prompt), ANSWER, greedy, frozenset()) for number, prompt in enumerate(PROMPTS)
    )


@pytest.mark.parametrize("name", [*CANONICAL, *STATEFUL])
def test_same_tokens_as_the_whole_export_at_every_cut(name: str, tmp_path: Path) -> None:
    path = EXPORTS / name / "model.onnx"
    wanted = {number: Export(path).greedy(prompt, ANSWER) for number, prompt in enumerate(PROMPTS)}
    assert len({token for answer in wanted.values() for token in answer}) > 10, "answers that could be told apart"
    program = program_of(path)
    units = program_units(program)
    edges = boundaries(units)
    assert all(edge.legal and len(wire(program, edge)) == 1 for edge in edges)
    assert len(edges) >= (3 if name in STATEFUL else 4)
    assert answers(stages(program, (), tmp_path)) == wanted
    for cut in range(1, len(units)):
        assert answers(stages(program, (cut,), tmp_path)) == wanted, f"cut {cut}"


@pytest.mark.parametrize("name", CANONICAL)
def test_a_known_pattern_becomes_the_canonical_form(name: str, tmp_path: Path) -> None:
    program = program_of(EXPORTS / name / "model.onnx")
    assert program.decoder is not None and not program.decoder.exported
    kinds = {node.op_type for node in program.model.graph}
    assert "Attention" in kinds
    assert not kinds & {"GroupQueryAttention", "Softmax", "SkipSimplifiedLayerNormalization", "Where", "Expand"}
    inputs = [str(value.name) for value in program.model.graph.inputs]
    assert inputs[0] == "input_ids" and "attention_mask" not in inputs
    assert {"past_key.0", "past_value.1"} <= set(inputs)
    assert ("MatMulNBits" in kinds) == name.endswith("int4")
    # The other way of looking at it: all of a chunk's logits, through the lowered whole.
    ((directory, spec),) = stages(program, (), tmp_path)
    executor = load_decoder(directory, spec, context=64, slots=1, threads=1)
    tokens = PROMPTS[3]
    found = executor.step([Span(0, 0, len(tokens), len(tokens))], {"input_ids": np.array(tokens, np.int64)})["logits"]
    wanted = Export(EXPORTS / name / "model.onnx").call(tokens)
    bound = 0.05 if name.endswith("int4") else 1e-4
    assert np.abs(found - wanted).max() <= bound * np.abs(wanted).max()


def test_what_lies_beside_the_graph_is_read() -> None:
    for name, family, eos in (("optimum-llama", "llama", (2,)), ("genai-qwen3-int4", "qwen3", (2,))):
        program = load(str(EXPORTS / name / "model.onnx"))
        assert program.decoder is not None
        decoder = program.decoder
        assert (decoder.architecture, decoder.eos, decoder.context, decoder.vocab) == (family, eos, 128, 98)
        assert (decoder.layers, decoder.heads, decoder.kv_heads, decoder.head_size) == (2, 4, 2, 16)
        assert set(program.head_files) == {"tokenizer.json", "chat.json"}


def test_a_mask_that_is_not_causal_is_noticed_and_the_graph_is_run_as_it_is(tmp_path: Path) -> None:
    path, model = copied("optimum-llama", tmp_path)
    nodes = {node.name: node for node in model.graph.node}
    nodes["/model/LessOrEqual"].op_type = "GreaterOrEqual"  # now a token sees itself and what comes after
    onnx.save(model, path)
    program = program_of(path)
    assert program.decoder is not None and program.decoder.exported
    with pytest.raises(Unclear, match="neither causal nor a window"):
        canonical(*_before(path), vocab=98, context=128)


def test_rewritten_graphs_are_compared_and_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ruvcompile.load.decoder_onnx.attention.window_of", lambda *_: 3)
    path, _ = copied("optimum-llama", tmp_path)
    with pytest.raises(Unclear, match="is another in the rewritten graph"):
        canonical(*_before(path), vocab=98, context=128)


def _before(path: Path) -> tuple[Any, Any]:
    """The graph as the loader gives it to ``canonical``, and what was seen of it."""
    from ruvcompile.load import decoder_onnx

    caught = []

    def catch(model: Any, seen: Any, **_: int) -> Any:
        caught.append((model.clone(), seen))
        raise Unclear("caught")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder_onnx, "canonical", catch)
        load(str(path))
    return caught[0]


def test_a_sliding_window_is_found_in_the_mask(tmp_path: Path) -> None:
    path, model = copied("optimum-llama", tmp_path)
    graph = model.graph
    # A window of 9: positions further back than that are forbidden too.
    node = next(node for node in graph.node if node.name == "/model/And")
    graph.initializer.append(onnx.numpy_helper.from_array(np.array(9, np.int64), "window"))
    at = list(graph.node).index(node)
    query, key = (next(n for n in graph.node if n.name == "/model/LessOrEqual").input)[::-1]
    for offset, (kind, inputs, output) in enumerate(
        (
            ("Sub", [query, "window"], "oldest"),
            ("Greater", [key, "oldest"], "near"),
            ("And", [node.output[0], "near"], "seen"),
        )
    ):
        graph.node.insert(at + 1 + offset, onnx.helper.make_node(kind, inputs, [output], name=f"window/{kind}"))
    for other in list(graph.node)[at + 4 :]:
        for index, given in enumerate(other.input):
            if given == node.output[0]:
                other.input[index] = "seen"
    onnx.save(model, path)
    program = program_of(path)
    assert program.decoder is not None and not program.decoder.exported
    windows = [
        node.attributes["left_window_size"].as_int() for node in program.model.graph if node.op_type == "Attention"
    ]
    assert windows == [8, 8]
    wanted = {number: Export(path).greedy(prompt, ANSWER) for number, prompt in enumerate(PROMPTS)}
    assert answers(stages(program, (3,), tmp_path)) == wanted


def test_a_window_that_cuts_its_own_state_short_is_kept_as_a_window(tmp_path: Path) -> None:
    path, model = copied("genai-llama-fp32", tmp_path)
    attentions = [node for node in model.graph.node if node.op_type == "GroupQueryAttention"]
    for node in attentions:
        next(each for each in node.attribute if each.name == "local_window_size").i = 9
    onnx.save(model, path)
    wanted = {number: Export(path).greedy(prompt, ANSWER) for number, prompt in enumerate(PROMPTS)}
    # With this, ONNX Runtime wants a buffer of just the window, which it writes round and round.
    for node in attentions:
        node.attribute.append(onnx.helper.make_attribute("sliding_window_cache", 1))
    onnx.save(model, path)
    program = program_of(path)
    assert program.decoder is not None and not program.decoder.exported
    assert answers(stages(program, (2,), tmp_path)) == wanted


def test_rotation_before_the_fused_attention_goes_into_it(tmp_path: Path) -> None:
    path, model = copied("genai-qwen3-int4", tmp_path)
    graph = model.graph
    graph.input.append(
        onnx.helper.make_tensor_value_info("position_ids", onnx.TensorProto.INT64, ["batch", "sequence"])
    )
    for node in [node for node in graph.node if node.op_type == "GroupQueryAttention"]:
        next(each for each in node.attribute if each.name == "do_rotary").i = 0
        tables = list(node.input[7:9])
        del node.input[7:]
        for index in (0, 1):
            operands, result = [node.input[index], "position_ids", *tables], f"{node.name}/rotated/{index}"
            rotary = onnx.helper.make_node("RotaryEmbedding", operands, [result], result, domain="com.microsoft")
            graph.node.insert(list(graph.node).index(node), rotary)
            node.input[index] = result
    onnx.save(model, path)
    wanted = {number: Export(path).greedy(prompt, ANSWER) for number, prompt in enumerate(PROMPTS)}
    program = program_of(path)
    assert program.decoder is not None and not program.decoder.exported
    rotaries = [node for node in program.model.graph if node.op_type == "RotaryEmbedding"]
    assert len(rotaries) == 4 and not any(node.domain for node in rotaries)
    assert answers(stages(program, (2,), tmp_path)) == wanted


def test_products_whose_digits_depend_on_company_are_computed_alone(tmp_path: Path) -> None:
    path, model = copied("genai-qwen2-int4", tmp_path)
    for node in model.graph.node:
        for each in node.attribute:
            if each.name == "accuracy_level":
                each.i = 0
    onnx.save(model, path)
    program = program_of(path)
    assert program.decoder is not None and program.decoder.exported
    assert "for several rows at once" in program.notes[-1]
    wanted = {number: Export(path).greedy(prompt, ANSWER) for number, prompt in enumerate(PROMPTS)}
    assert answers(stages(program, (2,), tmp_path)) == wanted


def test_whole_numbers_of_another_width_and_a_number_of_logits_are_filled_in(tmp_path: Path) -> None:
    path, model = copied("optimum-llama", tmp_path)
    wanted = {number: Export(path).greedy(prompt, ANSWER) for number, prompt in enumerate(PROMPTS)}
    graph = model.graph
    for value in graph.input[:3]:
        value.type.tensor_type.elem_type = onnx.TensorProto.INT32
    graph.input.append(onnx.helper.make_tensor_value_info("num_logits_to_keep", onnx.TensorProto.INT64, []))
    # What transformers' own code does with it: hidden[:, -number:], of which 0 leaves everything.
    head = next(node for node in graph.node if node.output[0] == "logits")
    hidden, head.input[0] = head.input[0], "kept"
    at = list(graph.node).index(head)
    for name, array in (("one", [1]), ("minus", [-1]), ("end", [1 << 40])):
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(array, np.int64), name))
    for offset, node in enumerate(
        (
            onnx.helper.make_node("Reshape", ["num_logits_to_keep", "minus"], ["number"]),
            onnx.helper.make_node("Neg", ["number"], ["start"]),
            onnx.helper.make_node("Slice", [hidden, "start", "end", "one"], ["kept"]),
        )
    ):
        graph.node.insert(at + offset, node)
    onnx.save(model, path)
    program = program_of(path)
    inputs = {str(value.name): value.dtype for value in program.model.graph.inputs}
    assert inputs["input_ids"].name == "INT64" and "num_logits_to_keep" not in inputs
    assert answers(stages(program, (2,), tmp_path)) == wanted


def test_half_floats_are_rounded_where_the_whole_export_rounds_them(tmp_path: Path) -> None:
    path, model = copied("optimum-llama", tmp_path)
    onnx.save(float16.convert_float_to_float16(model, keep_io_types=False), path)
    wanted = {number: Export(path).greedy(prompt, ANSWER) for number, prompt in enumerate(PROMPTS)}
    program = program_of(path)
    assert program.decoder is not None and program.decoder.exported
    for cut in (2, 3):
        made = stages(program, (cut,), tmp_path)
        assert [spec.state[0].dtype for _, spec in made] == ["float16", "float16"]
        assert answers(made) == wanted
    options = resolve({"model": str(path), "output": str(tmp_path / "dist"), "target": "host"}, directory=tmp_path)
    facts = Facts(program, program_units(program), (), {}, (), CostTable(provenance=[], unit=[]), options, cores=2)
    held = [spec.kv.bytes_per_token for _, spec in made if spec.kv is not None]
    assert sum(facts.state_bytes) == sum(held), "a plan counts what a stage will take"


def test_quantising_an_export(tmp_path: Path) -> None:
    floats = program_of(EXPORTS / "optimum-llama" / "model.onnx", "auto")
    assert [node.op_type for node in floats.model.graph].count("MatMulNBits") == 15
    learned = program_of(EXPORTS / "optimum-gpt2" / "model.onnx", "int4").model.graph
    assert [node.op_type for node in learned].count("GatherBlockQuantized") == 1
    assert learned.initializers["transformer.wpe.weight"].dtype == ir.DataType.FLOAT, "positions are left as they are"
    tied = program_of(turned("genai-llama-fp32", tmp_path), "int4").model.graph
    pair = [tied.initializers[f"model.embed_tokens.weight.int4.{form}"] for form in ("rows", "linear")]
    assert pair[0].const_value.tobytes() == pair[1].const_value.tobytes()
    kept = load(str(EXPORTS / "genai-qwen2-int4" / "model.onnx"))
    assert quantise(kept, "auto") is kept, "bits that the exporter chose stay"
    stateful = load(str(EXPORTS / "optimum-gpt_neox" / "model.onnx"))
    assert quantise(stateful, "auto") is stateful
    with pytest.raises(InputError) as caught:
        quantise(stateful, "int4")
    assert caught.value.ref == "quant-as-exported"


def turned(name: str, tmp_path: Path) -> Path:
    """An export whose head is the embedding, turned by a node."""
    path, model = copied(name, tmp_path)
    head = next(node for node in model.graph.node if node.output[0] == "logits")
    turn = onnx.helper.make_node("Transpose", ["model.embed_tokens.weight"], ["turned"], perm=[1, 0])
    head.input[1] = "turned"
    model.graph.node.insert(0, turn)
    onnx.save(model, path)
    return path
