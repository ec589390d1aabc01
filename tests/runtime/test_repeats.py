"""Several processes, one event: which of their lines are passed on."""

from __future__ import annotations

from ruvrun.supervise.repeats import SAME, TENURE, Repeats


def test_a_loss_is_told_once_and_the_next_one_again() -> None:
    repeats, line = Repeats(), "lost: pi-1, the connection was lost"
    assert repeats.is_new("head", line, 0.0)
    assert not repeats.is_new("stage on pi-0", line, 0.1)
    assert repeats.is_new("stage on pi-0", "lost: pi-2, the connection was lost", 0.2)
    assert repeats.is_new("stage on pi-0", "lost: pi-1, it does not answer", 0.2)
    assert repeats.is_new("head", line, 0.3), "who repeats himself has his reasons"
    assert repeats.is_new("stage on pi-0", line, 0.3 + SAME)


def test_who_waits_first_speaks_for_all() -> None:
    repeats = Repeats()
    assert repeats.is_new("head", "waiting: pi-1, no answer for 5 s", 5.0)
    assert not repeats.is_new("stage on pi-0", "waiting: pi-1, no answer for 5 s", 5.2)
    assert not repeats.is_new("stage on pi-0", "waiting: pi-1, no answer for 10 s", 10.0)
    assert repeats.is_new("stage on pi-0", "waiting: pi-2, no answer for 10 s", 10.0)
    assert repeats.is_new("head", "waiting: pi-1, no answer for 15 s", 15.0)
    assert repeats.is_new("stage on pi-0", "waiting: pi-1, no answer for 600 s", 15.0 + TENURE)


def test_the_dead_do_not_speak_for_the_living() -> None:
    repeats = Repeats()
    assert repeats.is_new("head", "waiting: pi-1, no answer for 5 s", 5.0)
    repeats.forget("head")
    assert repeats.is_new("stage on pi-0", "waiting: pi-1, no answer for 5 s", 5.2)


def test_all_else_is_passed_on() -> None:
    repeats = Repeats()
    for line in ("joined: pi-0, stage 0 of 2, head pi-0", "anything", "", "failed: pi-0, step 3: no"):
        assert repeats.is_new("head", line, 0.0)
        assert repeats.is_new("stage on pi-0", line, 0.0)
