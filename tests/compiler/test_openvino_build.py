"""OpenVINO from the command to the answer: built for, verified, measured; and graphs, which it reads as they are."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from ruvcompile import compile as steps
from ruvcompile.errors import InputError, UsageError
from ruvcompile.front import read_model
from ruvcompile.lower.sheet import Keyed
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import pieces, program_units, unit_keys
from ruvcompile.progress import Silent
from ruvcompile.samples.written import write_inputs
from ruvrun.bench import GREEDY
from ruvrun.bundle import load_spec
from ruvrun.engine import Request
from ruvrun.executors import load_decoder, load_graph
from ruvrun.pipeline.local import LocalPipeline
from ruvrun.pipeline.worker import Worker
from ruvrun.profile import decoder
from ruvrun.profile.conditions import Conditions
from ruvrun.profile.places import ground
from ruvrun.profile.sheet import load_sheet
from ruvrun.profile.table import Segment, profile, segments
from tests.compiler.builds import build, check_whole, options
from tests.decoders import tiny_program
from tests.graphs import make_model, program_of, tensor, weight
from tests.models import write_tiny_gguf

FLEET = "format = 1\n" + "".join(f'[[node]]\nname = "{n}"\ntarget = "intel-cpu"\naddress = "local"\n' for n in "ab")


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("built")
    write_tiny_gguf(folder / "tiny.gguf", layers=2, ffn=128)
    (folder / "fleet.toml").write_text(FLEET)
    build(folder / "tiny.gguf", folder / "dist", fleet=str(folder / "fleet.toml"), stages=2, kv_type="u8")
    return folder


def test_a_build_runs_on_openvino_and_says_how(built) -> None:
    manifest, specs = check_whole(built / "dist")
    assert [stage.backend for stage in manifest.stage] == ["openvino"] * 2
    assert all(spec.model == "stage.xml" and spec.golden is not None for spec in specs)
    assert {spec.kv.dtype for spec in specs if spec.kv is not None} == {"uint8"}
    assert {spec.options["KV_CACHE_PRECISION"] for spec in specs} == {"u8"}


def test_a_build_is_the_uncut_model(built) -> None:
    found = steps.verify(built / "dist" / "manifest.toml", None, Silent())
    assert found["identical"] is True
    assert found["tokens"] > 100


def test_precision_and_the_type_of_keys_and_values_are_the_manifests(built, tmp_path) -> None:
    """Nothing is left to the default of the machine, which here would be numbers of 16 bits."""
    build(built / "tiny.gguf", tmp_path / "dist", fleet=str(built / "fleet.toml"), stages=2, precision="bf16")
    manifest, specs = check_whole(tmp_path / "dist")
    assert manifest.program.precision == "bf16"
    assert {spec.options["INFERENCE_PRECISION_HINT"] for spec in specs} == {"bf16"}
    assert {spec.options["KV_CACHE_PRECISION"] for spec in specs} == {"u8"}
    plain, _ = check_whole(built / "dist")
    assert 'precision = "f32"' in (built / "dist" / "manifest.toml").read_text("utf-8")
    assert {stage.kv.dtype for stage in plain.stage if stage.kv is not None} == {"uint8"}
    assert manifest.id != plain.id


@pytest.mark.parametrize("kv_type", ["u8", "f32"])
def test_the_tokens_are_the_uncut_models_whatever_the_cut_the_chunks_and_the_company(kv_type, tmp_path) -> None:
    """Law 1, through the engine: answers of several requests together, prompts in chunks of other sizes."""
    program, store = tiny_program(tmp_path, layers=2, ffn=128), WeightStore(tmp_path / "w")
    random = np.random.default_rng(3)
    requests = [
        Request(number, tuple(random.integers(3, 300, length).tolist()), 12, GREEDY, frozenset())
        for number, length in enumerate((1, 2, 17, 33, 40))
    ]

    def pipeline(cuts: tuple[int, ...], streams: int, chunk: int) -> LocalPipeline:
        workers = []
        for number, piece in enumerate(pieces(program, program_units(program), cuts)):
            path = tmp_path / f"{'-'.join(map(str, cuts))}.{number}"
            spec = write_stage(program, piece, path, store, backend="openvino", target="intel-cpu", kv_type=kv_type)
            workers.append(Worker(load_decoder(path, spec, context=64, slots=streams, threads=1), spec))
        return LocalPipeline(workers, 64, streams, chunk)

    whole = pipeline((), 1, 64)
    alone = {request.id: whole.generate([request])[request.id] for request in requests}
    assert len({tuple(tokens) for tokens in alone.values()}) > 1
    for cuts, streams, chunk in (((), 5, 8), ((3,), 2, 64), ((2, 5), 5, 16)):
        assert pipeline(cuts, streams, chunk).generate(requests) == alone, (cuts, streams, chunk)


def test_a_key_value_type_the_target_has_not_is_refused(built, tmp_path) -> None:
    with pytest.raises(UsageError, match="target pi5 has no --kv-type u8"):
        steps.plan(options(built / "tiny.gguf", tmp_path, target="pi5", kv_type="u8"), Silent())


def test_a_probe_is_small_and_measured_as_the_model_is(built, tmp_path) -> None:
    """Weights that OpenVINO leaves as they are, are drawn where the probe is measured, and none is the model's."""
    write_tiny_gguf(tmp_path / "wide.gguf", layers=2, hidden=256, ffn=1024)
    asked = options(tmp_path / "wide.gguf", tmp_path / "probe", target="intel-cpu", nodes="1")
    made = steps.probe(asked, Silent())
    assert (made["backend"], made["target"]) == ("openvino", "intel-cpu")
    assert made["drawn_bytes"] > 2 * made["bytes"]
    with segments(tmp_path / "probe") as (_, stages):
        found = profile(stages, Conditions(threads=1, seconds=0.1, brief=True)).table
    front = read_model(options(tmp_path / "wide.gguf", tmp_path / "-", target="intel-cpu", nodes="1"), Silent())
    assert {row.key for row in found.unit} == set(front.keys)
    assert {(row.backend, row.target) for row in found.unit} == {("openvino", "intel-cpu")}


