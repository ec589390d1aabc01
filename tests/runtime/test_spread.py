"""What several lanes decide among themselves: who gets what, and where it goes when one of them is lost."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import pytest

from ruvrun import frames
from ruvrun.engine import Engine, Request
from ruvrun.errors import UnreachableError
from ruvrun.pipeline.calls import Call, Calls
from ruvrun.pipeline.lane import Lane
from ruvrun.pipeline.spread import MOST_LOSSES, MOST_MISSED, least_busy, leave, level, overdue
from tests.runtime.consistency import check
from tests.runtime.fakes import greedy

CONTEXT = 64


def ask(number: int, prompt: int = 3, max_tokens: int = 6) -> Request:
    return Request(number, tuple(range(2, 2 + prompt)), max_tokens, greedy(), frozenset())


def lanes(count: int, streams: int = 2, reuse: int = 0) -> list[Lane]:
    found = [Lane(n, Engine(stages=1, context=CONTEXT, streams=streams, reuse=reuse), 10.0) for n in range(count)]
    for lane in found:
        lane.ready = True
    return found


def give(lane: Lane, request: Request) -> None:
    assert isinstance(lane.work, Engine)
    lane.work.add(request)
    lane.callers[request.id] = lambda _event: None


def held(lane: Lane) -> tuple[int, int]:
    return lane.work.running, lane.work.waiting


def miss(lane: Lane, all_of_them: Sequence[Lane]) -> None:
    """No answer comes before its deadline."""
    lane.due = 10.0
    overdue(lane, all_of_them, 11.0)


def test_a_pipeline_that_does_not_answer_again_and_again_ends_the_head() -> None:
    """All its stages say that they are ready, so nobody else would do anything."""
    (lane,) = lanes(1)
    for _ in range(MOST_MISSED - 1):
        miss(lane, [lane])
    with pytest.raises(UnreachableError, match="no stage answered for 10 s, 3 times in a row"):
        miss(lane, [lane])


def test_one_answer_between_is_a_sign_of_life() -> None:
    (lane,) = lanes(1)
    for _ in range(MOST_MISSED - 1):
        miss(lane, [lane])
    give(lane, ask(1))
    step = lane.next()[-1][0]
    lane.sampled(frames.Sampled(step.epoch, step.step, ((1, (5,)),)), [])
    miss(lane, [lane])


def test_as_long_as_another_pipeline_answers_the_head_stays() -> None:
    silent, fine = both = lanes(2)
    for _ in range(MOST_MISSED + 1):
        miss(silent, both)
    fine.ready = False
    with pytest.raises(UnreachableError):
        miss(silent, both)


def test_requests_go_where_the_fewest_are_and_to_the_first_of_equals() -> None:
    three = lanes(3)
    chosen = []
    for number in range(7):
        lane = least_busy(three)
        assert lane is not None
        give(lane, ask(number))
        chosen.append(lane.number)
    assert chosen == [0, 1, 2, 0, 1, 2, 0]


def test_those_who_wait_for_a_failed_step_to_be_tried_again_are_counted() -> None:
    first, second = lanes(2)
    give(first, ask(0))
    first.keep(first.abandon(), "a step failed")
    assert least_busy([first, second]) is second


def test_of_equally_many_the_one_with_less_to_read_is_taken() -> None:
    two = lanes(2)
    give(two[0], ask(1, prompt=30))
    give(two[1], ask(2, prompt=3))
    assert least_busy(two) is two[1]


def test_a_prompt_goes_where_most_of_it_is_known_unless_there_is_much_more_to_do() -> None:
    two = lanes(2, streams=8, reuse=4)
    prompt = ask(1, prompt=20).prompt
    give(two[1], ask(1, prompt=20))
    assert isinstance(two[1].work, Engine)
    while two[1].work.step() is not None:
        pass
    assert least_busy(two) is two[0]
    assert least_busy(two, prompt) is two[1]
    assert least_busy(two, (*prompt[:12], *range(50, 58))) is two[1]
    assert least_busy(two, (*prompt[:8], *range(50, 62))) is two[0], "less than half of it"
    give(two[1], ask(2, prompt=3))
    assert least_busy(two, prompt) is two[0]


def test_a_pipeline_that_is_not_whole_gets_nothing() -> None:
    two = lanes(2)
    two[0].ready = False
    assert least_busy(two) is two[1]
    two[1].ready = False
    assert least_busy(two) is None


def test_who_waits_gets_room_wherever_it_is_the_oldest_first() -> None:
    three = lanes(3, streams=1)
    for number, lane in ((1, 0), (2, 1), (3, 1), (4, 0), (5, 0)):
        give(three[lane], ask(number))
    assert [held(lane) for lane in three] == [(1, 2), (1, 1), (0, 0)]
    level(three)
    assert [held(lane) for lane in three] == [(1, 2), (1, 0), (1, 0)], "3 is older than 4 and 5"
    assert list(three[2].callers) == [3]
    three[0].cancel(1)
    three[1].cancel(2)
    level(three)
    assert [held(lane) for lane in three] == [(1, 0), (1, 0), (1, 0)]
    for lane in three:
        assert isinstance(lane.work, Engine)
        check(lane.work)
        assert list(lane.callers) == [next(iter(lane.work._roster.running))]


def test_what_a_lost_pipeline_had_goes_on_elsewhere_while_there_is_one() -> None:
    two = lanes(2, streams=1)
    for number, lane in ((1, 0), (2, 0), (4, 0), (3, 1)):
        give(two[lane], ask(number))
    two[0].ready = False
    assert leave(two[0], two, "gone") == []
    assert [held(lane) for lane in two] == [(0, 0), (1, 3)]
    assert isinstance(two[1].work, Engine)
    assert [each.request.id for each in two[1].work._roster.line] == [1, 2, 4], "the oldest request waits in front"
    two[1].ready = False
    assert sorted(event.id for _, event in leave(two[1], two, "gone")) == [1, 2, 3, 4]


def test_two_that_are_lost_in_turn_cost_a_pause_and_who_is_under_way_once_more_ends() -> None:
    """The third time it may be the request itself that kills whatever it comes to."""
    four = lanes(4)
    give(four[0], ask(1))
    for lost in (1, 2):
        (lane,) = (lane for lane in four if 1 in lane.callers)
        give(lane, ask(1 + lost))
        lane.ready = False
        assert leave(lane, four, "gone") == []
    (lane,) = (lane for lane in four if 1 in lane.callers)
    lane.ready = False
    assert [event.id for _, event in leave(lane, four, "gone")] == [1]
    (last,) = (lane for lane in four if lane.ready)
    assert list(last.callers) == [2, 3]


def test_calls_of_a_lost_pipeline_are_made_again_elsewhere() -> None:
    two = [Lane(n, Calls(stages=1), 10.0) for n in range(2)]
    calls = [Call(number, {}, Future()) for number in range(4)]
    for lane in two:
        lane.ready = True
    for call in calls:
        assert isinstance(two[0].work, Calls)
        two[0].work.add(call)
    while two[0].work.step() is not None:
        pass
    two[0].ready = False
    assert leave(two[0], two, "gone") == []
    assert (held(two[0]), held(two[1])) == ((0, 0), (0, 4))
    for times in range(2, MOST_LOSSES + 1):
        here, there = two[1 - times % 2], two[times % 2]
        assert here.ready
        while here.work.step() is not None:
            pass
        there.ready, here.ready = True, False
        leave(here, two, "gone")
        left = 4 if times < MOST_LOSSES else 2
        assert (held(here), held(there)) == ((0, 0), (0, left))
    ended = [call.id for call in calls if call.result.done()]
    assert ended == [0, 1], "these were under way each time"


def test_calls_are_levelled_too() -> None:
    two = [Lane(n, Calls(stages=1), 10.0) for n in range(2)]
    for lane in two:
        lane.ready = True
    for number in range(5):
        assert isinstance(two[0].work, Calls)
        two[0].work.add(Call(number, {}, Future()))
    while two[0].work.step() is not None:
        pass
    assert held(two[0]) == (2, 3)
    level(two)
    assert (held(two[0]), held(two[1])) == ((2, 1), (0, 2))
