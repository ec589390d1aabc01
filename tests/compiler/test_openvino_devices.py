"""Stages in the forms for GPUs and NPUs, run on OpenVINO's CPU plugin: the tokens of the uncut model."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from onnx import helper

from ruvcompile.errors import InputError
from ruvcompile.lower.sheet import Keyed
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import pieces, program_units, unit_keys
from ruvcompile.program import Program
from ruvrun.executors import Span, load_graph
from ruvrun.executors.openvino.forms import on_cpu
from ruvrun.executors.openvino.gpu.lanes import Lane, LaneDecoder
from ruvrun.executors.openvino.npu import packed
from ruvrun.executors.openvino.npu.packed import PackedDecoder
from ruvrun.executors.openvino.npu.shaped import ShapedGraph
from ruvrun.pipeline import LocalPipeline, Worker
from ruvrun.profile.sheet import load_sheet
from tests.decoders import ask, family_program
from tests.graphs import make_model, program_of, tensor, weight
from tests.logits import CONTEXT, IDS, SLOTS, answer, opened, step, written

PIECE = 16
FORMS = ("openvino-gpu", "openvino-npu")
SIZES = [40, *[1] * 20]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "CHUNK", PIECE)


@pytest.fixture(scope="module")
def program() -> Program:
    return family_program("llama", "int4", accuracy=1)


@pytest.fixture(scope="module")
def paged(program, folder, store) -> np.ndarray:
    """What the uncut model answers in the form for CPUs."""
    return answer(opened(written(program, (), folder, store, "openvino")), SIZES)


def agree(found: np.ndarray, wanted: np.ndarray) -> None:
    """The same tokens, from the same numbers but for the last digits."""
    assert np.abs(found - wanted).max() <= 1e-4
    assert np.array_equal(found.argmax(-1), wanted.argmax(-1))


@pytest.mark.parametrize("backend", FORMS)
def test_every_cut_computes_what_the_uncut_model_does(program, folder, store, paged, backend) -> None:
    whole = answer(opened(written(program, (), folder, store, backend)), SIZES)
    agree(whole, paged)
    count = len(program_units(program))
    for cuts in [(3,), tuple(range(1, count))]:
        assert np.array_equal(answer(opened(written(program, cuts, folder, store, backend)), SIZES), whole), cuts


@pytest.mark.parametrize("backend", FORMS)
@pytest.mark.parametrize("name", ["mistral", "gemma3"])
def test_windows(name, tmp_path, backend) -> None:
    """Windows are shorter than the text, and in gemma3 not all layers have one."""
    program, store = family_program(name, "int4", accuracy=1), WeightStore(tmp_path / "store")
    wanted = answer(opened(written(program, (), tmp_path, store, "openvino")), SIZES)
    found = answer(opened(written(program, (3,), tmp_path, store, backend)), SIZES)
    assert np.abs(found - wanted).max() <= 1e-5 * max(1.0, np.abs(wanted).max())


@pytest.mark.parametrize("backend", FORMS)
def test_chunks_company_and_slots(program, folder, store, paged, backend) -> None:
    decoders = opened(written(program, (3,), folder, store, backend))
    for sizes in ([20, 20], [2] * 20, [33, 7], [5, 35], [16, 24]):
        agree(answer(decoders, [*sizes, *[1] * 20]), paged)
    alone = {}
    for slot in range(3):
        answer(decoders, [30 + slot], slot)
        alone[slot] = [step(decoders, Span(slot, 30 + slot + n, 1, 1))[0] for n in range(6)]
    for slot in range(3):
        answer(decoders, [30 + slot], slot)
    for n in range(6):
        rows = step(decoders, *(Span(slot, 30 + slot + n, 1, 1) for slot in range(3)))
        assert all(np.array_equal(rows[slot], alone[slot][n]) for slot in range(3)), n
    (fourth,) = step(decoders, Span(3, 0, 9, 1))
    for slot in (0, 2):
        answer(decoders, [30 + slot], slot)
    mixed = step(decoders, Span(0, 30, 1, 1), Span(2, 32, 1, 0), Span(3, 0, 9, 1))
    assert np.array_equal(mixed, [alone[0][0], fourth])
    assert step(decoders, Span(0, 31, 1, 0), Span(2, 33, 1, 0)).shape == (0, 300)


@pytest.mark.parametrize("backend", FORMS)
def test_a_rewind_is_as_if_it_had_not_been(program, folder, store, paged, backend) -> None:
    """Guesses that are wrong, and taken back, again and again."""
    decoders = opened(written(program, (3,), folder, store, backend))
    wrong = np.roll(IDS, 1, axis=1)
    found = [answer(decoders, [40])]
    for at in range(40, 60):
        step(decoders, Span(1, at, 5, 5), ids=wrong)
        found.append(step(decoders, Span(1, at, 1, 1)))
    agree(np.concatenate(found), paged)


def test_holes_take_room_until_a_lane_is_compacted(program, folder, store, paged) -> None:
    """One lane runs out, the other does not, and what the head says are positions all the while."""
    decoders = opened(written(program, (3,), folder, store, "openvino-gpu"))
    answer(decoders, [30], 0)
    found = [answer(decoders, [40])]
    lanes: list[tuple[Lane, Lane]] = []
    for decoder in decoders:
        assert isinstance(decoder, LaneDecoder)
        lanes.append((decoder._lanes[0], decoder._lanes[1]))
    compacted = 0
    for at in range(40, 60):
        before = lanes[0][1].filled
        step(decoders, Span(1, at, 7, 0), ids=np.roll(IDS, 1, axis=1))
        found.append(step(decoders, Span(1, at, 1, 1)))
        assert all(at + 1 <= lane.filled <= CONTEXT for _, lane in lanes)
        compacted += lanes[0][1].filled != before + 8
    agree(np.concatenate(found), paged)
    # 40 places are free, each round takes eight and leaves one; then 40, less one for each round so far, ...
    assert compacted == 5
    for other, lane in lanes:
        assert other.filled == 30
        assert lane.filled == lanes[0][1].filled
        assert np.array_equal(lane.places[: lane.filled][lane.places[: lane.filled] >= 0], np.arange(60))
    step(decoders, Span(1, 0, 2, 1))  # another sequence begins in the slot, and nothing is left of this one
    assert [lane.filled for _, lane in lanes] == [2, 2]


def test_a_position_that_is_not_there_is_told(program, folder, store) -> None:
    (decoder,) = opened(written(program, (), folder, store, "openvino-gpu"))
    answer([decoder], [10])
    with pytest.raises(Exception, match="position 12") as error:
        step([decoder], Span(1, 12, 1, 1))
    assert getattr(error.value, "ref", "") == "state-missing"


@pytest.mark.parametrize("backend", FORMS)
def test_at_the_end_of_the_context_the_answer_ends(program, folder, store, backend) -> None:
    """Three requests at a time; nothing slides, and who comes after finds its place as if nobody had been there."""
    stages = written(program, (3,), folder, store, backend)

    def pipeline(slots: int) -> LocalPipeline:
        executors = opened(stages, context=48, slots=slots)
        pairs = zip(executors, stages, strict=True)
        return LocalPipeline([Worker(each, on_cpu(spec)) for each, (_, spec) in pairs], 48, slots)

    requests = [ask(number, IDS[number, : 20 + number], 100) for number in range(4)]
    found = pipeline(3).generate(requests)
    assert {number: len(tokens) for number, tokens in found.items()} == {n: 48 - 20 - n for n in range(4)}
    alone = pipeline(1)
    assert found == {request.id: alone.generate([request])[request.id] for request in requests}


def test_the_graph_for_many_rows_is_made_when_it_is_wanted(program, folder, store) -> None:
    (decoder,) = opened(written(program, (), folder, store, "openvino-npu"))
    assert isinstance(decoder, PackedDecoder)
    last = step([decoder], Span(0, 0, 40, 1))
    assert len(decoder._graphs) == 2
    agree(step([decoder], Span(0, 0, 40, 40))[-1:], last)
    assert len(decoder._graphs) == 3
    agree(step([decoder], Span(0, 0, 40, 20))[-1:], last)
    assert len(decoder._graphs) == 3


def layers_of(path: Path) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Of a stage's graph the kinds of its layers by id, and by reader those that are read, in order."""
    net = ElementTree.parse(path / "stage.xml").getroot()
    kinds = {layer.get("id", ""): layer.get("name" if layer.get("type") == "Parameter" else "type", "")
             for layer in net.iterfind("layers/layer")}  # fmt: skip
    read: dict[str, list[str]] = {}
    for edge in sorted(net.iterfind("edges/edge"), key=lambda each: int(each.get("to-port", ""))):
        read.setdefault(edge.get("to-layer", ""), []).append(edge.get("from-layer", ""))
    return kinds, read


