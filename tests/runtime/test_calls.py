"""Calls of a graph, and what is known of stages: without a thread, without links."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np
import pytest

from ruvrun.errors import InputError, UnreachableError
from ruvrun.frames import Run, State
from ruvrun.manifest import Pipeline, Placed
from ruvrun.pipeline.calls import Call, Calls
from ruvrun.pipeline.health import Health

LOST = UnreachableError("stage-lost", "gone", hint=None)


def call(id: int) -> Call:
    return Call(id, {"x": np.array([id])}, Future())


def test_the_window_is_filled_in_order_and_no_further() -> None:
    calls = Calls(stages=1, epoch=5)
    wanted = [call(number) for number in (1, 2, 3)]
    for one in wanted:
        calls.add(one)
    sent = [calls.step(), calls.step(), calls.step()]
    assert [step and step[0] for step in sent] == [Run(5, 0, 1), Run(5, 1, 2), None]
    assert (calls.running, calls.waiting) == (2, 1)
    calls.receive(Run(5, 0, 1), {"y": np.array([7])})
    assert wanted[0].result.result()["y"].tolist() == [7]
    step = calls.step()
    assert step is not None
    assert step[0] == Run(5, 2, 3)


def test_outputs_are_the_callers_own() -> None:
    calls = Calls(stages=1)
    calls.add(one := call(1))
    calls.step()
    buffer = np.array([7])
    calls.receive(Run(1, 0, 1), {"y": buffer})
    buffer[0] = 0
    assert one.result.result()["y"].tolist() == [7]


def test_a_loss_ends_all_and_late_answers_are_nobodys() -> None:
    calls = Calls(stages=1)
    wanted = [call(number) for number in range(4)]
    for one in wanted:
        calls.add(one)
    calls.step()
    calls.lose(LOST)
    for one in wanted:
        with pytest.raises(UnreachableError, match="gone"):
            one.result.result(0)
    assert (calls.running, calls.waiting) == (0, 0)
    calls.add(again := call(0))
    assert calls.step() == (Run(2, 0, 0), again.tensors)
    calls.receive(Run(1, 0, 0), {})
    assert not again.result.done()


def test_what_no_link_carries_is_refused_and_disturbs_no_other_call() -> None:
    calls = Calls(stages=1, largest=16)
    for value in (np.zeros(3), [np.zeros(1), np.zeros(3)]):
        with pytest.raises(InputError, match="24 bytes"):
            calls.add(Call(1, {"x": value}, Future()))
    calls.add(Call(2, {"x": [np.zeros(2), np.zeros(2)], "absent": None}, Future()))
    assert (calls.running, calls.waiting) == (0, 1)


def test_who_left_is_not_served_and_the_next_one_is() -> None:
    calls = Calls(stages=1)
    left, waits = call(1), call(2)
    for one in (left, waits):
        calls.add(one)
    assert left.result.cancel()
    assert calls.step() == (Run(1, 0, 2), waits.tensors)
    assert (calls.running, calls.waiting) == (1, 0)
    assert waits.result.cancel()
    calls.receive(Run(1, 0, 2), {"y": np.array([7])})
    calls.lose(LOST)


def test_sequences_and_what_is_absent_are_the_callers_own_too() -> None:
    calls = Calls(stages=1)
    calls.add(one := call(1))
    calls.step()
    buffer = np.array([7])
    calls.receive(Run(1, 0, 1), {"many": [buffer], "none": None})
    buffer[0] = 0
    assert one.result.result() == {"many": [np.array([7])], "none": None}


def test_health_names_what_is_missing_and_since_when() -> None:
    now = [0.0]
    health = Health([Pipeline(stages=[Placed(stage=0, node="a"), Placed(stage=1, node="b")])], lambda: now[0])
    assert health.body("id")["status"] == "waiting"
    now[0] = 60.0
    assert health.note(State("a", "ready", ""))
    assert health.note(State("b", "ready", ""))
    assert health.ready
    now[0] = 120.0
    assert not health.note(State("b", "ready", ""))
    assert not health.note(State("stranger", "lost", ""))
    assert health.note(State("b", "lost", "no answer"))
    now[0] = 180.0
    assert health.note(State("b", "lost", "refused by its port"))
    assert health.missing() == ["b (stage 1) is lost: refused by its port"]
    assert health.body("id") == {
        "status": "lost",
        "id": "id",
        "nodes": [
            {"node": "a", "pipeline": 0, "stage": 0, "state": "ready", "since": "1970-01-01T00:01:00Z", "why": ""},
            {
                "node": "b",
                "pipeline": 0,
                "stage": 1,
                "state": "lost",
                "since": "1970-01-01T00:02:00Z",
                "why": "refused by its port",
            },
        ],
    }


def test_a_refused_call_is_told_why_and_the_others_go_on() -> None:
    calls = Calls(stages=1)
    first, second = call(1), call(2)
    for each in (first, second):
        calls.add(each)
        calls.step()
    calls.receive(Run(1, 0, 1, "too long"), {})
    with pytest.raises(InputError, match="refused") as error:
        first.result.result(0)
    assert error.value.context == ("too long",)
    calls.receive(Run(1, 1, 2), {"y": np.array([7])})
    assert second.result.result(0)["y"].tolist() == [7]
