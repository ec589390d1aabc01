"""Stages that will share a machine are measured while the others run: a process each, on cores of its own."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from ruvrun import machine
from ruvrun.errors import RuvError
from ruvrun.profile.beside import company
from ruvrun.profile.conditions import Conditions
from tests.decoders import tiny_program
from tests.graphs import make_model, program_of, tensor
from tests.runtime.profiles import children_of, write_sheeted
from tests.stages import write_graph

LONGEST_S = 120
BUSY_TICKS = 20
"""Of CPU time, once it is at work: a process that waits takes next to none."""


@pytest.fixture(scope="module", params=["decoder", "graph"])
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "decoder":
        return write_sheeted(tiny_program(folder, layers=1), folder)[0][0]
    model = make_model([helper.make_node("Relu", ["x"], ["y"], name="n")], [tensor("x", [2])], [tensor("y", [2])])
    return write_graph(program_of(model), {"x": np.ones(2, np.float32)}, folder)[0]


def ticks(pid: int) -> int:
    """CPU time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_the_others_are_at_work_as_long_as_the_block_lasts(stage: Path) -> None:
    first, last = (cores := sorted(machine.allowed()))[0], cores[-1]
    before = children_of(os.getpid())
    with company(stage, Conditions(beside=2, cpus=((first,), (last,)))) as ready:
        ready()
        (other,) = children_of(os.getpid()) - before
        assert os.sched_getaffinity(other) == {last}
        began, until = ticks(other), time.monotonic() + LONGEST_S
        while ticks(other) < began + BUSY_TICKS and time.monotonic() < until:
            time.sleep(0.01)
        assert ticks(other) >= began + BUSY_TICKS, "it does steps, and does not wait for anybody"
    assert children_of(os.getpid()) == before


def test_who_works_alone_has_no_company(stage: Path) -> None:
    before = children_of(os.getpid())
    with company(stage, Conditions(beside=1)) as ready:
        ready()
        assert children_of(os.getpid()) == before


def test_one_that_cannot_work_is_told_in_its_own_words(stage: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(stage, tmp_path / "broken"))
    (broken / "bundle.toml").unlink()
    with pytest.raises(RuvError) as caught, company(broken, Conditions(beside=2, cpus=((0,), (0,)))) as ready:
        ready()
    assert caught.value.ref == "file-missing"
    assert "bundle.toml" in caught.value.message
