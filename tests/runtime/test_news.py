"""Several processes, one event: which of their lines are passed on."""

from __future__ import annotations

from ruvrun.news import SAME, TENURE, News


def test_a_loss_is_told_once_and_the_next_one_again() -> None:
    news, line = News(), "lost: pi-1, the connection was lost"
    assert news.is_new("head", line, 0.0)
    assert not news.is_new("stage on pi-0", line, 0.1)
    assert news.is_new("stage on pi-0", "lost: pi-2, the connection was lost", 0.2)
    assert news.is_new("stage on pi-0", "lost: pi-1, it does not answer", 0.2)
    assert news.is_new("head", line, 0.3), "who repeats himself has his reasons"
    assert news.is_new("stage on pi-0", line, 0.3 + SAME)


def test_who_waits_first_speaks_for_all() -> None:
    news = News()
    assert news.is_new("head", "waiting: pi-1, no answer for 5 s", 5.0)
    assert not news.is_new("stage on pi-0", "waiting: pi-1, no answer for 5 s", 5.2)
    assert not news.is_new("stage on pi-0", "waiting: pi-1, no answer for 10 s", 10.0)
    assert news.is_new("stage on pi-0", "waiting: pi-2, no answer for 10 s", 10.0)
    assert news.is_new("head", "waiting: pi-1, no answer for 15 s", 15.0)
    assert news.is_new("stage on pi-0", "waiting: pi-1, no answer for 600 s", 15.0 + TENURE)


def test_the_dead_do_not_speak_for_the_living() -> None:
    news = News()
    assert news.is_new("head", "waiting: pi-1, no answer for 5 s", 5.0)
    news.forget("head")
    assert news.is_new("stage on pi-0", "waiting: pi-1, no answer for 5 s", 5.2)


def test_all_else_is_passed_on() -> None:
    news = News()
    for line in ("joined: pi-0, stage 0 of 2, head pi-0", "anything", "", "failed: pi-0, step 3: no"):
        assert news.is_new("head", line, 0.0)
        assert news.is_new("stage on pi-0", line, 0.0)
