"""Compiled graphs beside the bundles of decoders, in the forms for GPUs and NPUs, on the CPU in their place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
import pytest

from ruvcompile.lower.weights import WeightStore
from ruvrun.bundle import COMPILED, NODE
from ruvrun.executors import DecoderExecutor, ShelvedExecutor, Span, load_decoder
from ruvrun.executors.openvino.devices import Device
from ruvrun.executors.openvino.forms import on_cpu
from tests.decoders import Stage, family_program
from tests.logits import CONTEXT, SLOTS, step, written

FORMS = {"openvino-gpu": ["stage"], "openvino-npu": ["4x4", "80x1"]}


@pytest.fixture(scope="module")
def forms(folder) -> dict[str, list[Stage]]:
    """Two stages of each form, as bundles, without rotary embeddings: what a CPU exports of those is no use."""
    program, store = family_program("smollm3", "int4", accuracy=1, no_rope_layers=[0] * 5), WeightStore(folder / "w")
    found = {form: written(program, (3,), folder, store, form) for form in FORMS}
    for path, _ in chain(*found.values()):
        (path / NODE).mkdir()
    return found


def loaded(stages: Sequence[Stage], *, slots: int = SLOTS) -> list[DecoderExecutor]:
    """As whoever serves loads them."""
    made = [load_decoder(path, on_cpu(spec), context=CONTEXT, slots=slots, threads=1) for path, spec in stages]
    for each in made:
        assert isinstance(each, ShelvedExecutor)
        each.shelf.keep()
    return made


def said(executors: Sequence[DecoderExecutor]) -> np.ndarray:
    """What is said after a prompt of 40 tokens, eight times: all that the graphs that are kept can be asked for."""
    return np.concatenate(
        [step(executors, Span(1, 0, 40, 1)), *(step(executors, Span(1, 40 + n, 1, 1)) for n in range(8))]
    )


def notes(executor: DecoderExecutor) -> list[str]:
    assert isinstance(executor, ShelvedExecutor)
    return executor.shelf.notes


@pytest.mark.parametrize("form", FORMS)
def test_a_decoders_second_start_reads_no_graph_and_says_the_same(form, forms, monkeypatch) -> None:
    first = loaded(forms[form])
    for path, _ in forms[form]:
        assert sorted(each.stem for each in (path / COMPILED).glob("*.blob")) == FORMS[form]
    module = f"ruvrun.executors.{form.replace('-', '.')}"
    monkeypatch.setattr(f"{module}.map_stage", lambda *_: pytest.fail("the graph was read"))
    second = loaded(forms[form])
    assert [notes(each) for each in second] == [[], []]
    assert np.array_equal(said(second), said(first))


@pytest.mark.parametrize("form", FORMS)
def test_a_decoder_of_another_driver_is_compiled_anew(form, forms, monkeypatch) -> None:
    wanted = said(loaded(forms[form]))
    module = f"ruvrun.executors.{form.replace('-', '.')}"
    monkeypatch.setattr(f"{module}.described", lambda _, name: Device(name, "a CPU", "32.1"))
    for _ in range(2):
        again = loaded(forms[form])
    assert [notes(each) for each in again] == [[], []], "what was compiled took its place"
    monkeypatch.setattr(f"{module}.described", lambda _, name: Device(name, "a CPU", "33.2"))
    third = loaded(forms[form])
    for each in third:
        assert len(notes(each)) == len(FORMS[form])
        assert all("made with driver 32.1, this is 33.2; compiling anew" in note for note in notes(each))
    assert np.array_equal(said(third), wanted)


@pytest.mark.parametrize("form", FORMS)
def test_a_cpu_that_stands_in_keeps_no_rotary_embedding(form, tmp_path) -> None:
    """What it exports of one is imported without complaint, and computes something else."""
    stages = written(family_program("llama", "int4"), (), tmp_path, WeightStore(tmp_path / "w"), form)
    ((path, _),) = stages
    (path / NODE).mkdir()
    loaded(stages)
    assert list((path / COMPILED).iterdir()) == []


def test_graphs_of_other_sizes_do_not_stay(forms) -> None:
    """An NPU's are of the space that it is given, and each is as large as the weights."""
    stages = forms["openvino-npu"]
    loaded(stages)
    other = loaded(stages, slots=3)
    assert all("made for tokens 80, positions 320, rows 1, this is " in notes(each)[0] for each in other)
    for path, _ in stages:
        assert sorted(each.name for each in (path / COMPILED).iterdir()) == [
            "3x3.blob", "3x3.toml", "80x1.blob", "80x1.toml"
        ]  # fmt: skip