def test_every_state_of_a_gpus_stage_goes_through_a_gather_by_beams(program, folder, store) -> None:
    """Without it a GPU's kernels do not keep keys and values in place."""
    for (path, spec), layers in zip(written(program, (3,), folder, store, "openvino-gpu"), (1, 2), strict=True):
        kinds, read = layers_of(path)
        states = [name for name, kind in kinds.items() if kind == "ReadValue"]
        gathers = [[kinds[each] for each in read[name][:2]] for name, kind in kinds.items()
                   if kind == "Gather" and kinds[read[name][0]] == "ReadValue"]  # fmt: skip
        assert spec.kv is not None
        assert len(states) == len(gathers) == 2 * layers == 2 * spec.kv.layers
        assert all(inputs == ["ReadValue", "beam_idx"] for inputs in gathers)
        readers = [reader for reader, names in read.items() for name in names if name in states]
        assert {kinds[reader] for reader in readers} == {"Gather"}


def test_an_npus_stage_has_no_state(program, folder, store) -> None:
    for path, _ in written(program, (3,), folder, store, "openvino-npu"):
        kinds, _ = layers_of(path)
        assert not {"ReadValue", "Assign", "beam_idx"} & set(kinds.values())
        assert "mask.0" in kinds.values()


def test_both_graphs_are_static_and_keep_nothing(program, folder, store) -> None:
    (decoder,) = opened(written(program, (3,), folder, store, "openvino-npu"))[:1]
    assert isinstance(decoder, PackedDecoder)
    for graph in (decoder._single, decoder._chunk):
        model = graph.request.get_compiled_model()
        assert not graph.request.query_state()
        assert all(port.get_partial_shape().is_static for port in (*model.inputs, *model.outputs))


