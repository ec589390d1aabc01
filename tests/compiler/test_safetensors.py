"""The safetensors container is read right, or refused with one error; no damage to it gives anything else."""

from __future__ import annotations

import contextlib
import os
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ruvcompile.load import load
from ruvcompile.load.safetensors import FLOATS, Shard, open_shard, stored
from ruvrun.errors import InputError
from tests.checkpoints import Tensors, encode, write_directory, write_safetensors
from tests.compiler.directories import CONFIG, raw_file


def opened(path: Path) -> Shard:
    return open_shard(path, "the-file")


# Reading


@pytest.mark.parametrize("kind", sorted(FLOATS))
def test_every_float_type_is_widened_exactly(kind: str, tmp_path: Path) -> None:
    values = np.array([[0.0, -1.5, 3.0e-5, 65504.0], [2.0**-14, -0.0, 0.333251953125, 1e-3]], np.float32)
    if kind == "BF16":
        values = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    if kind == "F16":
        values = values.astype(np.float16).astype(np.float32)
    found = opened(write_safetensors(tmp_path / "m", {"x": values}, kind))
    tensor = stored(found, found.entries["x"])
    assert tensor.bits == {"F64": 32, "F32": 32, "F16": 16, "BF16": 16}[kind]
    read = tensor.read()
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, values)
    assert np.signbit(read[1, 1])


@pytest.mark.parametrize("kind", ["F32", "BF16"])
def test_rows_are_those_of_the_whole(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ruvcompile.load.safetensors._AT_ONCE", 64)  # so that a read takes many steps
    values = np.random.default_rng(0).integers(-100, 100, (7, 5)).astype(np.float32)
    found = opened(write_safetensors(tmp_path / "m", {"a": values, "b": values * 2}, kind))
    tensor = stored(found, found.entries["b"])
    assert tensor.rows is not None
    np.testing.assert_array_equal(tensor.read(), values * 2)
    for start in range(7):
        np.testing.assert_array_equal(tensor.rows(start, 7), values[start:] * 2)


def test_a_number_that_no_float32_holds_is_an_error_not_infinity(tmp_path: Path) -> None:
    path = raw_file(
        tmp_path / "m", {"x": {"dtype": "F64", "shape": [1], "data_offsets": [0, 8]}}, struct.pack("<d", 1e300)
    )
    found = opened(path)
    with pytest.raises(InputError, match="damaged"):
        stored(found, found.entries["x"]).read()


def test_a_sparse_shard_of_a_terabyte_costs_neither_time_nor_memory(tmp_path: Path) -> None:
    rows, columns = 1 << 23, 1 << 16
    size = rows * columns * 2
    path = raw_file(tmp_path / "m", {"x": {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [0, size]}})
    start = path.stat().st_size
    try:
        os.truncate(path, start + size)
    except OSError:
        pytest.skip("this file system has no files of a terabyte")
    with path.open("r+b") as stream:
        stream.seek(start + 5 * columns * 2)
        stream.write(encode(np.full(3, 2.0, np.float32), "BF16"))
    tracemalloc.start()
    try:
        found = opened(path)
        tensor = stored(found, found.entries["x"])
        assert tensor.rows is not None
        assert tensor.rows(5, 6)[0, :4].tolist() == [2, 2, 2, 0]
        assert tensor.rows(rows - 1, rows).sum() == 0
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


# What a container must not be

ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"{", "not sound JSON"),
        (b"[]", "not sound JSON"),
        (b'{"x": NaN}', "not sound JSON"),
        (b"\xff\xfe{}", "not sound JSON"),
        (b"[" * 100_000, "not sound JSON"),
        (b'{"x": ' + b"9" * 5000 + b"}", "not sound JSON"),
        (b'{"x": 1, "x": 1}', "not sound JSON"),
        ({"x": 3}, "damaged"),
        ({"x": {"dtype": "F32", "shape": [2]}}, "damaged"),
        ({"x": {**ENTRY, "more": 1}}, "damaged"),
        ({"x": {**ENTRY, "shape": "2 2"}}, "damaged"),
        ({"x": {**ENTRY, "shape": [2, -2]}}, "damaged"),
        ({"x": {**ENTRY, "shape": [2, True]}}, "damaged"),
        ({"x": {**ENTRY, "shape": [2.0, 2]}}, "damaged"),
        ({"x": {**ENTRY, "shape": [2] * 9}}, "damaged"),
        ({"x": {**ENTRY, "shape": [1 << 62, 1 << 62]}}, "damaged"),
        ({"x": {**ENTRY, "shape": [2, 3]}}, "damaged"),
        ({"x": {**ENTRY, "data_offsets": [0]}}, "damaged"),
        ({"x": {**ENTRY, "data_offsets": [16, 0]}}, "damaged"),
        ({"x": {**ENTRY, "data_offsets": [-16, 0]}}, "damaged"),
        ({"x": {**ENTRY, "data_offsets": [8, 24]}}, "truncated"),
        ({"x": {**ENTRY, "data_offsets": [1 << 60, (1 << 60) + 16]}}, "truncated"),
        ({"x": ENTRY, "y": {**ENTRY, "data_offsets": [0, 16]}}, "damaged"),
        ({"x": ENTRY, "y": {"dtype": "F16", "shape": [1], "data_offsets": [14, 16]}}, "damaged"),
        ({"x": {**ENTRY, "dtype": "Q9"}}, "'Q9'"),
        ({"x": {**ENTRY, "dtype": ["F32"]}}, "['F32']"),
    ],
)
def test_a_header_that_lies_is_refused(header: Any, says: str, tmp_path: Path) -> None:
    path = raw_file(tmp_path / "m", header, bytes(16))
    with pytest.raises(InputError) as caught:
        opened(path)
    assert says in caught.value.message
    assert "the-file" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("length", [1 << 63, 1 << 40, 17, 9])
def test_the_length_of_a_header_is_held_against_the_file(length: int, tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(struct.pack("<Q", length) + b"{}" + b" " * 6)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="truncated"):
            opened(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_header_of_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(struct.pack("<Q", 1 << 30))
    os.truncate(path, (1 << 30) + 8)
    with pytest.raises(InputError) as caught:
        opened(path)
    assert caught.value.ref == "safetensors-damaged"


@settings(max_examples=150)
@given(data=st.data())
def test_damage_gives_an_error_of_ours_or_a_model_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, tensors: Tensors, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("damaged")
    write_directory(directory, CONFIG, tensors)
    name = data.draw(st.sampled_from(["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]))
    path = directory / name
    whole = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, min(len(whole), 6000) - 1))
    patch = data.draw(
        st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from([b"\xff" * 8, b"0", b'"', b"}", b"-9"]))
    )
    whole[at : at + len(patch)] = patch
    path.write_bytes(whole if data.draw(st.booleans()) else whole[:at])
    with contextlib.suppress(InputError):
        load(str(directory))
