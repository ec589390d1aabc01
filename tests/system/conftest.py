"""What deliveries begin with: three machines, two builds of one model for them, and one of the builds running."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.compiler.builds import build
from tests.models import write_tiny_gguf
from tests.system.deliveries import Pair, deliver, running, short
from tests.system.hosts import NAMES, Fleet, machines

USERS = {"pi-0": "root", "pi-1": "pi", "pi-2": "root"}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with machines(tmp_path_factory.mktemp("machines")) as made:
        yield made


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same model for the same fleet, cut at two places."""
    folder = tmp_path_factory.mktemp("builds")
    nodes = [
        f'[[node]]\nname = "{name}"\ntarget = "x86-64"\nmemory = "8GiB"\naddress = "10.87.0.{10 + number}"\n'
        f'ssh = "{USERS[name]}@10.87.0.{10 + number}"\n'
        for number, name in enumerate(NAMES)
    ]
    (folder / "fleet.toml").write_text("format = 1\n" + "".join(nodes))
    write_tiny_gguf(folder / "tiny.gguf", layers=6, hidden=256, ffn=768)
    made = []
    for name, cut in (("first", (1, 3)), ("second", (1, 4))):
        where = ",".join(f"layers.{layer}/mlp/add" for layer in cut)
        build(folder / "tiny.gguf", folder / name, fleet=str(folder / "fleet.toml"), cut=where, backend="onnxruntime")
        made.append(folder / name)
    return made[0], made[1]


@pytest.fixture
def first(builds: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the first build, to be changed at will."""
    return Path(shutil.copytree(builds[0], tmp_path / "first build"))


@pytest.fixture
def second(builds: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the second."""
    return Path(shutil.copytree(builds[1], tmp_path / "second build"))


@pytest.fixture
def bare(fleet: Fleet) -> Fleet:
    """Machines on which nothing was ever installed."""
    fleet.reset()
    return fleet


@pytest.fixture
def pair(fleet: Fleet, first: Path, second: Path) -> Pair:
    """What runs is what the test before left there, as if freshly delivered; the first build where that is not one."""
    fleet.mend()
    if running(fleet) == {short(second)}:
        return Pair(second, first)
    if running(fleet) != {short(first)}:
        fleet.reset()
        done = deliver(fleet, first)
        assert done.returncode == 0, done.stderr
        fleet.mend()
    return Pair(first, second)