def test_without_openvino_one_sentence_says_so(tmp_path, monkeypatch) -> None:
    program = tiny_program(tmp_path, layers=1)
    (piece,) = pieces(program, program_units(program), ())
    monkeypatch.setitem(sys.modules, "openvino", None)
    for name in [name for name in sys.modules if name.startswith("ruvcompile.lower.openvino.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(InputError) as error:
        write_stage(program, piece, tmp_path / "s", WeightStore(tmp_path / "w"), backend="openvino", target="host")
    assert error.value.ref == "backend-missing"
    assert error.value.hint == "pip install 'ruvcompile[openvino]'"


def test_units_are_told_by_the_back_ends_own_counters(tmp_path) -> None:
    program = tiny_program(tmp_path, layers=2, ffn=128)
    units = program_units(program)
    (piece,) = pieces(program, units, ())
    keyed, path = Keyed(units, unit_keys(program, units)), tmp_path / "stage"
    spec = write_stage(
        program, piece, path, WeightStore(tmp_path / "w"), backend="openvino", target="intel-cpu", keyed=keyed
    )
    sheet = load_sheet(path, spec)
    where = ground(spec, sheet.context)
    held = [decoder.load(path, spec, where, 1)]
    rows = decoder.measure_decoder(path, spec, sheet, held, where, Conditions(seconds=0.1))
    assert sorted(row.label for row in rows) == ["embed", "head", "layers.*.attn", "layers.*.mlp"]
    assert all((row.backend, row.target) == ("openvino", "intel-cpu") for row in rows)
    found = {row.label: {node.name.rpartition("/")[2] for node in row.node} for row in rows}
    assert {"qkv_proj", "o_proj"} <= found["layers.*.attn"]
    assert {"gate_up_proj", "down_proj"} <= found["layers.*.mlp"]
    assert all(point.ms > 0 for row in rows for point in row.curve)


@pytest.fixture
def graph(tmp_path):
    """A small graph as a stage."""
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "relu"),
        helper.make_node("ReduceMean", ["r", "axes"], ["y"], "mean", keepdims=0),
    ]
    weights = [weight("w", random.standard_normal((8, 3, 3, 3))), weight("axes", [2, 3], np.int64)]
    model = make_model(nodes, [tensor("x", ["n", 3, 8, 8])], [tensor("y", ["n", 8])], weights)
    program = program_of(model)
    units = program_units(program)
    (piece,) = pieces(program, units, ())
    keyed = Keyed(units, unit_keys(program, units))
    made = {}
    for backend in ("onnxruntime", "openvino"):
        path = tmp_path / backend
        store = WeightStore(tmp_path / "w")
        spec = write_stage(program, piece, path, store, backend=backend, target="host", keyed=keyed)
        made[backend] = (path, spec)
    return made


def test_a_graph_runs_there_too(graph) -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32)
    one, other = (load_graph(*stage, threads=1).run({"x": x})["y"] for stage in graph.values())
    assert np.abs(one - other).max() <= 1e-5
    for wrong in (x[:, :2], x.astype(np.float64), x[0]):
        with pytest.raises(InputError) as error:
            load_graph(*graph["openvino"], threads=1).run({"x": wrong})
        assert error.value.ref == "graph-run-failed"


@pytest.mark.parametrize("brief", [False, True])
def test_what_a_graphs_nodes_cost_there_is_measured(graph, brief) -> None:
    """Node by node: what is merged into a convolution is no time of its own."""
    path, spec = graph["openvino"]
    write_inputs(path, spec, {"x": np.ones((2, 3, 8, 8), np.float32)})
    spec = load_spec(path)
    found = profile([Segment(path, spec, False)], Conditions(threads=1, seconds=0.1, brief=brief)).table
    ms = {row.key: row.ms for row in found.unit}
    conv, relu, mean = (ms[unit.key] for unit in load_sheet(path, spec).unit)
    assert conv > 0
    assert min(relu, mean) >= 0
    assert {(row.backend, row.target) for row in found.unit} == {("openvino", "host")}
    (own,) = found.overhead
    assert own.runtime_bytes > 20 << 20
    assert (own.stage_ms > 0) != brief, "a ring of processes is for the first back end"
