"""The shipped simulations still load and run: from their kept cost tables, and from a checkpoint without weights."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOM = Path(__file__).parents[2] / "examples" / "simulations"
NAMES = ["70b"]


def _options(name: str) -> list[str]:
    """What ``run.sh`` gives to ``ruvcompile plan``, word by word."""
    text = (ROOM / "run.sh").read_text("utf-8").replace("\\\n", " ")
    (line,) = re.findall(r'^exec "[^\n]*/ruvcompile" plan "\$model" (.*) "\$@"$', text, re.MULTILINE)
    words: list[str] = line.replace('"', "").replace("$here", str(ROOM / name)).split()
    return words


def test_they_are_listed_and_an_unknown_one_is_wrong_usage() -> None:
    listed = subprocess.run(["bash", str(ROOM / "run.sh")], capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in listed.stdout.splitlines()] == NAMES
    unknown = subprocess.run(["bash", str(ROOM / "run.sh"), "71b"], capture_output=True, text=True, check=False)
    assert unknown.returncode == 2
    assert "70b" in unknown.stderr


@pytest.mark.parametrize("name", NAMES)
def test_a_kept_cost_table_is_all_that_a_plan_needs(name: str, tmp_path: Path) -> None:
    model = tmp_path / "hollow"
    subprocess.run([sys.executable, str(ROOM / "hollow.py"), name, str(model)], check=True)
    on_disk = sum(file.stat().st_blocks * 512 for file in model.iterdir())
    assert on_disk < 32 << 20 < 100 << 30 < sum(file.stat().st_size for file in model.iterdir())
    command = [str(Path(sys.executable).with_name("ruvcompile")), "plan", str(model), *_options(name)]
    # Nothing is measured: the weights are holes, and two minutes would not be enough for them.
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["shape"] == {"replicas": 1, "stages": 4}
    assert plan["cost_source"] == "measured"
    found = plan["simulation"]
    assert found["is"] == "a simulation, from measured costs"
    assert (found["users"], found["lost"]) == (4, 0)
    assert {stage["node"] for stage in found["stages"]} == {"one", "two", "three", "four"}
    assert found["nodes_may_be_away"] == 0
    # Of the time in which 512 tokens are read and each token of an answer makes a round over four lines.
    assert found["tpot_ms"]["p50"] > 4 * 16
    assert 0 < found["tokens_per_s"] < 1.1 * plan["predicted_tokens_per_s"]
