"""The block formats of GGUF, each against a definition of its own: one number at a time, as the format is told."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from ruvcompile.load.gguf_data import read_rows, read_tensor
from ruvcompile.load.gguf_file import GgufFile, StoredTensor

Type = GGMLQuantizationType


def half(raw: bytes, at: int) -> float:
    return float(struct.unpack_from("<e", raw, at)[0])


def nibble(raw: bytes, at: int, index: int, half_block: int) -> int:
    """The index-th of a block of nibbles whose first half is low nibbles and whose second half is high ones."""
    return raw[at + index % half_block] >> (4 * (index // half_block)) & 15


def q4_0(raw: bytes, index: int) -> float:
    return half(raw, 0) * (nibble(raw, 2, index, 16) - 8)


def q4_1(raw: bytes, index: int) -> float:
    return half(raw, 0) * nibble(raw, 4, index, 16) + half(raw, 2)


def q5_0(raw: bytes, index: int) -> float:
    fifth = int.from_bytes(raw[2:6], "little") >> index & 1
    return half(raw, 0) * (nibble(raw, 6, index, 16) + 16 * fifth - 16)


def q5_1(raw: bytes, index: int) -> float:
    fifth = int.from_bytes(raw[4:8], "little") >> index & 1
    return half(raw, 0) * (nibble(raw, 8, index, 16) + 16 * fifth) + half(raw, 2)


def q8_0(raw: bytes, index: int) -> float:
    return half(raw, 0) * float(struct.unpack_from("<b", raw, 2 + index)[0])


def six_bits(raw: bytes, at: int, group: int) -> tuple[int, int]:
    """Scale and minimum, six bits each, of one of eight groups of 32; twelve bytes hold them all."""
    if group < 4:
        return raw[at + group] & 63, raw[at + 4 + group] & 63
    upper = raw[at + 8 + group - 4]
    return upper & 15 | raw[at + group - 4] >> 6 << 4, upper >> 4 | raw[at + group] >> 6 << 4


def q4_k(raw: bytes, index: int) -> float:
    scale, least = six_bits(raw, 4, index // 32)
    value = nibble(raw, 16 + index // 64 * 32, index % 64, 32)
    return half(raw, 0) * scale * value - half(raw, 2) * least


def q5_k(raw: bytes, index: int) -> float:
    scale, least = six_bits(raw, 4, index // 32)
    fifth = raw[16 + index % 32] >> (index // 32) & 1
    value = nibble(raw, 48 + index // 64 * 32, index % 64, 32) + 16 * fifth
    return half(raw, 0) * scale * value - half(raw, 2) * least


def q6_k(raw: bytes, index: int) -> float:
    part, within = index // 128, index % 128
    low = raw[64 * part + within % 64] >> (4 * (within // 64)) & 15
    high = raw[128 + 32 * part + within % 32] >> (2 * (within // 32)) & 3
    scale = struct.unpack_from("<b", raw, 192 + index // 16)[0]
    return half(raw, 208) * scale * ((high << 4 | low) - 32)


DEFINITIONS: dict[Type, tuple[Callable[[bytes, int], float], tuple[int, ...]]] = {
    # and where in a block its 16-bit floats are
    Type.Q4_0: (q4_0, (0,)),
    Type.Q4_1: (q4_1, (0, 2)),
    Type.Q5_0: (q5_0, (0,)),
    Type.Q5_1: (q5_1, (0, 2)),
    Type.Q8_0: (q8_0, (0,)),
    Type.Q4_K: (q4_k, (0, 2)),
    Type.Q5_K: (q5_k, (0, 2)),
    Type.Q6_K: (q6_k, (208,)),
    Type.F32: (lambda raw, _: float(struct.unpack("<f", raw)[0]), ()),
    Type.F16: (lambda raw, _: half(raw, 0), (0,)),
    Type.BF16: (lambda raw, _: float(struct.unpack("<f", b"\0\0" + raw)[0]), ()),
}


def random_file(path: Path, kind: Type, rows: int, blocks: int) -> tuple[GgufFile, StoredTensor, bytes]:
    """Random blocks, their floats such as weights have."""
    block, width = GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(kind.value)
    raw = bytearray(random.integers(0, 256, rows * blocks * width, np.uint8).tobytes())
    for start in range(0, len(raw), width):
        for at in DEFINITIONS[kind][1]:
            raw[start + at : start + at + 2] = struct.pack("<e", random.normal() * 0.05)
        if kind is Type.F32:
            raw[start : start + 4] = struct.pack("<f", random.normal())
        if kind is Type.BF16:
            raw[start : start + 2] = struct.pack("<f", random.normal())[2:]
    path.write_bytes(b"head" + raw)
    tensor = StoredTensor("t", kind, (rows, blocks * block), 4, len(raw))
    return GgufFile(path, "the-file", {}, {"t": tensor}), tensor, bytes(raw)


@pytest.mark.parametrize("kind", DEFINITIONS, ids=lambda kind: kind.name)
def test_every_number_is_the_one_that_the_format_defines(kind: Type, tmp_path: Path) -> None:
    block, width = GGML_QUANT_SIZES[kind]
    file, tensor, raw = random_file(tmp_path / "raw", kind, 3, 2 if block > 1 else 40)
    define = DEFINITIONS[kind][0]
    wanted = [define(raw[at : at + width], index) for at in range(0, len(raw), width) for index in range(block)]
    found = read_tensor(file, tensor)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found.reshape(-1), wanted, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", [Type.F16, Type.Q4_1, Type.Q6_K], ids=lambda kind: kind.name)
def test_rows_are_those_of_the_whole(kind: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, tensor, _ = random_file(tmp_path / "raw", kind, 9, 3)
    whole = read_tensor(file, tensor)
    monkeypatch.setattr("ruvcompile.load.gguf_data._AT_ONCE", 2 * tensor.shape[1])  # two rows at a time
    np.testing.assert_array_equal(read_tensor(file, tensor), whole)
    for start in range(9):
        np.testing.assert_array_equal(read_rows(file, tensor, start, 9), whole[start:])
        np.testing.assert_array_equal(read_rows(file, tensor, 0, start), whole[:start])
