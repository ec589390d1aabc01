"""Activations that cross a link as float16: how far they are off, what is refused, and what a stage makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from ruvrun import frames
from ruvrun.bundle import StageSpec
from ruvrun.errors import InputError, IntegrityError
from ruvrun.executors import Array, Span
from ruvrun.manifest import Manifest, Tensor, dump_manifest, identify, load_manifest
from ruvrun.pipeline.halves import LARGEST, is_wide, narrowed, over_link, widened
from ruvrun.pipeline.worker import Worker
from tests.runtime.fakes import greedy
from tests.runtime.manifests import example as a_manifest

HALF = Tensor(name="hidden", dtype="float32", shape=["tokens", 4], wire="float16")
RELAYED = Tensor(name="early", dtype="float32", shape=["tokens", 4], wire="float16")
_floats = st.floats(-LARGEST, LARGEST, width=32)


@given(arrays.arrays(np.float32, st.integers(1, 40), elements=_floats))
@example(np.array([0.0, -0.0, LARGEST, -LARGEST, 2**-24, 2**-25, 1 + 2**-11], np.float32))
def test_what_was_rounded_and_widened_is_within_half_a_unit_in_the_last_place(sent: Array) -> None:
    came = over_link(HALF, sent)
    assert came.dtype == np.float32
    apart = np.abs(came.astype(np.float64) - sent)
    # A unit is 2^-10 of the power of two below the value, and 2^-24 where that is the least there is.
    unit = np.exp2(np.maximum(np.floor(np.log2(np.maximum(np.abs(sent.astype(np.float64)), 2.0**-30))), -14) - 10)
    assert (apart <= unit / 2).all()
    assert np.array_equal(over_link(HALF, came), came), "a value that was rounded is not rounded again"


@given(arrays.arrays(np.float32, (3, 4), elements=_floats))
def test_a_frame_carries_half_the_bytes_and_the_same_values(sent: Array) -> None:
    travelling = narrowed(HALF, sent)
    assert 2 * travelling.nbytes == sent.nbytes
    _, came = frames.decode(frames.encode(frames.Run(1, 0, 0), {"hidden": travelling}))
    assert isinstance(came["hidden"], np.ndarray)
    assert came["hidden"].dtype == np.float16
    assert np.array_equal(widened(HALF, came["hidden"]), over_link(HALF, sent))


@pytest.mark.parametrize("value", [65520.0, -65520.0, 1e5, -3.4e38])
def test_what_float16_cannot_hold_is_refused_by_its_magnitude_where_a_sample_must_fit(value: float) -> None:
    with pytest.raises(IntegrityError) as error:
        over_link(HALF, np.array([[1.0, value, 2.0, -70000.0 if abs(value) > 7e4 else 0.0]], np.float32))
    assert error.value.ref == "link-overflow"
    assert f"hidden has a value of magnitude {abs(value):.6g}" in error.value.message
    assert error.value.hint == "build with --link-type f32"


_any = st.floats(width=32) | st.sampled_from([65519.0, 65520.0, -1e5, 2.0**127])


@given(arrays.arrays(np.float32, st.tuples(st.integers(1, 6), st.just(4)), elements=_any))
def test_a_row_gets_the_same_whoever_is_in_its_company(sent: Array) -> None:
    """One that float16 cannot hold comes as it was; all others as they come alone."""
    came = narrowed(HALF, sent)
    alone = [narrowed(HALF, row[None]) for row in sent]
    assert (came.dtype == np.float32) == any(row.dtype == np.float32 for row in alone)
    assert is_wide(HALF, came) == (came.dtype == np.float32)
    for row, own, array in zip(sent, alone, widened(HALF, came), strict=True):
        assert np.array_equal(widened(HALF, own)[0], array, equal_nan=True)
        if own.dtype == np.float32:
            assert np.array_equal(array, row, equal_nan=True)
    assert not (np.isinf(widened(HALF, came)) & np.isfinite(sent)).any()


def test_what_is_no_number_already_is_nothing_that_the_link_did() -> None:
    sent = np.array([np.nan, np.inf, -np.inf, 65519.0], np.float32)
    came = over_link(HALF, sent)
    assert np.array_equal(came, np.array([np.nan, np.inf, -np.inf, LARGEST], np.float32), equal_nan=True)


def test_without_a_wire_type_nothing_is_touched() -> None:
    sent = np.array([1e30], np.float32)
    assert over_link(msgspec.structs.replace(HALF, wire=""), sent) is sent


class Doubles:
    """A decoder stage that gives twice what comes, and keeps nothing."""

    slots, context = 2, 8

    def __init__(self) -> None:
        self.came: list[Array] = []

    def step(self, spans: Sequence[Span], tensors: Mapping[str, Array]) -> dict[str, Array]:
        assert sum(span.count for span in spans) == len(tensors["hidden"])
        self.came.append(tensors["hidden"])
        return {"more": 2 * tensors["hidden"]}


def middle(sequences: int = 1) -> tuple[Worker, Doubles]:
    """A stage between two others, with so many sequences open; it reads ``hidden`` and only relays ``early``."""
    more = msgspec.structs.replace(HALF, name="more")
    spec = StageSpec(
        kind="decoder",
        backend="fake",
        target="fake",
        model="none",
        first=False,
        last=False,
        inputs=[HALF],
        outputs=[more],
        forward=["more", "early", "hidden"],
        files=[],
    )
    executor = Doubles()
    worker = Worker(executor, spec)
    for number in range(sequences):
        worker.handle(frames.Open(1, number, number, greedy()), {})
    return worker, executor


def a_step(number: int, position: int, sequences: int = 1) -> frames.Step:
    return frames.Step(1, number, tuple(frames.SeqStep(each, each, position, 1, 1) for each in range(sequences)))


def test_a_stage_computes_in_its_own_type_and_sends_and_relays_in_the_links() -> None:
    worker, executor = middle()
    came = {name: np.full((1, 4), value, np.float16) for name, value in (("hidden", 0.1), ("early", 0.3))}
    result = worker.handle(a_step(1, 0), came)
    assert result is not None
    assert executor.came[0].dtype == np.float32
    sent = result[1]
    assert {name: array.dtype for name, array in sent.items()} == dict.fromkeys(("more", "early", "hidden"), np.float16)
    assert sent["early"] is came["early"]
    assert sent["hidden"] is came["hidden"]
    assert np.array_equal(sent["more"], np.full((1, 4), 2 * np.float32(np.float16(0.1))).astype(np.float16))


def test_a_stage_refuses_an_activation_that_came_unrounded() -> None:
    worker, _ = middle()
    with pytest.raises(IntegrityError, match="hidden must be float16"):
        worker.handle(a_step(1, 0), {"hidden": np.zeros((1, 4), np.float32)})


def test_a_value_beyond_float16_is_passed_on_and_the_company_notices_nothing() -> None:
    """From stage to stage, until it is too large for the next one's own sum; what is only relayed stays as it came."""
    (worker, _), (behind, executor) = middle(2), middle(2)
    came = {name: np.array([[60000] * 4, [0.3] * 4], np.float16) for name in ("hidden", "early")}
    result = worker.handle(a_step(2, 0, 2), came)
    assert result is not None
    sent = result[1]
    assert {name: array.dtype for name, array in sent.items()} == {
        "more": np.float32, "early": np.float16, "hidden": np.float16,
    }  # fmt: skip
    assert np.array_equal(sent["more"][0], [120000] * 4)
    alone, _ = middle()
    other = alone.handle(a_step(1, 0), {name: array[1:] for name, array in came.items()})
    assert other is not None
    assert other[1]["more"].dtype == np.float16
    assert np.array_equal(sent["more"][1:], other[1]["more"])
    result = behind.handle(a_step(2, 0, 2), {"hidden": sent["more"], "early": sent["more"]})
    assert result is not None
    assert np.array_equal(executor.came[0], sent["more"])
    assert result[1]["early"] is sent["more"]
    assert worker.handle(a_step(3, 1, 2), came) is not None, "and the step after it goes on"


