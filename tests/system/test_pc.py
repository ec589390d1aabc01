"""Kernels for AVX2 and for AVX-512 are chosen when a stage is loaded: one bundle, on CPUs that have the one or both.

What is shown, of each back end:

* A CPU without AVX-512, which QEMU emulates (it knows none of it, and refuses such an instruction, which is tried),
  loads the bundle that was built here, and computes what the build recorded. It has no VNNI either, so OpenVINO
  rounds no activations there: of a model that nobody trained that makes a tenth, which the record allows for. And a
  graph in 8 bits gives on ONNX Runtime, to the last digit, what was recorded, though the kernels for its signed weights
  would cut off a part of its products there, which is tried, too.
* On a CPU with AVX-512 the same bundle is loaded by the same program, and then uses its registers: the kernel says of
  every thread whether its sixteen upper ones hold anything, and only instructions of AVX-512 reach those. Before the
  stage was loaded none did. This is skipped where the CPU of the tests has no AVX-512.
* A CPU without AVX2 is told by ``doctor`` and ``install.sh`` to be none of this target, before anything is loaded.

QEMU cannot show AVX-512 itself, and which kernel of several with one set of instructions is taken is nobody's business
but the back end's. Speed is not looked at.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.compiler.builds import build
from tests.eight_bits import FORMS, Layer, arrays, graph
from tests.models import smollm2_path, write_tiny_gguf
from tests.system.debian import Machine, program, require, suite

pytestmark = [pytest.mark.system, pytest.mark.model]

BACK_ENDS = ("onnxruntime", "openvino")
QEMU = "/usr/bin/qemu-x86_64-static"
WITHOUT_AVX512, WITHOUT_AVX2 = "Haswell", "Nehalem"
FLAGS = {
    WITHOUT_AVX512: "fpu sse sse2 ssse3 sse4_1 sse4_2 popcnt aes xsave avx f16c fma bmi1 bmi2 avx2 movbe",
    WITHOUT_AVX2: "fpu sse sse2 ssse3 sse4_1 sse4_2 popcnt",
}
MODELS = {WITHOUT_AVX512: "Haswell,-hle,-rtm,-pcid,-x2apic,-tsc-deadline,-invpcid", WITHOUT_AVX2: "Nehalem"}
"""What QEMU has no such thing of is left away, or it would say so in every process."""

WAIT = 600.0
IN_FRONT = 'mount --make-rprivate / && mount --bind "$1" /proc/cpuinfo && shift && exec "$@"'

# Runs the machine code that it is given.
CODE = """
import ctypes, mmap, sys
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(bytes.fromhex(sys.argv[1]))
ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""
AVX2, AVX512 = "c5fdefc0 c5f877 c3", "62f17d48efc0 c5f877 c3"  # vpxor ymm0, vpxord zmm0

# Loads a stage and repeats its golden check; waits for a line before and after.
STAGE = """
import sys
from pathlib import Path
from ruvrun.bundle import load_spec
from ruvrun.executors import load_executor
from ruvrun.pipeline.selfcheck import check_golden
place = Path(sys.argv[1])
spec = load_spec(place)
print("before", flush=True)
sys.stdin.readline()
executor = load_executor(place, spec, context=64, slots=2, threads=1)
check_golden(place, spec, executor)
print("computed", flush=True)
sys.stdin.readline()
"""
# Says by how much the golden checks of stages of graphs differ; with weights as they are where the first word says so.
DIFFERENCES = """
import sys
from pathlib import Path
from msgspec.structs import replace
from ruvrun.bundle import load_spec
from ruvrun.errors import IntegrityError
from ruvrun.executors import load_executor, sessions
from ruvrun.pipeline.selfcheck import check_golden
if sys.argv[1] == "signed":
    sessions.cuts_off = lambda features: False
for place in map(Path, sys.argv[2:]):
    spec = load_spec(place)
    spec = replace(spec, golden=replace(spec.golden, bound=float("inf")))
    executor = load_executor(place, spec, context=0, slots=1, threads=1)
    try:
        print(check_golden(place, spec, executor))
    except IntegrityError:
        print("inf")  # of integers
"""
# What else in the process might use AVX-512 keeps off it: the C library and OpenBLAS.
WITHOUT = {"GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW", "OPENBLAS_CORETYPE": "Haswell"}

