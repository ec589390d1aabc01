"""What doctor says of OpenVINO's devices: what is there, and what each stage would use of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import pytest

from ruvrun.bundle import BUNDLE, load_spec
from ruvrun.doctor import Finding, examine
from ruvrun.executors.openvino import devices
from ruvrun.executors.openvino.forms import VARIABLE
from ruvrun.manifest import dump_toml, identify, load_manifest
from ruvrun.placement import read_nodes
from tests.runtime.builds import write, write_build

BACKENDS = {"a": "openvino-gpu", "b": "openvino-npu"}


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A build of one stage for a GPU and one for an NPU."""
    path = write_build(tmp_path)
    made, stages = load_manifest(path), []
    for stage, (name, backend) in zip(made.stage, BACKENDS.items(), strict=True):
        bundle = tmp_path / "bundles" / name / BUNDLE
        requires = {"openvino": "2026.4", **({"linux": "6.6"} if name == "b" else {})}
        spec = msgspec.structs.replace(load_spec(bundle.parent), backend=backend, requires=requires)
        bundle.write_bytes(dump_toml(spec))
        digest = hashlib.sha256(bundle.read_bytes()).hexdigest()
        stages.append(msgspec.structs.replace(stage, sha256=digest, backend=backend))
    identity = identify(made.program, stages, made.pipeline)
    write(tmp_path, msgspec.structs.replace(made, stage=stages, id=identity), read_nodes(path))
    return path


def seen(manifest: Path) -> dict[str, Finding]:
    found = list(examine(manifest, None, peers=False))
    assert len({one.check for one in found}) == len(found), "a thing is told twice"
    return {one.check: one for one in found}


def test_devices_that_are_not_there_are_told_with_those_that_are(manifest, monkeypatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(devices.platform, "release", lambda: "6.8.0-41-generic")
    found = seen(manifest)
    assert found["package openvino"].state == "ok"
    assert found["OpenVINO devices"].seen.startswith("CPU (")
    for name, device in (("a", "GPU"), ("b", "NPU")):
        one = found[f"device of {name}"]
        assert (one.state, one.exit_code) == ("fail", 4)
        assert f"runs on {device}, which OpenVINO does not see here; it sees: CPU (" in one.seen
        assert "install the driver" in str(one.hint)


def test_what_was_said_to_run_elsewhere_is_told_as_that(manifest, monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, "CPU")
    found = seen(manifest)
    for name, device in (("a", "GPU"), ("b", "NPU")):
        one = found[f"device of {name}"]
        assert one.state == "ok"
        assert one.seen.startswith("its stage runs on CPU (")
        assert one.seen.endswith(f"it is for {device} and here because RUVRUN_DEVICE says so")


def test_a_kernel_that_is_too_old_is_told_before_anything_is_loaded(manifest, monkeypatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(devices.platform, "release", lambda: "5.15.0-91-generic")
    one = seen(manifest)["device of b"]
    assert (one.state, one.exit_code, one.seen) == ("fail", 7, "NPU needs Linux 6.6, this is 5.15.0")


def test_devices_are_told_with_their_drivers(manifest, monkeypatch) -> None:
    """As a PC with all three tells of itself."""
    told = {
        "CPU": {"FULL_DEVICE_NAME": "Intel(R) Core(TM) Ultra 7 155H"},
        "GPU": {"FULL_DEVICE_NAME": "Intel(R) Arc(TM) Graphics (iGPU)"},
        "NPU": {"FULL_DEVICE_NAME": "Intel(R) AI Boost", "NPU_DRIVER_VERSION": 1743120000},
    }

    class Core:
        available_devices = tuple(told)

        def get_property(self, device: str, name: str) -> object:
            if name not in told[device]:
                raise RuntimeError(f"unsupported property {name}")
            return told[device][name]

    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(devices.ov, "Core", Core)
    monkeypatch.setattr(devices.platform, "release", lambda: "6.8.0")
    monkeypatch.setattr(devices, "driver_versions", lambda: {"Intel(R) Arc(TM) Graphics": "24.35.30872.31"})
    found = seen(manifest)
    gpu = "GPU (Intel(R) Arc(TM) Graphics (iGPU), driver 24.35.30872.31)"
    npu = "NPU (Intel(R) AI Boost, driver 1743120000)"
    assert found["OpenVINO devices"].seen == f"CPU (Intel(R) Core(TM) Ultra 7 155H), {gpu}, {npu}"
    assert (found["device of a"].state, found["device of a"].seen) == ("ok", f"its stage runs on {gpu}")
    assert (found["device of b"].state, found["device of b"].seen) == ("ok", f"its stage runs on {npu}")