def rounding() -> Manifest:
    """A manifest whose one cut tensor is rounded."""
    made = a_manifest()
    first, second = made.stage
    half = msgspec.structs.replace(first.outputs[0], wire="float16")
    stages = [msgspec.structs.replace(first, outputs=[half]), msgspec.structs.replace(second, inputs=[half])]
    return msgspec.structs.replace(made, stage=stages, id=identify(made.program, stages, made.pipeline))


def test_the_wire_type_is_in_the_manifest_and_in_its_id(tmp_path: Path) -> None:
    plain, half = a_manifest(), rounding()
    assert half.id != plain.id
    (tmp_path / "manifest.toml").write_bytes(dump_manifest(half))
    assert load_manifest(tmp_path / "manifest.toml") == half
    assert b"wire" not in dump_manifest(plain), "who does not know it reads what does not need it"


def test_a_manifest_whose_wire_type_was_edited_away_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "manifest.toml"
    path.write_bytes(dump_manifest(rounding()).replace(b'wire = "float16"', b'wire = ""'))
    with pytest.raises(InputError, match="does not match its own id"):
        load_manifest(path)
    path.write_bytes(dump_manifest(rounding()).replace(b'wire = "float16"', b'wire = "float8"'))
    with pytest.raises(InputError, match="float8"):
        load_manifest(path)
