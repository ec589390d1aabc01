"""A probe: small, without the model's weights, and what is measured with it counts for the model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ruvcompile import compile as steps
from ruvcompile import passes
from ruvcompile.errors import InputError, RuvError
from ruvcompile.load import load
from ruvcompile.lower.sheet import Keyed
from ruvcompile.options import resolve
from ruvcompile.passes.pieces import program_units, unit_keys
from ruvcompile.passes.quantise import quantise
from ruvcompile.probe import write_probe
from ruvcompile.progress import Silent
from ruvcompile.targets import load_target
from ruvcompile.whole import observe
from ruvrun.bundle import load_spec
from ruvrun.costs import CostTable, Provenance, Rate, dump_costs, load_costs
from ruvrun.executors import Span, load_graph
from ruvrun.profile.conditions import Conditions
from ruvrun.profile.draw import drawn, load_probe
from ruvrun.profile.graph import graph_inputs
from ruvrun.profile.sheet import load_sheet
from ruvrun.profile.table import profile, segments
from tests.compiler.builds import Noting, build, plan, rates
from tests.decoders import open_decoders
from tests.graphs import make_model, program_of, tensor, weight
from tests.models import write_tiny_gguf

PI = load_target("pi5")
ARRAYS = {"x": np.ones((1, 64, 12, 12), np.float32), "ids": np.array([0, 3], np.int64)}
SECRET = np.random.default_rng(1).standard_normal((128, 64, 3, 3)).astype(np.float32)


def network() -> Any:
    """Products with large weights, and everything that has to be kept: small ones, indices, what is added."""
    random = np.random.default_rng(0)
    table = np.arange(9000, dtype=np.int64)
    return program_of(
        make_model(
            [
                helper.make_node("Conv", ["x", "kernel", "bias"], ["c"], name="conv", pads=[1, 1, 1, 1]),
                helper.make_node("Relu", ["c"], ["r"], name="relu"),
                helper.make_node("Add", ["r", "boxes"], ["b"], name="add"),
                helper.make_node("GlobalAveragePool", ["b"], ["g"], name="pool"),
                helper.make_node("Flatten", ["g"], ["f"], name="flat"),
                helper.make_node("MatMul", ["f", "dense"], ["y"], name="dense_"),
                helper.make_node("Gather", ["table", "ids"], ["z"], name="look"),
            ],
            [tensor("x", [1, 64, 12, 12]), tensor("ids", [2], TensorProto.INT64)],
            [tensor("y", [1, 256]), tensor("z", [2], TensorProto.INT64)],
            [
                weight("kernel", SECRET), weight("bias", random.standard_normal(128)),
                weight("boxes", random.standard_normal((1, 128, 12, 12))),
                weight("dense", random.standard_normal((128, 256))), weight("table", table, np.int64),
            ],
        )
    )  # fmt: skip


def probe_of(program: Any, directory: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    types = observe(program.model, ARRAYS)
    units = program_units(program, types)
    keys = unit_keys(program, units, types)
    directory.mkdir()
    made = write_probe(
        program,
        Keyed(units, keys),
        directory,
        target=load_target("pi5"),
        threads=4,
        quant="none",
        types=types,
        samples=ARRAYS,
    )
    return made, keys


@pytest.fixture(scope="module")
def probe(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("probe") / "probe"
    probe_of(network(), directory)
    return directory


def test_the_model_is_not_in_it(tmp_path) -> None:
    made, keys = probe_of(network(), tmp_path / "probe")
    assert made["drawn_bytes"] == SECRET.nbytes + 128 * 256 * 4
    contents = b"".join(path.read_bytes() for path in (tmp_path / "probe").rglob("*") if path.is_file())
    assert made["bytes"] == len(contents)
    assert SECRET.tobytes()[:64] not in contents
    assert (made["units"], made["target"], made["threads"]) == (len(set(keys)), "pi5", 4)
    told = load_probe(tmp_path / "probe")
    assert (told.model, told.quant, told.target, told.threads) == ("test", "none", "pi5", 4)


def test_its_units_are_the_models(probe) -> None:
    program = network()
    types = observe(program.model, ARRAYS)
    keys = unit_keys(program, program_units(program, types), types)
    spec = load_spec(probe)
    assert [unit.key for unit in load_sheet(probe, spec).unit] == list(keys)
    assert (spec.target, spec.backend) == ("pi5", "onnxruntime")


def test_what_semantics_hang_on_is_kept_and_the_rest_is_about_as_large(probe, tmp_path) -> None:
    with drawn(probe, tmp_path) as whole:
        model = onnx.load(whole / "stage.onnx")
        found = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
        spec = load_spec(whole)
        outputs = load_graph(whole, spec, threads=1).run(graph_inputs(whole, spec))
    original = {name: value.const_value.numpy() for name, value in network().model.graph.initializers.items()}
    for name in ("bias", "boxes", "table"):
        np.testing.assert_array_equal(found[name], original[name])
    for name in ("kernel", "dense"):
        assert (found[name].shape, found[name].dtype) == (original[name].shape, original[name].dtype)
        assert abs(np.corrcoef(found[name].ravel(), original[name].ravel())[0, 1]) < 0.05
    # Sums of as many products as the kernel adds up are about as large as what came in.
    assert found["kernel"].std() * (64 * 9) ** 0.5 == pytest.approx(2**0.5, rel=0.5)
    assert found["dense"].std() * 128**0.5 == pytest.approx(1, rel=0.5)
    np.testing.assert_array_equal(outputs["z"], [0, 3])
    assert np.isfinite(outputs["y"]).all()
    assert np.abs(outputs["y"]).max() > 1e-3


def test_the_same_model_gives_the_same_probe(probe, tmp_path) -> None:
    probe_of(network(), tmp_path / "probe")
    for one in (path for path in probe.rglob("*") if path.is_file()):
        assert one.read_bytes() == (tmp_path / "probe" / one.relative_to(probe)).read_bytes(), one.name


def test_a_decoders_probe_has_every_key_of_the_model_and_few_layers(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("ruvcompile.compile.PROBE_BYTES", 0)
    model = write_tiny_gguf(tmp_path / "tiny.gguf", layers=5)
    made = run_probe(model, tmp_path / "probe")
    program = quantise(passes.run(load(str(model))), "auto")
    keys = unit_keys(program, program_units(program))
    sheet = load_sheet(tmp_path / "probe", load_spec(tmp_path / "probe"))
    assert [unit.label for unit in sheet.unit] == ["embed", "layers.*.attn", "layers.*.mlp", "head"]
    assert {unit.key for unit in sheet.unit} == set(keys)
    assert (made["units"], made["model"], made["target"], made["threads"]) == (4, program.name, "pi5", 4)
    assert made["probe"] == str(tmp_path / "probe")
    with drawn(tmp_path / "probe") as whole:
        (executor,) = open_decoders([(whole, load_spec(whole))], context=8, slots=1)
        logits = executor.step([Span(0, 0, 4, 1)], {"input_ids": np.arange(4)})["logits"]
    assert np.isfinite(logits).all()


def run_probe(model: Path, output: Path, **flags: Any) -> dict[str, Any]:
    given = {"model": str(model), "target": "pi5", "nodes": "1", "output": str(output)} | flags
    return steps.probe(resolve(given, directory=output.parent), Silent())


def test_a_probe_takes_the_place_of_a_probe_and_of_nothing_else(tmp_path) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    run_probe(model, tmp_path / "probe")
    (tmp_path / "probe" / "old").write_text("")
    run_probe(model, tmp_path / "probe")
    assert not (tmp_path / "probe" / "old").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("all of it")
    with pytest.raises(InputError) as caught:
        run_probe(model, tmp_path / "mine")
    assert (caught.value.ref, caught.value.message) == (
        "output-not-ours",
        f"{tmp_path / 'mine'} exists and is not a probe",
    )
    inside = write_tiny_gguf(tmp_path / "probe" / "tiny.gguf")
    with pytest.raises(InputError) as caught:
        run_probe(inside, tmp_path / "probe")
    assert caught.value.ref == "output-holds-input"


@pytest.mark.parametrize(
    ("flags", "ref"),
    [
        ({"target": "p15"}, "target-unknown"), ({"target": None}, "target-missing"),
        ({"quant": "int2"}, "quant-unsupported"), ({"inputs": "none.npz"}, "file-missing"),
        ({"name": "a\nb"}, "name-invalid"),
    ],
)  # fmt: skip
def test_what_cannot_be_probed_is_told(tmp_path, flags, ref) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    with pytest.raises(RuvError) as caught:
        run_probe(model, tmp_path / "probe", **flags)
    assert caught.value.ref == ref
    assert not (tmp_path / "probe").exists()


def test_a_probe_that_came_over_without_its_weights_file_is_called_one(probe, tmp_path) -> None:
    shutil.copytree(probe, tmp_path / "half")
    (tmp_path / "half" / "probe.toml").unlink()
    with pytest.raises(InputError, match="is no whole probe") as caught, segments(tmp_path / "half"):
        pass
    assert caught.value.ref == "probe-not-whole"
    assert "probe.toml is not there, and neither is weights/" in caught.value.message


def test_a_plan_from_a_probe_is_measured_and_measures_nothing(tmp_path, monkeypatch) -> None:
    """What is measured on a machine with a probe counts for the whole model, layers that are not in it included."""
    model = write_tiny_gguf(tmp_path / "tiny.gguf", layers=5)
    monkeypatch.setattr("ruvcompile.compile.PROBE_BYTES", 0)
    run_probe(model, tmp_path / "probe")
    with segments(tmp_path / "probe") as (name, stages):
        found = profile(stages, Conditions(threads=4, seconds=0.2), model=name).table
    (tmp_path / "costs.toml").write_bytes(dump_costs(found))
    assert {row.target for row in found.unit} == {"pi5"}
    assert found.provenance[0].model == name
    monkeypatch.setattr("ruvcompile.measure.fleet.measure", None)
    monkeypatch.setattr("ruvcompile.measure.fleet.measure_rates", None)
    made = plan(model, tmp_path, target="pi5", nodes="2", stages=2, costs=(str(tmp_path / "costs.toml"),))
    assert made["cost_source"] == "measured"
    assert "cost_hint" not in made
    assert sum(stage["graph_nodes"] for stage in made["stages"]) > 5 * 10


def test_scaled_costs_come_with_what_to_do_about_them(tmp_path, monkeypatch) -> None:
    """And with what was measured on such a machine for another model: its figures."""
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr("ruvcompile.measure.fleet.measure_rates", rates)
    source = Provenance(machine="aarch64, 4 cores", cpu="that", software="ruvrun 1", date="2026-01-01")
    figure = Rate(name="int4_matvec", value=1e9, unit="B/s", target="pi5", backend="onnxruntime", threads=4, source=0)
    given = tmp_path / "pi.toml"
    given.write_bytes(dump_costs(CostTable(provenance=[source], rate=[figure])))
    told = Noting()
    asked: dict[str, Any] = {"target": "pi5", "nodes": "2", "stages": 1, "replicas": 1, "costs": (str(given),)}
    made = build(model, tmp_path / "dist", measured=True, progress=told, **asked)
    assert made["cost_source"] == "scaled"
    assert made["cost_hint"][0] == f"ruvcompile probe {model} --target pi5 -o probe-pi5"
    assert made["cost_hint"][-1].endswith(f"--stages 1 --replicas 1 --costs {given} --costs costs-pi5.toml")
    assert len(made["cost_hint"]) == 3
    assert all(f"  {line}" in told.notes for line in made["cost_hint"])
    table = load_costs(tmp_path / "dist" / "costs.toml")
    how = table.provenance[table.unit[0].source].software
    assert "int4_matvec 2e+10 to 1e+09 B/s (measured)" in how
    assert "memory_bandwidth 2e+10 to 9.12e+09 B/s (published)" in how
    assert [rate.value for rate in table.rate] == [1e9], "the next build has them, too"
    for path in (tmp_path / "dist").rglob("*"):
        assert not path.is_file() or b"probe-pi5" not in path.read_bytes(), "what is built depends on no file name"
