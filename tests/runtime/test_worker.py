"""One stage without links: order of messages, faults, relaying, counting."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import msgspec
import numpy as np
import pytest

from ruvrun import frames
from ruvrun.bundle import StageSpec
from ruvrun.errors import InputError, IntegrityError
from ruvrun.executors import Array
from ruvrun.manifest import Tensor
from ruvrun.pipeline.meter import SAMPLED, Meter
from ruvrun.pipeline.worker import Worker
from tests.runtime.fakes import FakeDecoder, fake_spec, greedy, logits_of, mix


def ids(*values: int) -> dict[str, Array]:
    return {"input_ids": np.array(values, np.int64)}


def whole(slots: int = 2, context: int = 8) -> Worker:
    """A pipeline of one stage, with sequence 5 open."""
    worker = Worker(FakeDecoder(0, 4, slots=slots, context=context), fake_spec(0, 4))
    assert worker.handle(frames.Open(3, 0, 5, greedy()), {}) is None
    return worker


def step(number: int, *seqs: frames.SeqStep, epoch: int = 3) -> frames.Step:
    return frames.Step(epoch, number, seqs)


def test_the_last_stage_returns_a_token_for_each_row_asked_for() -> None:
    worker = whole()
    assert worker.handle(step(1, frames.SeqStep(5, 0, 0, 2, 0)), ids(1, 2)) == (frames.Sampled(3, 1, ()), {})
    state, states = 0, [0] * 4
    for token, single in ((1, 0), (2, 0), (9, 1)):
        state = token
        for layer in range(4):
            state = states[layer] = mix(layer, states[layer], state, single)
    result = worker.handle(step(2, frames.SeqStep(5, 0, 2, 1, 1)), ids(9))
    assert result == (frames.Sampled(3, 2, ((5, (int(logits_of(state, 9).argmax()),)),)), {})
    assert worker.handle(frames.Close(3, 3, 5), {}) is None
    assert not worker._open


def test_a_stage_in_the_middle_passes_everything_on_and_relays_what_it_does_not_need() -> None:
    worker = Worker(FakeDecoder(1, 3, slots=1, context=8), fake_spec(1, 3))
    opened = frames.Open(1, 0, 0, greedy())
    assert worker.handle(opened, {}) == (opened, {})
    message = step(1, frames.SeqStep(0, 0, 0, 2, 1), epoch=1)
    echo = np.array([8, 9], np.int64)
    result = worker.handle(message, {"hidden.1": np.array([3, 4], np.int64), "echo": echo})
    assert result is not None
    assert result[0] == message
    assert sorted(result[1]) == ["echo", "hidden.3"]
    assert result[1]["echo"] is echo
    closed = frames.Close(1, 2, 0)
    assert worker.handle(closed, {}) == (closed, {})


def test_a_relayed_tensor_that_did_not_come_is_a_fault() -> None:
    worker = Worker(FakeDecoder(1, 3, slots=1, context=8), fake_spec(1, 3))
    worker.handle(frames.Open(1, 0, 0, greedy()), {})
    with pytest.raises(IntegrityError, match="echo"):
        worker.handle(step(1, frames.SeqStep(0, 0, 0, 1, 1), epoch=1), {"hidden.1": np.array([3], np.int64)})


FAULTS: dict[str, tuple[frames.Message, dict[str, Array]]] = {
    "a gap": (step(2, frames.SeqStep(5, 0, 0, 1, 1)), ids(1)),
    "a repetition": (step(0, frames.SeqStep(5, 0, 0, 1, 1)), ids(1)),
    "not open": (step(1, frames.SeqStep(6, 0, 0, 1, 1)), ids(1)),
    "opened twice": (frames.Open(3, 1, 5, greedy()), {}),
    "closed but not open": (frames.Close(3, 1, 6), {}),
    "a gap of positions": (step(1, frames.SeqStep(5, 0, 1, 1, 1)), ids(1)),
    "a negative position": (step(1, frames.SeqStep(5, 0, -1, 1, 1)), ids(1)),
    "no tokens": (step(1, frames.SeqStep(5, 0, 0, 0, 1)), ids()),
    "beyond the context": (step(1, frames.SeqStep(5, 0, 0, 9, 1)), ids(*range(9))),
    "two rows": (step(1, frames.SeqStep(5, 0, 0, 2, 2)), ids(1, 2)),
    "a slot too high": (step(1, frames.SeqStep(5, 2, 0, 1, 1)), ids(1)),
    "a negative slot": (step(1, frames.SeqStep(5, -1, 0, 1, 1)), ids(1)),
    "a slot twice": (step(1, frames.SeqStep(5, 0, 0, 1, 1), frames.SeqStep(5, 0, 0, 1, 1)), ids(1, 1)),
    "an empty step": (step(1), ids()),
    "no tensor": (step(1, frames.SeqStep(5, 0, 0, 1, 1)), {}),
    "too few tokens": (step(1, frames.SeqStep(5, 0, 0, 2, 1)), ids(1)),
    "another type": (step(1, frames.SeqStep(5, 0, 0, 1, 1)), {"input_ids": np.array([1], np.int32)}),
    "another shape": (step(1, frames.SeqStep(5, 0, 0, 1, 1)), {"input_ids": np.array([[1]], np.int64)}),
    "a graph's message": (frames.Run(3, 1, 0), ids(1)),
}


def test_no_more_sequences_are_open_than_there_are_slots() -> None:
    worker = whole(slots=2)
    worker.handle(frames.Open(3, 1, 6, greedy()), {})
    worker.handle(frames.Close(3, 2, 5), {})
    worker.handle(frames.Open(3, 3, 7, greedy()), {})
    with pytest.raises(IntegrityError, match="every slot"):
        worker.handle(frames.Open(3, 4, 8, greedy()), {})


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_computes_nothing_and_ends_the_epoch(what: str) -> None:
    worker = whole()
    with pytest.raises(IntegrityError):
        worker.handle(*FAULTS[what])
    assert isinstance(worker._executor, FakeDecoder)
    assert worker._executor.windows == []
    for number in range(3):
        assert worker.handle(step(number, frames.SeqStep(5, 0, 0, 1, 1)), ids(1)) is None, "the rest is dropped"
    worker.handle(frames.Open(4, 0, 5, greedy()), {})
    assert worker.handle(step(1, frames.SeqStep(5, 1, 0, 1, 1), epoch=4), ids(1)) is not None


def test_a_sequence_may_not_change_its_slot() -> None:
    worker = whole()
    worker.handle(step(1, frames.SeqStep(5, 0, 0, 1, 1)), ids(1))
    with pytest.raises(IntegrityError, match="slot"):
        worker.handle(step(2, frames.SeqStep(5, 1, 1, 1, 1)), ids(1))


def test_what_is_no_ring_message_is_a_fault() -> None:
    with pytest.raises(IntegrityError):
        whole().handle(frames.Sampled(3, 1, ()), {})


def test_a_higher_epoch_starts_from_nothing_and_an_older_one_is_dropped() -> None:
    worker = whole()
    worker.handle(step(1, frames.SeqStep(5, 0, 0, 2, 0)), ids(1, 2))
    worker.handle(frames.Open(7, 0, 6, greedy()), {})
    assert worker._open.keys() == {6}
    assert worker.handle(step(2, frames.SeqStep(5, 0, 2, 1, 1)), ids(3)) is None
    with pytest.raises(IntegrityError, match="not open"):
        worker.handle(step(1, frames.SeqStep(5, 0, 2, 1, 1), epoch=7), ids(3))


def test_a_new_stage_that_joins_in_the_middle_of_an_epoch_refuses_it() -> None:
    worker = Worker(FakeDecoder(0, 4, slots=1, context=8), fake_spec(0, 4))
    with pytest.raises(IntegrityError):
        worker.handle(step(9, frames.SeqStep(5, 0, 0, 1, 1)), ids(1))


def test_an_executor_that_fails_ends_the_epoch() -> None:
    worker = whole()
    good = worker._executor

    class Broken:
        slots, context = 2, 8

        def step(self, *_: object) -> dict[str, Array]:
            raise RuntimeError("out of memory")

    worker._executor = Broken()
    with pytest.raises(RuntimeError):
        worker.handle(step(1, frames.SeqStep(5, 0, 0, 2, 1)), ids(1, 2))
    worker._executor = good
    assert worker.handle(step(2, frames.SeqStep(5, 0, 2, 1, 1)), ids(3)) is None
    assert worker.meter.steps == 0


def test_the_meter_counts_steps_and_the_time_between_them() -> None:
    times = iter([1.0, 1.5, 4.0, 4.25, 6.0, 7.0, 10.0, 11.0])
    worker = Worker(FakeDecoder(0, 4, slots=1, context=8), fake_spec(0, 4), clock=lambda: next(times))
    worker.handle(frames.Open(3, 0, 5, greedy()), {})
    for position in range(3):
        worker.handle(step(position + 1, frames.SeqStep(5, 0, position, 1, 1)), ids(1))
    meter = worker.meter
    assert (meter.busy, meter.wait, meter.steps, meter.step_ms) == (1.75, 4.25, 3, 500.0)
    meter.reset()
    assert (meter.busy, meter.wait, meter.steps, meter.step_ms) == (0.0, 0.0, 0, 0.0)
    worker.handle(step(4, frames.SeqStep(5, 0, 3, 1, 1)), ids(1))
    assert (meter.busy, meter.wait, meter.steps, meter.step_ms) == (1.0, 0.0, 1, 1000.0)


def test_the_meter_tells_what_the_thread_worked_from_what_it_waited_for_its_core() -> None:
    clock, own = itertools.chain([1.0, 4.0], *[[5.0, 9.0]] * SAMPLED), iter([0.5, 1.5, 1.75, 3.75])
    meter = Meter(lambda: next(clock), lambda: next(own))
    for _ in range(SAMPLED + 1):
        meter.done(meter.start())
    assert (meter.step_ms, meter.own_ms) == (4000.0, 1500.0), "of the first step, and the one that is asked next"
    meter.reset()
    assert meter.own_ms == 0.0


class Adder:
    """A graph stage: ``sum = a + b``."""

    def run(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        assert sorted(tensors) == ["a", "b"], "an executor gets its own inputs and no others"
        return {"sum": tensors["a"] + tensors["b"]}


def graph_spec(*, last: bool) -> StageSpec:
    def tensor(name: str) -> Tensor:
        return Tensor(name=name, dtype="float32", shape=["n"])

    return StageSpec(
        kind="graph",
        backend="fake",
        target="fake",
        model="none",
        first=not last,
        last=last,
        inputs=[tensor("a"), tensor("b")],
        outputs=[tensor("sum")],
        forward=["sum", "state"],
        files=[],
    )


@pytest.mark.parametrize("last", [False, True])
def test_a_graph_stage_takes_its_own_and_relays_the_rest(last: bool) -> None:
    worker = Worker(Adder(), graph_spec(last=last))
    one, state = np.ones(2, np.float32), np.zeros(3, np.float32)
    result = worker.handle(frames.Run(1, 0, 4), {"a": one, "b": one, "state": state, "other": one})
    assert result is not None
    assert result[0] == frames.Run(1, 0, 4)
    assert result[1]["sum"].tolist() == [2, 2]
    assert result[1]["state"] is state
    assert len(result[1]) == 2
    assert worker.meter.steps == 1


def test_a_graph_may_take_what_numpy_has_no_type_for() -> None:
    inputs = [Tensor(name="a", dtype="string", shape=["n"]), Tensor(name="b", dtype="bfloat16", shape=[])]
    spec = msgspec.structs.replace(graph_spec(last=True), inputs=inputs, forward=["sum"])
    result = Worker(Adder(), spec).handle(
        frames.Run(1, 0, 4), {"a": np.array(["x"], object), "b": np.array("y", object)}
    )
    assert result is not None
    assert result[1]["sum"].tolist() == ["xy"]


@pytest.mark.parametrize("incomplete", [{"a": np.ones(1)}, {"a": np.ones(1), "b": np.ones(1)}])
def test_a_run_without_a_tensor_is_a_fault(incomplete: dict[str, Array]) -> None:
    worker = Worker(Adder(), graph_spec(last=True))
    with pytest.raises(IntegrityError):
        worker.handle(frames.Run(1, 0, 0), incomplete)
    with pytest.raises(IntegrityError):
        worker.handle(frames.Open(2, 0, 0, greedy()), {})


def test_what_no_link_carries_ends_its_call_alone() -> None:
    worker = Worker(Adder(), graph_spec(last=False), largest=8)
    long = {name: np.ones(3, np.float32) for name in ("a", "b", "state")}
    result = worker.handle(frames.Run(1, 0, 7), long)
    assert result is not None
    assert isinstance(result[0], frames.Run)
    assert "12 bytes" in result[0].refused
    assert result[1] == {}
    short = {name: np.ones(2, np.float32) for name in ("a", "b", "state")}
    result = worker.handle(frames.Run(1, 1, 8), short)
    assert result is not None
    assert result[0] == frames.Run(1, 1, 8)


class Choosy(Adder):
    """Refuses what is longer than it likes."""

    def run(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        if len(tensors["a"]) > 2:
            raise InputError("graph-run-failed", "the graph refused these inputs", context=["too long"], hint=None)
        return super().run(tensors)


@pytest.mark.parametrize("last", [False, True])
def test_a_refused_call_ends_alone(last: bool) -> None:
    worker = Worker(Choosy(), graph_spec(last=last))
    long = {name: np.ones(3, np.float32) for name in ("a", "b", "state")}
    assert worker.handle(frames.Run(1, 0, 7), long) == (frames.Run(1, 0, 7, "too long"), {})
    short = {name: np.ones(2, np.float32) for name in ("a", "b", "state")}
    result = worker.handle(frames.Run(1, 1, 8), short)
    assert result is not None
    assert not result[0].refused
    assert worker.handle(frames.Run(1, 2, 9, "by another stage"), {}) == (frames.Run(1, 2, 9, "by another stage"), {})
