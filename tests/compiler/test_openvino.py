"""Stages on OpenVINO: the tokens of the uncut model, whatever the cut, the chunks and the company; the right ones."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import msgspec
import numpy as np
import openvino as ov
import pytest

from ruvcompile import passes
from ruvcompile.errors import InputError
from ruvcompile.load import load
from ruvcompile.lower.sheet import Keyed
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import pieces, program_units, unit_keys
from ruvcompile.passes.quantise import quantise
from ruvcompile.program import Program
from ruvrun.executors import Span, load_decoder
from ruvrun.executors.openvino.cpu import OPTIONS
from ruvrun.executors.openvino.cpu.paged import PagedDecoder
from ruvrun.executors.openvino.forms import on_cpu
from ruvrun.manifest.blocks import BLOCK
from ruvrun.profile.sheet import load_sheet
from tests.decoders import family_program, tiny_program
from tests.logits import CONTEXT, answer, opened, step, written
from tests.models import smollm2_path

# Every weight that lowering tells apart: windows, biases, norms by head, norms behind, layers without rotary.
FAMILIES = ("mistral", "qwen2", "phi3-long", "gemma3", "smollm3")


@pytest.fixture(scope="module")
def program(folder) -> Program:
    return tiny_program(folder, layers=2, ffn=128)


SIZES = [40, *[1] * 20]


@pytest.mark.parametrize("kv", ["f32", "u8"])
def test_every_cut_computes_what_the_uncut_model_does(program, folder, store, kv) -> None:
    whole = answer(opened(written(program, (), folder, store, kv=kv)), SIZES)
    count = len(program_units(program))
    for cuts in [*((cut,) for cut in range(1, count)), tuple(range(1, count))]:
        assert np.array_equal(answer(opened(written(program, cuts, folder, store, kv=kv)), SIZES), whole), cuts


@pytest.mark.parametrize("kv", ["f32", "u8", "f16"])
def test_only_the_mode_of_a_position_matters(program, folder, store, kv) -> None:
    """Chunks of two or more, the slot, company, a prompt beside, a rewind: none of them changes a bit."""
    decoders = opened(written(program, (3,), folder, store, kv=kv))
    prompt = answer(decoders, [40])
    for sizes in ([20, 20], [2] * 20, [33, 7], [5, 35]):
        assert np.array_equal(answer(decoders, sizes, 1), prompt), sizes
    alone = {}
    for slot in range(3):
        answer(decoders, [30 + slot], slot)
        alone[slot] = [step(decoders, Span(slot, 30 + slot + n, 1, 1))[0] for n in range(6)]
    for n in range(6):
        rows = step(decoders, *(Span(slot, 30 + slot + n, 1, 1) for slot in range(3)))
        assert all(np.array_equal(rows[slot], alone[slot][n]) for slot in range(3)), n
    fourth = answer(decoders, [9], 3)[-1]
    mixed = step(decoders, Span(0, 30, 1, 1), Span(2, 32, 1, 0), Span(3, 0, 9, 1))
    assert np.array_equal(mixed, [alone[0][0], fourth])
    assert step(decoders, Span(0, 30, 1, 0), Span(1, 31, 1, 0)).shape == (0, 300)


def test_there_is_no_row_alone_where_that_would_change_it(tmp_path) -> None:
    """Four-bit weights, activations as they are: a product with one row adds up in another order."""
    program = family_program("llama", "int4", accuracy=1)
    decoders = opened(written(program, (), tmp_path, WeightStore(tmp_path / "store")))
    answer(decoders, [20], 0)
    answer(decoders, [25], 1)
    alone = [step(decoders, Span(0, 20, 1, 1)), step(decoders, Span(1, 25, 1, 1))]
    assert np.array_equal(step(decoders, Span(0, 20, 1, 1), Span(1, 25, 1, 1)), np.concatenate(alone))
    (decoder,) = decoders
    least, decoder._least = decoder._least, 1
    same = np.array_equal(step(decoders, Span(0, 20, 1, 1)), alone[0])
    assert least == (1 if same else 2), "it has a companion where this machine's kernels want one, and nowhere else"


def test_arrays_are_kept_for_small_steps_and_not_for_ever(program, folder, store, monkeypatch) -> None:
    decoders = opened(written(program, (), folder, store))
    (decoder,) = decoders
    assert isinstance(decoder, PagedDecoder)
    answer(decoders, [40], 1)
    assert max(tokens for _, tokens, _ in decoder._calls) <= 2
    monkeypatch.setattr("ruvrun.executors.openvino.cpu.paged._CALLS_KEPT", 2)
    first = [answer(decoders, [size], 1)[-1] for size in (5, 6, 7, 8)]
    assert len(decoder._calls) <= 3
    assert all(
        np.array_equal(answer(decoders, [size], 1)[-1], row) for size, row in zip((5, 6, 7, 8), first, strict=True)
    )


@pytest.mark.parametrize("kv", ["f32", "u8", "f16"])
def test_the_pool_is_as_large_as_was_planned(program, folder, store, kv) -> None:
    """Whole blocks for the context of every slot, and one for the companion: what the plan takes it for."""
    stages = written(program, (), folder, store, kv=kv)
    ((_, spec),) = stages
    (decoder,) = opened(stages, context=70, slots=3)
    assert isinstance(decoder, PagedDecoder)
    assert spec.kv is not None
    held = sum(pool.nbytes for pool in decoder._kv.values())
    assert held == spec.kv.bytes_per_token * BLOCK * (3 * 3 + 1)


@pytest.mark.parametrize(("backend", "module"), [("openvino", "cpu"), ("openvino-gpu", "gpu"), ("openvino-npu", "npu")])
def test_a_stage_has_run_before_it_is_asked(program, folder, store, backend, module, monkeypatch) -> None:
    """Weights are packed, and kernels made, in the first call: it is made while the node joins."""
    ran: list[str] = []
    infer, start = ov.InferRequest.infer, ov.InferRequest.start_async

    def told(call, name):  # type: ignore[no-untyped-def]
        return lambda *given, **named: (ran.append(name), call(*given, **named))[1]

    monkeypatch.setattr(ov.InferRequest, "infer", told(infer, "infer"))
    monkeypatch.setattr(ov.InferRequest, "start_async", told(start, "start"))
    opened(written(program, (3,), folder, store, backend))
    assert len(ran) >= 2
    del ran[:]
    load = importlib.import_module(f"ruvrun.executors.openvino.{module}").open_decoder
    path, spec = written(program, (), folder, store, backend)[0]
    load(path, on_cpu(spec), context=CONTEXT, slots=1, threads=1)
    assert ran == [], "who measures wants it cold"


def test_what_lies_in_the_pool_is_never_seen(program, folder, store) -> None:
    decoders = opened(written(program, (), folder, store))
    wanted = answer(decoders, SIZES, 2)
    (decoder,) = decoders
    assert isinstance(decoder, PagedDecoder)
    pools = decoder._kv.values()
    for pool in pools:
        pool[:] = 1e30
    assert np.array_equal(answer(decoders, SIZES, 2), wanted)
    for pool in pools:  # three blocks of a slot, twelve of all, and the companion's
        assert (pool[:6] == np.float32(1e30)).all()
        assert (pool[6:8] != np.float32(1e30)).any()
        assert (pool[9:12] == np.float32(1e30)).all()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_computes_what_it_does_on_the_other_back_end(name, tmp_path) -> None:
    """The same weights, activations as they are: the last digits differ, no more. Windows are shorter than the text."""
    program = family_program(name, "int4", accuracy=1)
    store = WeightStore(tmp_path / "store")
    theirs = answer(opened(written(program, (), tmp_path, store, backend="onnxruntime")), SIZES)
    stages = written(program, (3,), tmp_path, store)
    ours = answer(opened(stages), SIZES)
    assert np.abs(ours - theirs).max() <= 1e-5 * max(1.0, np.abs(theirs).max())
    assert stages[0][1].options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == "0"


@pytest.mark.parametrize("quant", ["int8", "none"])
def test_weights_of_other_widths_are_taken_too(quant, tmp_path) -> None:
    program, store = family_program("llama", quant, accuracy=1), WeightStore(tmp_path / "store")
    theirs = answer(opened(written(program, (), tmp_path, store, backend="onnxruntime")), SIZES)
    ours = answer(opened(written(program, (), tmp_path, store)), SIZES)
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(theirs).max()


def test_a_stage_is_the_same_bytes_every_time(program, folder, store, tmp_path) -> None:
    units = program_units(program)
    (piece,) = pieces(program, units, ())
    keyed = Keyed(units, unit_keys(program, units))
    found = []
    for name in ("one", "other"):
        own = WeightStore(tmp_path / f"store-{name}")
        path = tmp_path / name
        write_stage(program, piece, path, own, backend="openvino", target="host", keyed=keyed)
        found.append({str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()})
    assert found[0] == found[1]
    assert b'name="/layers.1/attn/' in found[0]["stage.xml"]


def test_every_unit_of_every_stage_has_layers_that_are_called_after_it(program, store, tmp_path) -> None:
    units = program_units(program)
    keyed = Keyed(units, unit_keys(program, units))
    for number, piece in enumerate(pieces(program, units, range(1, len(units)))):
        path = tmp_path / f"{number}"
        spec = write_stage(program, piece, path, store, backend="openvino", target="host", keyed=keyed)
        (unit,) = load_sheet(path, spec).unit
        assert unit.key == keyed.keys[number]
        assert unit.nodes


def test_a_moved_cut_copies_only_what_moved(tmp_path) -> None:
    program, store = family_program("llama", "int4"), WeightStore(tmp_path / "store")

    def files(cuts: Sequence[int]) -> list[set[str]]:
        stages = written(program, cuts, tmp_path, store)
        return [{file.sha256 for file in spec.files if file.path.startswith("weights/")} for _, spec in stages]

    (whole,) = files(())
    first, second = files((3,))
    early, late = files((5,))
    for stage in (first, second, early, late):  # shapes and axes are a file of the stage
        assert len(stage - whole) == 1
    assert first & whole < early & whole
    assert late & whole < second & whole
    assert (first | second) & whole == (early | late) & whole
    assert len((first & second) - {max(first & second)}) == 1, "the tied embedding and the rotary tables"


def test_what_decides_a_result_stands_in_the_bundle(program, folder, store) -> None:
    ((_, spec),) = written(program, (), folder, store, kv="u8")
    assert set(spec.options) == set(OPTIONS)
    assert spec.options["KEY_CACHE_QUANT_MODE"] == "BY_TOKEN"
    assert spec.options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == "32"
    assert spec.kv is not None
    assert spec.kv.dtype == "uint8"


def test_an_option_of_a_stranger_is_refused(program, folder, store) -> None:
    ((path, spec),) = written(program, (), folder, store)
    wrong = msgspec.structs.replace(spec, options={**spec.options, "CACHE_DIR": "/"})
    with pytest.raises(InputError, match="CACHE_DIR"):
        load_decoder(path, wrong, context=CONTEXT, slots=1, threads=1)


def test_what_openvino_does_not_compute_is_named(tmp_path) -> None:
    program = family_program("gemma2", "int4")
    with pytest.raises(InputError, match="caps attention scores") as error:
        written(program, (), tmp_path, WeightStore(tmp_path / "store"))
    assert error.value.exit_code == 3
    assert "onnxruntime" in str(error.value.hint)
    with pytest.raises(InputError, match="u4"):
        written(family_program("llama"), (), tmp_path, WeightStore(tmp_path / "other"), kv="u4")


def test_a_layer_that_does_not_become_paged_is_told(program, folder, store, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("ruvrun.executors.openvino.cpu.attention.OPERATION", "another")
    with pytest.raises(InputError, match="does not make paged") as error:
        written(program, (), tmp_path, store)
    assert "0 of 2 layers" in error.value.context[0]


@pytest.mark.model
def test_smollm2_says_what_it_should(tmp_path) -> None:
    program = quantise(passes.run(load(str(smollm2_path()))), "auto")
    stages = written(program, (), tmp_path, WeightStore(tmp_path / "store"), kv="u8")
    decoder = load_decoder(*stages[0], context=64, slots=1, threads=2)
    tokens, at = [504, 3575, 282, 4649, 314], 0
    found = []
    for _ in range(8):
        row = decoder.step([Span(0, at, len(tokens), 1)], {"input_ids": np.array(tokens)})["logits"][0]
        at += len(tokens)
        tokens = [int(row.argmax())]
        found += tokens
    assert found[:1] == [7042]  # The capital of France is Paris
