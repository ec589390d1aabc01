"""OpenVINO's devices on this machine: whether the one that a stage runs on is here, and how it is told to compute."""

from __future__ import annotations

import contextlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from ruvrun.backends import CPU, GPU, NPU, device_for
from ruvrun.bundle import StageSpec
from ruvrun.errors import FitError, InputError, MachineError, did_you_mean
from ruvrun.executors.openvino.forms import DEVICE, VARIABLE, device_of
from ruvrun.executors.openvino.opencl import driver_versions
from ruvrun.session import too_old

_PRECISION, _GROUPS = "INFERENCE_PRECISION_HINT", "DYNAMIC_QUANTIZATION_GROUP_SIZE"
DECIDING = (_PRECISION, "KV_CACHE_PRECISION", _GROUPS)
"""The settings that a bundle of these forms may bring."""

DRIVERS = {
    GPU: "install the driver (Ubuntu, Debian: intel-opencl-icd), and let who runs this read /dev/dri (group render)",
    NPU: "install the driver (intel-level-zero-npu, intel-driver-compiler-npu, intel-fw-npu), and let who runs this "
    "read /dev/accel (group render)",
}


@dataclass(frozen=True)
class Device:
    """One that OpenVINO sees: its name there, its maker's, and the version of its driver, where it has one."""

    name: str
    title: str
    driver: str

    def __str__(self) -> str:
        return f"{self.name} ({self.title}{f', driver {self.driver}' if self.driver else ''})"


def release(version: str) -> str:
    """Year and number of a release of OpenVINO: what an intermediate representation asks of its reader."""
    return ".".join(version.partition("-")[0].split(".")[:2])


def used_by(spec: StageSpec) -> Device:
    """The device that a stage would run on; raises as ``require``."""
    core = ov.Core()
    return described(core, require(core, spec))


def devices() -> list[Device]:
    """All that OpenVINO sees here."""
    core = ov.Core()
    return [described(core, name) for name in core.available_devices]


def start(spec: StageSpec) -> None:
    """Load the library of the device that a stage runs on, if it is here: 40 MB on a CPU, before any graph."""
    _start(device_of(spec))


@cache
def _start(device: str) -> None:
    number = opset13.parameter([1], np.float32)
    with contextlib.suppress(RuntimeError):  # whoever loads the stage will hear it
        ov.Core().compile_model(ov.Model([opset13.relu(number)], [number], "nothing"), device)


def require(core: Any, spec: StageSpec) -> str:
    """The device that a stage is to run on, once it is known to be here and not too old.

    Raises:
        FitError: ``device-missing``.
        InputError: ``openvino-too-old``.
        MachineError: ``kernel-too-old``.
    """
    here, needed = release(ov.__version__), spec.requires.get("openvino", "")
    if too_old(here, needed):
        raise InputError(
            "openvino-too-old",
            f"this bundle requires OpenVINO {needed}, this is {here}",
            hint="pip install --upgrade openvino",
        )
    device = device_of(spec)
    linux, oldest = platform.release().partition("-")[0], spec.requires.get("linux", "")
    if not device.startswith(CPU) and too_old(linux, oldest):
        raise MachineError(
            "kernel-too-old",
            f"{device} needs Linux {oldest}, this is {linux}",
            hint=f"update the system, or run the stage on the CPU: {VARIABLE}=CPU",
        )
    there = core.available_devices
    kind = device.partition(".")[0]
    if not {device, f"{device}.0", device.removesuffix(".0")} & set(there):
        moved = f" (as {VARIABLE} says)" if device != device_for(spec.backend) else ""
        raise FitError(
            "device-missing",
            f"this stage runs on {device}{moved}, which OpenVINO does not see here",
            context=[f"it sees: {', '.join(str(described(core, name)) for name in there)}"],
            hint=f"{DRIVERS.get(kind, did_you_mean(device, there))}; {VARIABLE}=CPU runs it on the CPU",
        )
    return device


def settings(device: str, spec: StageSpec, threads: int, *, profile: bool = False) -> dict[str, Any]:
    """How OpenVINO is told to compile a stage for ``device``.

    Raises:
        InputError: the bundle brings a setting that is not its own matter.
    """
    if unknown := sorted(spec.options.keys() - {*DECIDING, DEVICE}):
        raise InputError("option-unknown", f"the bundle sets {unknown[0]}", hint=did_you_mean(unknown[0], DECIDING))
    told = {name: value for name, value in spec.options.items() if name != DEVICE}
    found: dict[str, Any] = {**told, "PERFORMANCE_HINT": "LATENCY", "PERF_COUNT": profile}
    if device.startswith(CPU):
        # Of half floats its kernels would make those with eight bits of mantissa, and of activations whole numbers.
        found |= {_PRECISION: "f32", _GROUPS: told.get(_GROUPS, "0")}
        found |= {"NUM_STREAMS": 1, "INFERENCE_NUM_THREADS": threads, "ENABLE_CPU_PINNING": False}
        # Attention of static shapes that it fuses by itself is wrong where there are as many tokens as heads.
        found |= {"SNIPPETS_MODE": "DISABLE"}
    return found


def compile_stage(core: Any, model: Any, device: str, spec: StageSpec, told: Mapping[str, Any]) -> Any:
    """``model``, of a stage or a part of one, compiled for ``device`` as it was ``told`` (``settings``).

    Raises:
        MachineError: ``device-refused``: it is here and does not take it, mostly because its driver is too old for it;
            or ``kv-type-refused``.
    """
    try:
        return core.compile_model(model, device, dict(told))
    except RuntimeError as error:
        if about_kept(str(error)):
            raise kept_refused(device, spec, str(error)) from None
        raise MachineError(
            "device-refused",
            f"{device} does not take {spec.model}",
            context=[
                f"it is {described(core, device)}",
                *[line for line in str(error).splitlines() if line.strip()][:6],
            ],
            hint=f"update the driver of {device}, or run the stage on the CPU: {VARIABLE}=CPU",
        ) from None


def about_kept(said: str) -> bool:
    """Whether OpenVINO complains of the type of keys and values."""
    return "KV_CACHE_PRECISION" in said or "kvcache" in said


def kept_refused(device: str, spec: StageSpec, why: str) -> MachineError:
    """What a person is told where a device does not keep keys and values in the type that the bundle says."""
    told, precision = (spec.options.get(name, "none") for name in ("KV_CACHE_PRECISION", _PRECISION))
    where = "this CPU" if device.startswith(CPU) else device
    return MachineError(
        "kv-type-refused",
        f"OpenVINO takes no keys and values of type {told} on {where}, with numbers of {precision}",
        context=[why.strip().splitlines()[-1]],
        hint="build again with another --kv-type",
    )


def described(core: Any, name: str) -> Device:
    """What OpenVINO calls ``name``."""
    title, driver = name, ""
    with contextlib.suppress(RuntimeError):
        title = str(core.get_property(name, "FULL_DEVICE_NAME"))
    if name.startswith(NPU):
        with contextlib.suppress(RuntimeError):
            driver = str(core.get_property(name, "NPU_DRIVER_VERSION"))
    elif name.startswith(GPU):
        driver = _of_gpu(title, driver_versions())
    return Device(name, title, driver)


def _of_gpu(title: str, versions: Mapping[str, str]) -> str:
    """The driver of the GPU that OpenVINO calls ``title``: OpenCL's name of it, and something behind that."""
    return next((version for name, version in versions.items() if name and title.startswith(name)), "")