@pytest.mark.parametrize("backend", FORMS)
def test_half_floats_are_kept_where_they_are_asked_for(program, folder, store, paged, backend) -> None:
    stages = written(program, (), folder, store, backend, "f16")
    ((_, spec),) = stages
    assert spec.kv is not None
    assert (spec.kv.dtype, spec.options["INFERENCE_PRECISION_HINT"]) == ("float16", "f16")
    found = answer(opened(stages), SIZES)
    assert 0 < np.abs(found - paged).max() < 0.2
    with pytest.raises(InputError, match="no key/value type u8 in this form"):
        written(program, (), folder, store, backend, "u8")


@pytest.mark.parametrize("backend", FORMS)
def test_what_lies_in_a_slot_is_never_seen(program, folder, store, backend) -> None:
    decoders = opened(written(program, (), folder, store, backend))
    wanted = answer(decoders, [9, 1, 1], 2)
    (decoder,) = decoders
    assert isinstance(decoder, LaneDecoder | PackedDecoder)
    decoder.occupy(SLOTS, 60)
    assert np.array_equal(answer(decoders, [9, 1, 1], 2), wanted)
    decoder.occupy(SLOTS, 60)
    assert np.isfinite(step(decoders, *(Span(slot, 60, 1, 1) for slot in range(SLOTS)))).all()
    assert decoder.kernels() == []


@pytest.mark.parametrize("backend", FORMS)
def test_a_stage_is_the_same_bytes_every_time(program, tmp_path, backend) -> None:
    units = program_units(program)
    (piece,) = pieces(program, units, ())
    keyed = Keyed(units, unit_keys(program, units))
    found = []
    for name in ("one", "other"):
        path, own = tmp_path / name, WeightStore(tmp_path / f"store-{name}")
        spec = write_stage(program, piece, path, own, backend=backend, target="host", keyed=keyed)
        found.append({str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()})
    assert found[0] == found[1]
    assert [unit.key for unit in load_sheet(path, spec).unit] == list(keyed.keys)
    assert all(unit.nodes for unit in load_sheet(path, spec).unit)


@pytest.mark.parametrize("backend", FORMS)
def test_any_other_graph_runs_there_too(tmp_path, backend, monkeypatch) -> None:
    """On an NPU a graph of open shapes becomes one for every shape that comes."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("ReduceMean", ["c", "axes"], ["y"], "mean", keepdims=0),
    ]
    random = np.random.default_rng(0)
    weights = [weight("w", random.standard_normal((8, 3, 3, 3))), weight("axes", [2, 3], np.int64)]
    program = program_of(make_model(nodes, [tensor("x", ["n", 3, 8, 8])], [tensor("y", ["n", 8])], weights))
    (piece,) = pieces(program, program_units(program), ())
    graphs = []
    for name in ("onnxruntime", backend):
        spec = write_stage(program, piece, tmp_path / name, WeightStore(tmp_path / "w"), backend=name, target="host")
        graphs.append(load_graph(tmp_path / name, on_cpu(spec), threads=1))
    assert spec.options["INFERENCE_PRECISION_HINT"] == {"openvino-gpu": "f32", "openvino-npu": "f16"}[backend]
    monkeypatch.setattr("ruvrun.executors.openvino.npu.shaped.SHAPES", 2)
    for count in (2, 3, 2, 4, 5, 2):
        x = random.standard_normal((count, 3, 8, 8)).astype(np.float32)
        one, other = (graph.run({"x": x})["y"] for graph in graphs)
        assert np.abs(one - other).max() <= 1e-5
    if isinstance(graphs[1], ShapedGraph):
        assert len(graphs[1]._graphs) == 2
    for wrong in (x[:, :2], x.astype(np.float64), x[0]):
        with pytest.raises(InputError) as error:
            graphs[1].run({"x": wrong})
        assert error.value.ref == "graph-run-failed"


# Where a stage runs
