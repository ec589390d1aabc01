"""Scripts of this repository, and those that go along with an accelerator's parts, before shellcheck.

What is rendered for nodes and fleets is in ``test_install.py`` and ``test_delivery_files.py``.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ruvcompile.render.templates import render
from ruvcompile.targets import data_root, load_target
from tests.system.debian import program

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
OURS = sorted([ROOT / ".ci/run", *(path for room in ("examples", "tests") for path in (ROOT / room).rglob("*.sh"))])


def clean(script: Path) -> subprocess.CompletedProcess[str]:
    words = [program("shellcheck", "shellcheck"), "-x", "-P", "SCRIPTDIR", "-P", ROOT, script]
    return subprocess.run(list(map(str, words)), cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("script", OURS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_script_is_clean(script: Path) -> None:
    done = clean(script)
    assert done.returncode == 0, done.stdout


def test_a_script_for_an_accelerators_parts_is_clean(tmp_path: Path) -> None:
    accelerator = load_target("pi5-hailo10h").accelerator
    assert accelerator is not None
    lines = [step.replace("{part}", "part_0") for step in accelerator.steps]
    facts = {"model": "a detector's", "accelerator": accelerator, "commands": {"part_0": lines}}
    (tmp_path / "compile.sh").write_bytes(render(data_root() / "_shared/templates/parts/compile.sh.j2", facts))
    done = clean(tmp_path / "compile.sh")
    assert done.returncode == 0, done.stdout


def test_a_script_that_is_not_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "wrong.sh").write_text("#!/bin/bash\nrm -rf $1/*\n")
    assert clean(tmp_path / "wrong.sh").returncode == 1
