"""The wish to stay awake: made with the first step, kept while steps come, withdrawn a moment after the last."""

import struct
from pathlib import Path

import pytest

from ruvrun.awake import LINGER, Awake


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def interface(tmp_path: Path) -> Path:
    path = tmp_path / "cpu_dma_latency"
    path.touch()
    return path


def test_held_while_there_is_work(interface: Path) -> None:
    clock = Clock()
    awake = Awake(clock, interface)
    assert not awake.held
    awake.work()
    assert awake.held
    assert interface.read_bytes() == struct.pack("i", 0)
    clock.now += LINGER / 2
    awake.rest()
    assert awake.held
    awake.work()
    clock.now += LINGER * 0.75
    awake.rest()
    assert awake.held, "the last step is not long ago"
    clock.now += LINGER
    awake.rest()
    assert not awake.held
    awake.work()
    assert awake.held
    awake.close()
    assert not awake.held


def test_where_it_may_not_ask_nothing_happens(tmp_path: Path) -> None:
    awake = Awake(Clock(), tmp_path / "nowhere")
    awake.work()
    assert not awake.held
    awake.rest()
    awake.close()


def test_a_kernel_that_refuses_is_asked_once(interface: Path) -> None:
    interface.unlink()
    interface.mkdir()
    awake = Awake(Clock(), interface)
    awake.work()
    interface.rmdir()
    interface.touch()
    awake.work()
    assert not awake.held