_ATTACH, _INTERRUPT, _DETACH, _REGISTERS = 0x4206, 0x4207, 17, 0x4204
_XSTATE, _HEADER, _UPPER_SIXTEEN = 0x202, 512, 1 << 7


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Of each back end: the last of six stages of a real model, with weights of 4 bits, built here for any PC."""

    @functools.cache
    def made(backend: str) -> Path:
        output = tmp_path_factory.mktemp(backend) / "dist"
        sizes = {"stages": 6, "quant": "int4", "context": 64, "streams": 2}
        build(smollm2_path(), output, target="x86-64", nodes="a,b,c,d,e,f", backend=backend, **sizes)
        return output / "bundles/f"

    return made


def emulated(cpu: str, folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """A program of this machine to its end, on a CPU that QEMU emulates and /proc/cpuinfo tells of."""
    require(os.geteuid() == 0, "not root")
    program(QEMU, "qemu-user-static")
    told = folder / "cpuinfo"
    told.write_text(f"processor\t: 0\nmodel name\t: {cpu}\nflags\t\t: {FLAGS[cpu]}\n\n")
    line = ["unshare", "--mount", "bash", "-c", IN_FRONT, "pc", told, QEMU, "-cpu", MODELS[cpu], sys.executable, *words]
    return subprocess.run(
        list(map(str, line)), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WAIT, check=False
    )


@pytest.mark.parametrize(
    ("cpu", "code", "runs"),
    [(WITHOUT_AVX512, AVX2, True), (WITHOUT_AVX512, AVX512, False), (WITHOUT_AVX2, AVX2, False)],
)
def test_the_emulated_cpu_refuses_what_it_has_not(tmp_path: Path, cpu: str, code: str, runs: bool) -> None:
    done = emulated(cpu, tmp_path, "-c", CODE, code)
    assert (done.returncode == 0) is runs, done.stderr
    assert runs or "Illegal instruction" in done.stderr or done.returncode == -4


@pytest.mark.parametrize("backend", BACK_ENDS)
def test_a_cpu_without_avx512_computes_what_was_recorded_here(
    bundle: Callable[[str], Path], tmp_path: Path, backend: str
) -> None:
    done = emulated(WITHOUT_AVX512, tmp_path, "-m", "ruvrun", "doctor", bundle(backend), "--self-check")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok    self-check f: it computes what the build machine computed" in done.stdout, done.stdout
    assert "ok    CPU: x86_64, avx2, fma" in done.stdout, done.stdout


@pytest.mark.parametrize("quant", ["int4", "int8"])
@pytest.mark.parametrize("backend", BACK_ENDS)
def test_a_model_that_nobody_trained_is_no_exception(tmp_path: Path, backend: str, quant: str) -> None:
    output, sizes = tmp_path / "dist", {"context": 64, "streams": 2}
    build(
        write_tiny_gguf(tmp_path / "tiny.gguf"),
        output,
        target="x86-64",
        nodes="a",
        backend=backend,
        quant=quant,
        **sizes,
    )
    done = emulated(WITHOUT_AVX512, tmp_path, "-m", "ruvrun", "doctor", output / "bundles/a", "--self-check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_graph_in_8_bits_computes_to_the_last_digit_what_was_recorded_here(tmp_path: Path) -> None:
    """Of every form two products: in one stage, and in two."""
    np.savez(tmp_path / "inputs.npz", **arrays())
    flags = {"target": "x86-64", "backend": "onnxruntime", "inputs": str(tmp_path / "inputs.npz")}
    stages = []
    for number, form in enumerate(FORMS):
        first, second = Layer(form), Layer(FORMS[number - 1], 1, channels=True)
        onnx.save(graph([first, second]), tmp_path / "net.onnx")
        for nodes in ("a", "b,c"):
            output = tmp_path / f"{number}{nodes[0]}"
            build(tmp_path / "net.onnx", output, nodes=nodes, stages=len(nodes.split(",")), **flags)
            stages += [output / "bundles" / node for node in nodes.split(",")]
    found = {}
    for weights in ("turned", "signed"):
        done = emulated(WITHOUT_AVX512, tmp_path, "-c", DIFFERENCES, weights, *stages)
        assert done.returncode == 0, done.stderr
        found[weights] = [*map(float, done.stdout.split())]
    assert found["turned"] == [0.0] * 3 * len(FORMS)
    assert min(found["signed"][::3]) > 0.01, "nothing is cut off here, so nothing was shown"


@pytest.mark.parametrize("backend", BACK_ENDS)
def test_a_cpu_with_avx512_loads_the_same_and_uses_it(bundle: Callable[[str], Path], backend: str) -> None:
    if " avx512f " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("the CPU of this machine has no AVX-512 to be used")
    require(os.geteuid() == 0, "not root")
    with subprocess.Popen(
        [sys.executable, "-c", STAGE, bundle(backend)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, **WITHOUT},
    ) as stage:  # fmt: skip
        assert stage.stdin is not None
        assert stage.stdout is not None
        assert stage.stdout.readline() == "before\n"
        assert not uses_avx512(stage.pid), "whatever else does, it could not be told from the stage"
        stage.stdin.write("\n")
        stage.stdin.flush()
        assert stage.stdout.readline() == "computed\n"
        assert uses_avx512(stage.pid)
        stage.stdin.write("\n")
    assert stage.returncode == 0


def uses_avx512(process: int) -> bool:
    """Whether any thread of a process of ours has something in a register that only AVX-512 has (zmm16 to zmm31)."""
    return any(map(_has_upper_sixteen, [int(path.name) for path in Path(f"/proc/{process}/task").iterdir()]))


def _has_upper_sixteen(thread: int) -> bool:
    state = ctypes.create_string_buffer(16384)
    where = (ctypes.c_void_p * 2)(ctypes.addressof(state), len(state))
    _trace(_ATTACH, thread)
    try:
        _trace(_INTERRUPT, thread)
        os.waitpid(thread, 0x40000000)  # __WALL: it is a thread, and no child
        _trace(_REGISTERS, thread, _XSTATE, ctypes.addressof(where))
    finally:
        _trace(_DETACH, thread)
    return bool(int.from_bytes(state.raw[_HEADER : _HEADER + 8], "little") & _UPPER_SIXTEEN)


def _trace(request: int, thread: int, address: int = 0, data: int = 0) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    library.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    library.ptrace.restype = ctypes.c_long
    if library.ptrace(request, thread, address, data) == -1:
        require(ctypes.get_errno() != errno.EPERM, "may not look into a process")
        raise OSError(ctypes.get_errno(), f"ptrace {request:#x}")


def test_a_cpu_without_avx2_is_told_what_it_lacks(bundle: Callable[[str], Path], tmp_path: Path) -> None:
    done = emulated(WITHOUT_AVX2, tmp_path, "-m", "ruvrun", "doctor", bundle("onnxruntime"))
    assert done.returncode == 7, done.stdout + done.stderr
    assert "CPU: it has no avx2, fma; the bundle is for: Any 64-bit PC with AVX2 (Linux)" in done.stdout


def test_where_avx2_is_missing_nothing_is_installed(bundle: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {FLAGS[WITHOUT_AVX2]}\n\n")
    pc = Machine([suite("bookworm", "amd64")], tmp_path / "pc", shown={"/proc/cpuinfo": tmp_path / "cpuinfo"})
    pc.put(bundle("onnxruntime"), "/root/bundle")
    before = pc.list()
    done = pc.run("/root/bundle/node/install.sh")
    assert (done.returncode, done.stderr.count("error[")) == (7, 1), done.stdout + done.stderr
    assert "error[cpu-feature-missing]: this machine's CPU has no avx2, which the bundle of f uses" in done.stderr
    assert pc.list() == before
