"""What the data of ``pi4`` say of a processor without the dot product, on an emulated one and in the wheels it gets.

It rounds no activations, so that it is as far from the record of a build as rounding makes a stage; which passes.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ruvcompile.targets import load_target, requirements
from ruvcompile.wheels.place import kinds
from ruvcompile.wheels.shelf import Shelf
from tests.compiler.builds import build
from tests.models import write_tiny_gguf
from tests.system.debian import Machine, emulated, suite

pytestmark = pytest.mark.system

CORTEX_A72 = (
    "processor\t: 0\nBogoMIPS\t: 108.00\nFeatures\t: fp asimd evtstrm crc32 cpuid\nCPU implementer\t: 0x41\n"
    "CPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd08\nCPU revision\t: 3\n\n"
)
CHECK = """
import pathlib, sys
sys.path.insert(0, "/site")
from ruvrun.bundle import load_spec
from ruvrun.executors import load_executor
from ruvrun.pipeline.selfcheck import check_golden
place = pathlib.Path("/bundle")
spec = load_spec(place)
print(check_golden(place, spec, load_executor(place, spec, context=64, slots=1, threads=1)), spec.golden.bound)
"""
WIDTH, ROWS, BLOCK = 256, 128, 32
PROGRAM = """
import sys
sys.path.insert(0, "/site")
import numpy, onnxruntime, ruvrun
for bits in (4, 8):
    kept = numpy.load(f"/site/{bits}.npz")
    session = onnxruntime.InferenceSession(f"/site/{bits}.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": kept["x"]})
    print(bits, abs(found - kept["y"]).max() / abs(kept["y"]).max())
"""


def _write_product(folder: Path, bits: int) -> None:
    """A product with weights of so many bits, activations to be rounded to 8, and what it is in floats."""
    rng = np.random.default_rng(bits)
    weights = rng.integers(0, 2**bits, (ROWS, WIDTH), dtype=np.uint8)
    scales = rng.random((ROWS, WIDTH // BLOCK), dtype=np.float32)
    packed = weights if bits == 8 else weights[:, 0::2] | weights[:, 1::2] << 4
    packed = packed.reshape(ROWS, WIDTH // BLOCK, BLOCK * bits // 8)
    sizes = {"K": WIDTH, "N": ROWS, "bits": bits, "block_size": BLOCK, "accuracy_level": 4}
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **sizes)
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", n]) for name, n in (("x", WIDTH), ("y", ROWS))
    ]
    held = [numpy_helper.from_array(packed, "w"), numpy_helper.from_array(scales.reshape(-1), "s")]
    graph = helper.make_graph([node], "product", ports[:1], ports[1:], held)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), folder / f"{bits}.onnx")
    whole = weights.astype(np.float32).reshape(ROWS, -1, BLOCK) - 2 ** (bits - 1)
    x = rng.normal(size=(3, WIDTH)).astype(np.float32)
    np.savez(folder / f"{bits}.npz", x=x, y=x @ (whole * scales[:, :, None]).reshape(ROWS, WIDTH).T)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """All that a Pi 4 installs, unpacked, and two products."""
    place, target = tmp_path_factory.mktemp("pi4"), load_target("pi4")
    shelf = Shelf(place / "shelf")
    (kind,) = kinds(target, ["3.11"])
    for name in shelf.wheels(requirements(target, head=False), kind):
        zipfile.ZipFile(shelf.folder / name).extractall(place / "site")
    for bits in (4, 8):
        _write_product(place / "site", bits)
    (place / "site" / "program.py").write_text(PROGRAM)
    (place / "site" / "check.py").write_text(CHECK)
    (place / "cpuinfo").write_text(CORTEX_A72)
    with emulated():
        yield place / "site"


@pytest.fixture
def machine(site: Path, tmp_path: Path) -> Machine:
    made = Machine(
        [suite("bookworm", "arm64")],
        tmp_path / "pi",
        environment={"QEMU_CPU": "cortex-a72"},
        shown={"/proc/cpuinfo": site.parent / "cpuinfo"},
    )
    made.put(site, "/site")
    return made


def test_a_stage_that_was_recorded_with_rounded_activations_is_what_was_built(machine: Machine, tmp_path: Path) -> None:
    options = {"target": "pi4", "nodes": "a", "quant": "int4", "context": 64, "streams": 1}
    build(write_tiny_gguf(tmp_path / "tiny.gguf"), tmp_path / "dist", **options)
    machine.put(tmp_path / "dist/bundles/a", "/bundle")
    done = machine.run("python3.11 /site/check.py")
    assert done.returncode == 0, done.stderr
    distance, bound = map(float, done.stdout.split())
    assert bound / 4 < distance <= bound, "what rounding makes is a good part of what is allowed"


def test_without_the_dot_product_quantised_weights_meet_floats(machine: Machine) -> None:
    done = machine.run("python3.11 /site/program.py")
    assert done.returncode == 0, done.stderr
    distance = {int(bits): float(share) for bits, share in map(str.split, done.stdout.splitlines())}
    assert distance.keys() == {4, 8}
    assert max(distance.values()) < 1e-5, "activations of 8 bits are a hundredth away"
