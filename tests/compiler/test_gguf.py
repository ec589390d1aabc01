"""A GGUF file is read right, or refused with one error; no damage to it gives anything else."""

from __future__ import annotations

import contextlib
import math
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from ruvcompile.load.gguf import load_gguf, program_name
from ruvcompile.load.gguf_data import read_tensor
from ruvcompile.load.gguf_file import BITS, GgufFile, StoredTensor, open_gguf
from ruvrun.errors import InputError
from tests.models import smollm2_path, write_tiny_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


def header_end(path: Path) -> int:
    return min(tensor.offset for tensor in open_gguf(path, "tiny").tensors.values())


def refusal(path: Path) -> InputError:
    """The error that loading ``path`` gives; it has all that an error needs."""
    with pytest.raises(InputError) as caught:
        load_gguf(path, "the-model.gguf")
    error = caught.value
    assert error.exit_code == 3
    assert error.hint
    assert "the-model.gguf" in str(error) or "tensor" in error.message
    return error


def rewrite(source: Path, target: Path, **changes: Any) -> Path:
    """A copy of a GGUF file with metadata keys changed (``__`` for a dot), or left out where the value is None."""
    file = open_gguf(source, "source")
    keys = {key.replace("__", "."): value for key, value in changes.items()}
    writer = gguf.GGUFWriter(target, str(keys.pop("general.architecture", file.architecture)))
    for key, value in {**file.metadata, **keys}.items():
        if key == "general.architecture" or value is None:
            continue
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case float():
                writer.add_float32(key, value)
            case str():
                writer.add_string(key, value)
            case _:
                writer.add_array(key, value)
    for tensor in file.tensors.values():
        block, width = GGML_QUANT_SIZES[tensor.type]
        shape = (*tensor.shape[:-1], tensor.shape[-1] // block * width)
        raw = np.fromfile(source, np.uint8, tensor.nbytes, offset=tensor.offset)
        data = raw.view(np.float32) if tensor.type is GGMLQuantizationType.F32 else raw.reshape(shape)
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def test_metadata_and_tensors_are_those_of_the_reference_reader(tiny: Path) -> None:
    ours, theirs = open_gguf(tiny, "tiny"), gguf.GGUFReader(tiny)
    fields = {name: field.contents() for name, field in theirs.fields.items() if not name.startswith("GGUF.")}
    assert dict(ours.metadata) == fields
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        mine = ours.tensors[tensor.name]
        assert (mine.type, mine.offset, mine.nbytes) == (tensor.tensor_type, tensor.data_offset, tensor.n_bytes)
        assert mine.shape == tuple(reversed(tensor.shape.tolist()))
        wanted = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(read_tensor(ours, mine), wanted.reshape(mine.shape))


@pytest.mark.parametrize("kind", sorted(BITS), ids=lambda kind: kind.name)
def test_every_type_that_is_said_to_be_readable_is(kind: GGMLQuantizationType, tmp_path: Path) -> None:
    block, width = GGML_QUANT_SIZES[kind]
    path = tmp_path / "raw"
    path.write_bytes(np.random.default_rng(0).integers(0, 60, 3 * 2 * width, np.uint8).tobytes())
    stored = StoredTensor("t", kind, (3, 2 * block), 0, 3 * 2 * width)
    values = read_tensor(GgufFile(path, "raw", {}, {"t": stored}), stored)
    assert values.shape == (3, 2 * block)
    assert values.dtype == np.float32
    assert BITS[kind] <= math.ceil(width * 8 / block)  # bits of the values alone, never more than with their scales


def test_a_cut_off_file_is_refused_wherever_it_is_cut(tiny: Path, tmp_path: Path) -> None:
    whole, end = tiny.read_bytes(), header_end(tiny)
    path = tmp_path / "cut.gguf"
    for length in [*range(4, 200), *range(200, end, 97), end, end + 1, len(whole) // 2, len(whole) - 33]:
        path.write_bytes(whole[:length])
        error = refusal(path)
        assert error.ref == "gguf-truncated", f"cut to {length} bytes"
    path.write_bytes(whole)
    load_gguf(path, "whole")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damage_in_the_header_gives_an_error_of_ours_or_a_model_and_nothing_else(
    tiny: Path, data: st.DataObject
) -> None:
    whole, end = bytearray(tiny.read_bytes()), header_end(tiny)
    path = tiny.with_name("damaged.gguf")
    # Most of the header is the vocabulary: damage half of the time where counts and keys are.
    at = data.draw(st.one_of(st.integers(0, 900), st.integers(end - 1500, end - 9), st.integers(0, end - 9)))
    whole[at : at + 8] = data.draw(
        st.one_of(st.binary(min_size=8, max_size=8), st.just(b"\xff" * 8), st.just(bytes(8)))
    )
    path.write_bytes(whole)
    with contextlib.suppress(InputError):
        load_gguf(path, "damaged")


@pytest.mark.parametrize(
    ("where", "what"), [(8, "the tensor count"), (16, "the pair count"), (24, "the length of the first key")]
)
def test_a_count_beyond_the_file_allocates_nothing(where: int, what: str, tiny: Path, tmp_path: Path) -> None:
    whole = bytearray(tiny.read_bytes())
    whole[where : where + 8] = struct.pack("<Q", 2**63)
    path = tmp_path / "huge.gguf"
    path.write_bytes(whole)
    tracemalloc.start()
    try:
        assert refusal(path).ref in ("gguf-truncated", "gguf-damaged"), what
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_an_array_longer_than_the_file_allocates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "array.gguf"
    key = b"tokenizer.ggml.scores"
    for inner in (0, 6, 8, 9):
        path.write_bytes(
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, len(key)) + key + struct.pack("<IIQ", 9, inner, 2**60) + bytes(64)
        )
        assert refusal(path).ref in ("gguf-truncated", "gguf-damaged")


def test_what_is_not_a_model_file(tmp_path: Path) -> None:
    path = tmp_path / "page.gguf"
    for content in (b"", b"GG", b"<html>not found</html>", b"PK\x03\x04zip"):
        path.write_bytes(content)
        assert refusal(path).ref == "gguf-not"
    assert refusal(tmp_path).ref == "gguf-not"
    assert refusal(tmp_path / "nothing.gguf").ref == "file-missing"


@pytest.mark.parametrize(("version", "says"), [(1, "version 1"), (4, "version 4"), (3 << 24, "big-endian")])
def test_another_version_is_refused_by_its_number(version: int, says: str, tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    whole = tiny.read_bytes()
    path.write_bytes(whole[:4] + struct.pack("<I", version) + whole[8:])
    error = refusal(path)
    assert error.ref == "gguf-version"
    assert says in error.message


def test_an_unknown_quantisation_is_refused_with_those_that_are_known(tiny: Path, tmp_path: Path) -> None:
    whole = bytearray(tiny.read_bytes())
    at = whole.index(b"blk.0.attn_q.weight") + len(b"blk.0.attn_q.weight") + 4 + 16
    for number, says in ((9, "Q8_1"), (999, "number 999")):
        whole[at : at + 4] = struct.pack("<I", number)
        path = tmp_path / "type.gguf"
        path.write_bytes(whole)
        error = refusal(path)
        assert error.ref == "gguf-quantisation-unknown"
        assert says in error.message
        assert "Q4_1" in error.context[0]


def test_an_unsupported_architecture_is_refused_with_those_that_are(tmp_path: Path) -> None:
    error = refusal(write_tiny_gguf(tmp_path / "m.gguf", architecture="mamba"))
    assert error.ref == "model-unsupported"
    assert "'mamba'" in error.message
    assert "llama" in error.context[0]


def test_experts_are_refused_by_name(tiny: Path, tmp_path: Path) -> None:
    assert "8 experts" in refusal(rewrite(tiny, tmp_path / "moe.gguf", llama__expert_count=8)).message
    other = write_tiny_gguf(tmp_path / "m.gguf", architecture="qwen2moe")
    error = refusal(rewrite(other, tmp_path / "q.gguf", qwen2moe__expert_count=60))
    assert "60 experts" in str(error)


@pytest.mark.parametrize(
    "key",
    [
        "llama__block_count", "llama__context_length", "llama__embedding_length", "llama__feed_forward_length",
        "llama__attention__head_count", "llama__attention__layer_norm_rms_epsilon",
        "tokenizer__ggml__model", "tokenizer__ggml__tokens", "tokenizer__ggml__merges",
    ],
)  # fmt: skip
def test_a_missing_key_is_named(key: str, tiny: Path, tmp_path: Path) -> None:
    error = refusal(rewrite(tiny, tmp_path / "m.gguf", **{key: None}))
    assert error.ref == "gguf-key-missing"
    assert key.replace("__", ".") in error.message


@pytest.mark.parametrize(
    ("changes", "ref"),
    [
        ({"llama__block_count": "three"}, "gguf-key-wrong"),
        ({"llama__block_count": 0}, "gguf-key-wrong"),
        ({"llama__block_count": 4}, "tensor-missing"),
        ({"llama__block_count": 2**32 - 1}, "config-wrong"),
        ({"llama__block_count": 2}, "model-unsupported"),  # the third layer's tensors would be ignored
        ({"llama__feed_forward_length": 128}, "tensor-shape-wrong"),
        ({"llama__embedding_length": 128}, "gguf-metadata-wrong"),
        ({"llama__attention__head_count": 3}, "gguf-metadata-wrong"),
        ({"llama__attention__head_count_kv": 3}, "gguf-metadata-wrong"),
        ({"llama__attention__head_count_kv": 1}, "tensor-shape-wrong"),
        ({"llama__attention__key_length": 2**31}, "gguf-metadata-wrong"),
        ({"llama__vocab_size": 301}, "tokenizer-wrong"),
        ({"llama__rope__scaling__type": "yarn"}, "gguf-key-missing"),  # without a factor
        ({"llama__rope__scaling__type": "dynamic"}, "model-unsupported"),
        ({"llama__rope__scaling__type": "longrope"}, "model-unsupported"),  # without its factors
        (
            {
                "llama__rope__scaling__type": "yarn",
                "llama__rope__scaling__factor": 4.0,
                "llama__rope__scaling__yarn_ext_factor": 0.5,
            },
            "model-unsupported",
        ),
        ({"llama__rope__dimension_count": 7}, "gguf-metadata-wrong"),
        ({"llama__rope__dimension_count": 32}, "gguf-metadata-wrong"),
        ({"general__type": "adapter"}, "model-unsupported"),
        ({"llama__attention__causal": False}, "model-unsupported"),
        ({"tokenizer__ggml__add_bos_token": "false"}, "gguf-key-wrong"),
        ({"split__count": 3}, "gguf-split"),
    ],
)
def test_metadata_that_does_not_fit_is_refused(changes: dict[str, Any], ref: str, tiny: Path, tmp_path: Path) -> None:
    assert refusal(rewrite(tiny, tmp_path / "m.gguf", **changes)).ref == ref


def test_the_name_of_a_program_is_that_of_its_file_without_the_quantisation() -> None:
    assert program_name(Path("a/SmolLM2-135M-Instruct.Q4_1.gguf")) == "SmolLM2-135M-Instruct"
    assert program_name(Path("Qwen2.5-Coder-1.5B-Instruct-q4_k_m.gguf")) == "Qwen2.5-Coder-1.5B-Instruct"
    assert program_name(Path("Meta-Llama-3.1-8B-IQ4_XS.gguf")) == "Meta-Llama-3.1-8B"
    assert program_name(Path("tiny-f16.gguf")) == "tiny"
    assert program_name(Path("q4_0.gguf")) == "q4_0"
    assert program_name(Path("gpt-q.gguf")) == "gpt-q"
    assert program_name(Path("TINY-Q4_0.GGUF")) == "TINY"


@pytest.mark.model
def test_the_real_model_is_described_without_its_weights_in_memory() -> None:
    path = smollm2_path()
    tracemalloc.start()
    try:
        program = load_gguf(path, "models/SmolLM2.gguf")
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 40 << 20, "more than the vocabulary and the graph is held"
    assert peak < 80 << 20
    assert program.name == "SmolLM2-135M-Instruct"
    assert program.source.path == "models/SmolLM2.gguf"
    assert program.source.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    decoder = program.decoder
    assert decoder is not None
    sizes = (decoder.layers, decoder.hidden, decoder.heads, decoder.kv_heads, decoder.head_size)
    assert sizes == (30, 576, 9, 3, 64)
    assert (decoder.vocab, decoder.context, decoder.architecture) == (49152, 8192, "llama")
    assert decoder.eos == (0, 2)
    bits = {name: value.metadata_props["ruv.bits"] for name, value in program.model.graph.initializers.items()}
    assert bits["embed.weight"] == bits["head.weight"] == "8"
    assert bits["layers.29.mlp.down_proj.weight"] == "4"
    assert bits["final_norm.weight"] == "32"
