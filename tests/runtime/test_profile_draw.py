"""Weights that are not in a probe: the same wherever they are drawn, and every file is what it should be."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ruvrun.bundle import BUNDLE, File, StageSpec
from ruvrun.errors import InputError, IntegrityError
from ruvrun.manifest import dump_toml
from ruvrun.profile.draw import KEPT, PROBE, Drawn, DrawnFile, Probe, drawn, gaps, is_probe, load_probe, numbers

TENSORS = [
    Drawn(offset=8, length=40, kind="bytes"),
    Drawn(offset=64, length=400, kind="float32", shift=9),
    Drawn(offset=464, length=36, kind="float16", shift=8),
]
FILE = DrawnFile(path="weights/w.bin", salt="w", bytes=510, tensor=TENSORS)
REST = bytes(range(34))


def test_the_numbers_are_the_same_everywhere() -> None:
    """A hash that was taken once: other numbers would make every probe that was copied useless."""
    tensor = Drawn(offset=64, length=1 << 16, kind="bytes")
    found = hashlib.sha256(b"".join(numbers(7, "salt", tensor))).hexdigest()
    assert found == "a945477c7ab855401a625ce1bfa65caab0ea51c784c5ccc9ac7d1eb0f37a61f5"


def test_files_seeds_and_places_have_numbers_of_their_own() -> None:
    tensor = Drawn(offset=0, length=64, kind="bytes")
    moved = msgspec.structs.replace(tensor, offset=64)
    drawn_ones = {b"".join(numbers(*which)) for which in ((0, "a", tensor), (1, "a", tensor), (0, "b", tensor))}
    assert len(drawn_ones | {b"".join(numbers(0, "a", moved))}) == 4


def test_a_long_tensor_is_drawn_in_pieces(monkeypatch) -> None:
    tensor = Drawn(offset=0, length=1 << 14, kind="bytes")
    whole = b"".join(numbers(0, "a", tensor))
    monkeypatch.setattr("ruvrun.profile.draw._PIECE", 64)
    pieces = list(numbers(0, "a", tensor))
    assert len(pieces) == 32
    assert b"".join(pieces) == whole


@pytest.mark.parametrize(("kind", "width"), [("float16", 2), ("float32", 4), ("float64", 8), ("bfloat16", 2)])
def test_floats_are_levels_that_every_type_holds(kind, width) -> None:
    tensor = Drawn(offset=0, length=width * 5000, kind=kind, shift=9)
    raw = b"".join(numbers(0, "a", tensor))
    assert len(raw) == width * 5000
    if kind == "bfloat16":
        values = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64)
    else:
        values = np.frombuffer(raw, kind).astype(np.float64)
    levels = np.ldexp(values, 9)
    assert (levels == np.round(levels)).all()
    assert (levels.min(), levels.max()) == (-128, 127)
    assert levels.std() == pytest.approx(74, rel=0.02)


def write(directory: Path) -> Path:
    """A probe of one weight file, some of which is kept."""
    whole = bytearray(510)
    kept = iter(REST)
    for start, stop in gaps(FILE):
        whole[start:stop] = bytes(next(kept) for _ in range(stop - start))
    for tensor in TENSORS:
        whole[tensor.offset : tensor.offset + tensor.length] = b"".join(numbers(3, "w", tensor))
    (directory / "weights").mkdir(parents=True)
    (directory / "weights" / f"w.bin{KEPT}").write_bytes(REST)
    (directory / "stage.onnx").write_bytes(b"graph")
    contents = {"weights/w.bin": bytes(whole), "stage.onnx": b"graph"}
    files = [
        File(path=path, sha256=hashlib.sha256(data).hexdigest(), bytes=len(data)) for path, data in contents.items()
    ]
    spec = StageSpec(
        kind="graph", backend="onnxruntime", target="pi5", model="stage.onnx", first=True, last=True, inputs=[],
        outputs=[], forward=[], files=files,
    )  # fmt: skip
    (directory / BUNDLE).write_bytes(dump_toml(spec))
    probe = Probe(model="net", quant="none", target="pi5", threads=4, seed=3, file=[FILE])
    (directory / PROBE).write_bytes(dump_toml(probe))
    return directory


def test_a_probe_is_completed_for_as_long_as_it_is_measured(tmp_path) -> None:
    assert gaps(FILE) == [(0, 8), (48, 64), (500, 510)]
    probe = write(tmp_path / "probe")
    assert is_probe(probe)
    assert not is_probe(tmp_path)
    with drawn(probe, tmp_path) as whole:
        data = (whole / "weights" / "w.bin").read_bytes()
        assert data[:8] + data[48:64] + data[500:] == REST
        assert data[8:48] == b"".join(numbers(3, "w", TENSORS[0]))
        assert (whole / "stage.onnx").read_bytes() == b"graph"
        assert (whole / BUNDLE).read_bytes() == (probe / BUNDLE).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["probe"]


def test_what_a_killed_measurement_left_is_removed_by_the_next(tmp_path) -> None:
    probe = write(tmp_path / "probe")
    gone = subprocess.Popen(["true"])
    gone.wait()
    for owner in (gone.pid, os.getpid()):
        (tmp_path / f".probe-{owner}-abc").mkdir()
    with drawn(probe) as whole:
        assert whole.parent == tmp_path
        assert not (tmp_path / f".probe-{gone.pid}-abc").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f".probe-{os.getpid()}-abc", "probe"]


@pytest.mark.parametrize(
    ("name", "content", "ref"),
    [
        (f"weights/w.bin{KEPT}", b"x" * 34, "probe-altered"), (f"weights/w.bin{KEPT}", None, "probe-altered"),
        ("stage.onnx", b"Graph", "probe-altered"), ("stage.onnx", None, "probe-incomplete"),
    ],
)  # fmt: skip
def test_what_is_not_as_it_was_made_is_refused(tmp_path, name, content, ref) -> None:
    probe = write(tmp_path / "probe")
    if content is None:
        (probe / name).unlink()
    else:
        (probe / name).write_bytes(content)
    with pytest.raises(IntegrityError) as caught, drawn(probe, tmp_path):
        pass
    assert caught.value.ref == ref
    assert [path.name for path in tmp_path.iterdir()] == ["probe"], "nothing is left behind"


def test_a_probe_that_reaches_out_of_its_folder_is_refused(tmp_path) -> None:
    probe = write(tmp_path / "probe")
    (probe / BUNDLE).write_text((probe / BUNDLE).read_text().replace('path = "stage.onnx"', 'path = "../stage.onnx"'))
    assert "../stage" in (probe / BUNDLE).read_text()
    with pytest.raises(IntegrityError, match="is outside"), drawn(probe, tmp_path):
        pass


@pytest.mark.parametrize(
    "tensor",
    [
        Drawn(offset=500, length=20, kind="bytes"),
        Drawn(offset=470, length=4, kind="bytes"),
        Drawn(offset=502, length=-1, kind="bytes"),
        Drawn(offset=502, length=4, kind="float32", shift=-1),
        Drawn(offset=502, length=4, kind="float32", shift=2**62),
    ],
)
def test_tensors_that_cannot_be_are_refused(tmp_path, tensor) -> None:
    probe = write(tmp_path / "probe")
    wrong = msgspec.structs.replace(FILE, tensor=[*TENSORS, tensor])
    told = msgspec.structs.replace(load_probe(probe), file=[wrong])
    (probe / PROBE).write_bytes(dump_toml(told))
    with pytest.raises(InputError) as caught:
        load_probe(probe)
    assert caught.value.ref == "probe-wrong"


def test_no_threads_are_none(tmp_path) -> None:
    probe = write(tmp_path / "probe")
    (probe / PROBE).write_text((probe / PROBE).read_text().replace("threads = 4", "threads = 0"))
    with pytest.raises(InputError, match="to be measured with 0 threads") as caught:
        load_probe(probe)
    assert caught.value.ref == "probe-wrong"


@pytest.mark.parametrize("change", [{"bytes": 1 << 60}, {"path": "weights/x.bin"}])
def test_a_file_of_another_size_is_not_drawn_until_the_disk_is_full(tmp_path, change) -> None:
    probe = write(tmp_path / "probe")
    wrong = msgspec.structs.replace(FILE, **change)
    (probe / PROBE).write_bytes(dump_toml(msgspec.structs.replace(load_probe(probe), file=[wrong])))
    with pytest.raises(IntegrityError, match="do not agree on weights/") as caught, drawn(probe, tmp_path):
        pass
    assert caught.value.ref == "probe-altered"
    assert [path.name for path in tmp_path.iterdir()] == ["probe"]
