"""What OpenVINO, or this machine's, does not take: one error each, that says what and why."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest
from onnx import helper

from ruvcompile.errors import InputError, UsageError
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import pieces, program_units
from ruvcompile.targets import fleet_targets
from ruvrun.bundle import StageSpec
from ruvrun.errors import MachineError, RuvError
from ruvrun.executors import load_decoder
from ruvrun.profile.conditions import Conditions
from ruvrun.profile.table import Segment, profile
from tests.compiler.builds import options
from tests.decoders import Stage, tiny_program
from tests.graphs import make_model, program_of, tensor


@pytest.fixture(scope="module")
def stage(tmp_path_factory) -> Stage:
    folder: Path = tmp_path_factory.mktemp("refused")
    program = tiny_program(folder, layers=2, ffn=128)
    (piece,) = pieces(program, program_units(program), ())
    path = folder / "stage"
    return path, write_stage(program, piece, path, WeightStore(folder / "w"), backend="openvino", target="intel-cpu")


def changed(spec: StageSpec, **options: str) -> StageSpec:
    return msgspec.structs.replace(spec, options={**spec.options, **options})


def refusal(stage: Stage) -> RuvError:
    path, spec = stage
    with pytest.raises(RuvError) as error:
        load_decoder(path, spec, context=64, slots=1, threads=1)
    return error.value


@pytest.mark.parametrize("kind", ["f64", "i8", "u4", "bf16"])
def test_a_type_of_keys_and_values_that_the_device_refuses(stage, kind) -> None:
    path, spec = stage
    error = refusal((path, changed(spec, KV_CACHE_PRECISION=kind)))
    assert isinstance(error, MachineError)
    assert (error.ref, error.exit_code) == ("kv-type-refused", 7)
    assert f"no keys and values of type {kind} on this CPU, with numbers of f32" in error.message
    assert "--kv-type" in str(error.hint)


def test_a_precision_that_there_is_not(stage) -> None:
    path, spec = stage
    error = refusal((path, changed(spec, INFERENCE_PRECISION_HINT="f64")))
    assert error.ref == "stage-not-loadable"
    assert "Wrong value f64" in "".join(error.context)


def test_a_bundle_of_a_newer_openvino(stage) -> None:
    """Its intermediate representation may hold what this one does not know."""
    path, spec = stage
    assert spec.requires["openvino"]
    error = refusal((path, msgspec.structs.replace(spec, requires={**spec.requires, "openvino": "2999.1"})))
    assert error.ref == "openvino-too-old"
    assert "requires OpenVINO 2999.1" in error.message


def test_an_operation_of_a_newer_openvino(stage, tmp_path) -> None:
    path, spec = stage
    for file in spec.files:
        target = tmp_path / file.path
        target.parent.mkdir(exist_ok=True)
        target.write_bytes((path / file.path).read_bytes())
    text = (tmp_path / spec.model).read_text("utf-8")
    (tmp_path / spec.model).write_text(text.replace('type="Swish" version="opset4"', 'type="Swish" version="opset99"'))
    error = refusal((tmp_path, spec))
    assert error.ref == "stage-not-loadable"
    assert "opset99" in "".join(error.context)


def test_a_graph_without_its_attention(stage) -> None:
    path, spec = stage
    assert spec.kv is not None
    more = msgspec.structs.replace(spec, kv=msgspec.structs.replace(spec.kv, layers=3))
    assert refusal((path, more)).ref == "attention-missing"


def test_a_bundle_where_openvino_is_not_installed(stage, monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "ruvrun.executors.openvino.cpu", raising=False)
    monkeypatch.setitem(sys.modules, "openvino", None)
    error = refusal(stage)
    assert (error.ref, error.exit_code) == ("backend-missing", 3)
    assert error.message == "this bundle runs on openvino, which is not installed here"
    assert error.hint == "pip install 'ruvrun[openvino]'"


def test_nothing_is_measured_where_openvino_is_not_installed(stage, monkeypatch) -> None:
    """Told before anything asks for the version of what is not there."""
    monkeypatch.setattr("ruvrun.profile.table.provenance", lambda *_: pytest.fail("asked for versions"))
    monkeypatch.delitem(sys.modules, "ruvrun.executors.openvino.cpu", raising=False)
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(InputError, match="not installed here"):
        profile([Segment(*stage, network=False)], Conditions())


@pytest.mark.parametrize(("kind", "domain"), [("Det", ""), ("Snake", "com.example")])
def test_an_operator_that_openvino_does_not_have(kind, domain, tmp_path) -> None:
    nodes = [helper.make_node(kind, ["x"], ["y"], "special", domain=domain)]
    domains = {domain: 1} if domain else None
    program = program_of(make_model(nodes, [tensor("x", [4, 4])], [tensor("y", [4, 4])], domains=domains))
    (piece,) = pieces(program, program_units(program), ())
    with pytest.raises(InputError) as error:
        write_stage(program, piece, tmp_path / "g", WeightStore(tmp_path / "w"), backend="openvino", target="intel-cpu")
    assert (error.value.ref, error.value.exit_code) == ("openvino-unsupported", 3)
    assert error.value.message.endswith(f"does not have: {f'{domain}.{kind}' if domain else kind}")
    assert "onnxruntime" in str(error.value.hint)


@pytest.mark.parametrize(
    ("asked", "ref"),
    [
        ({"target": "pi5", "precision": "bf16"}, "precision-unsupported"),
        ({"target": "host", "backend": "onnxruntime", "precision": "bf16"}, "precision-unsupported"),
        ({"target": "intel-cpu", "precision": "bf16", "kv_type": "f32"}, "kv-type-unsupported"),
        ({"target": "intel-cpu", "precision": "f8"}, "precision-unknown"),
    ],
)
def test_numbers_of_16_bits_only_where_a_back_end_has_them(asked, ref, tmp_path) -> None:
    (tmp_path / "tiny.gguf").touch()
    with pytest.raises(UsageError) as error:
        fleet_targets(options(tmp_path / "tiny.gguf", tmp_path, **asked))
    assert error.value.ref == ref


def test_numbers_of_16_bits_come_with_keys_and_values_of_eight(tmp_path) -> None:
    (tmp_path / "tiny.gguf").touch()
    (target,) = fleet_targets(options(tmp_path / "tiny.gguf", tmp_path, target="host", precision="bf16")).values()
    assert (target.backends, target.kv_type) == (("openvino",), "u8")
