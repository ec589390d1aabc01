"""Where a stage of a form for OpenVINO runs: on its device, where a person says, or not at all, and why."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ruvcompile.errors import FitError, InputError, MachineError
from ruvcompile.program import Program
from ruvrun.bundle import StageSpec
from ruvrun.executors import load_decoder
from ruvrun.executors.openvino import devices
from ruvrun.executors.openvino.forms import VARIABLE, device_of, on_cpu
from tests.decoders import family_program
from tests.logits import CONTEXT, written

FORMS = ("openvino-gpu", "openvino-npu")


@pytest.fixture(scope="module")
def program() -> Program:
    return family_program("llama", "int4", accuracy=1)


@pytest.fixture(scope="module")
def spec(program, folder, store) -> dict[str, tuple[Path, StageSpec]]:
    return {backend: written(program, (), folder, store, backend)[0] for backend in ("openvino", *FORMS)}


@pytest.mark.parametrize(("backend", "device"), [("openvino-gpu", "GPU"), ("openvino-npu", "NPU")])
def test_a_device_that_is_not_there_is_told_with_what_is(spec, backend, device, monkeypatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(devices.platform, "release", lambda: "6.8.0-generic")
    with pytest.raises(FitError, match=f"runs on {device}, which OpenVINO does not see") as error:
        load_decoder(*spec[backend], context=CONTEXT, slots=1, threads=1)
    assert error.value.exit_code == 4
    assert "it sees: CPU (" in error.value.context[0]
    assert "RUVRUN_DEVICE=CPU" in str(error.value.hint)
    assert {"GPU": "intel-opencl-icd", "NPU": "intel-level-zero-npu"}[device] in str(error.value.hint)


def test_a_person_says_where_else(spec, monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, "CPU")
    for path, each in spec.values():
        assert device_of(each) == "CPU"
        load_decoder(path, each, context=CONTEXT, slots=1, threads=1)
    monkeypatch.setenv(VARIABLE, "GPU.1")
    assert [device_of(each) for _, each in spec.values()] == ["CPU", "GPU.1", "GPU.1"]
    with pytest.raises(FitError, match=r"GPU\.1 \(as RUVRUN_DEVICE says\)"):
        load_decoder(*spec["openvino-gpu"], context=CONTEXT, slots=1, threads=1)


@pytest.mark.parametrize("backend", FORMS)
def test_what_is_too_old_is_told(spec, backend, monkeypatch) -> None:
    path, each = spec[backend]
    newer = msgspec.structs.replace(each, requires={**each.requires, "openvino": "2031.1"})
    with pytest.raises(InputError, match=r"requires OpenVINO 2031\.1, this is 20") as error:
        load_decoder(path, newer, context=CONTEXT, slots=1, threads=1)
    assert error.value.ref == "openvino-too-old"
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(devices.platform, "release", lambda: "5.15.0-91-generic")
    if backend == "openvino-npu":
        with pytest.raises(MachineError, match=r"NPU needs Linux 6\.6, this is 5\.15"):
            load_decoder(path, each, context=CONTEXT, slots=1, threads=1)
        load_decoder(path, on_cpu(each), context=CONTEXT, slots=1, threads=1)


def test_what_a_device_says_is_passed_on(spec, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("Exception from somewhere:\n\n[ERROR] opset16 is not supported")

    for backend in FORMS:
        path, each = spec[backend]
        monkeypatch.setattr(devices.ov.Core, "compile_model", refuse)
        with pytest.raises(MachineError, match=r"CPU does not take stage\.xml") as error:
            load_decoder(path, on_cpu(each), context=CONTEXT, slots=1, threads=1)
        assert error.value.exit_code == 7
        assert "opset16" in error.value.context[-1]
        assert "update the driver" in str(error.value.hint)


def test_a_type_of_keys_and_values_that_a_device_refuses(spec) -> None:
    path, each = spec["openvino-gpu"]
    wrong = msgspec.structs.replace(each, options={**each.options, "KV_CACHE_PRECISION": "f64"})
    with pytest.raises(MachineError, match="no keys and values of type f64 on this CPU") as error:
        load_decoder(path, on_cpu(wrong), context=CONTEXT, slots=1, threads=1)
    assert (error.value.ref, error.value.exit_code) == ("kv-type-refused", 7)


def test_an_option_of_a_stranger_is_refused(spec) -> None:
    path, each = spec["openvino-gpu"]
    wrong = msgspec.structs.replace(each, options={**each.options, "CACHE_DIR": "/"})
    with pytest.raises(InputError, match="CACHE_DIR"):
        load_decoder(path, on_cpu(wrong), context=CONTEXT, slots=1, threads=1)
