"""The wish to stay awake: made with the first step, kept while steps come, withdrawn when they do not."""

import struct
from pathlib import Path

import pytest

from ruvrun.awake import Awake


@pytest.fixture
def interface(tmp_path: Path) -> Path:
    path = tmp_path / "cpu_dma_latency"
    path.touch()
    return path


def test_held_while_there_is_work(interface: Path) -> None:
    awake = Awake(interface)
    assert (awake.held, awake.due) == (False, True)
    awake.rest()
    for _ in range(2):
        awake.work()
        assert (awake.held, awake.due) == (True, False)
        assert interface.read_bytes() == struct.pack("i", 0)
        interface.write_bytes(b"")
        awake.work()
        assert interface.read_bytes() == b"", "it is made once"
        awake.rest()
        assert (awake.held, awake.due) == (False, True)


def test_where_it_may_not_ask_nothing_happens(tmp_path: Path) -> None:
    awake = Awake(tmp_path / "nowhere")
    awake.work()
    assert (awake.held, awake.due) == (False, False)
    awake.rest()


def test_a_kernel_that_refuses_is_asked_once(interface: Path) -> None:
    interface.unlink()
    interface.mkdir()
    awake = Awake(interface)
    awake.work()
    interface.rmdir()
    interface.touch()
    awake.work()
    assert not awake.held
