"""``smoke.sh`` of a delivery ends with what its first failing step ends with, and then writes no figures.

That the steps are the real ones is for ``tests/system/test_deliver.py``; here a command of the same name does each of
them, and one of them fails.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from ruvcompile.render import render_fleet
from tests.nodes import STAGE, fleet

ERROR = json.dumps({"error": {"ref": "off", "message": "it is off", "context": ["by much"], "hint": "look at it"}})
GOLDEN = json.dumps({"compared": "logits", "largest_difference": 0.0, "bound": 0.1})
RUN = {"streams": 1, "tokens_per_s": 2.0, "ttft_ms": {"p50": 1.0}, "tpot_ms": {"p50": 1.0}}
_RUVRUN = f"""#!/bin/sh
case "$*" in
    *--check*) step=check ;;
    status*--json*) step=health said='{{}}' ;;
    *--golden*) step=golden said='{GOLDEN}' ;;
    bench*) step=bench said='{json.dumps(RUN)}' ;;
    *) step=table ;;
esac
echo "$*" >>asked
if [ "$step" = "$FAILS" ]; then echo '{ERROR}'; exit 5; fi
echo "$said"
"""


def smoke(folder: Path, fails: str, out: str = "smoke.json") -> subprocess.CompletedProcess[str]:
    (folder / "deliver").mkdir()
    machines = fleet("pi5", "pi5", model=STAGE.model)
    files = render_fleet(machines, kind="decoder", version="0.1.0", most=4, wheels=False)
    for name in ("smoke.sh", "fleet.sh"):
        (folder / "deliver" / name).write_bytes(files[name])
    (folder / "nodes.toml").write_text('node = [{ name = "pi5-0", ssh = "-" }, { name = "pi5-1", ssh = "-" }]\n')
    (folder / "ruvrun").write_text(_RUVRUN)
    (folder / "ruvrun").chmod(0o755)
    line = ["bash", "deliver/smoke.sh", "--url", "http://127.0.0.1:1", "-o", out]
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "FAILS": fails}
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_where_nothing_fails_there_are_figures(tmp_path: Path) -> None:
    done = smoke(tmp_path, "none")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "smoke.json").read_text())["bench"] == RUN
    bench = next(line for line in (tmp_path / "asked").read_text().splitlines() if line.startswith("bench "))
    assert " --streams 1,2,4,8 --repeats 3 " in bench, "what it measures where nothing else is asked for"


@pytest.mark.parametrize(
    ("fails", "code", "said"),
    [
        ("table", 5, "it is off"),
        ("check", 6, "error[fleet-not-ready]: not every node of the fleet is ready"),
        ("health", 5, "error[off]: it is off\n  by much\n  hint: look at it"),
        ("golden", 5, "error[off]: it is off\n  by much\n  hint: look at it"),
        ("bench", 5, "error[off]: it is off\n  by much\n  hint: look at it"),
    ],
)
def test_what_fails_ends_it(tmp_path: Path, fails: str, code: int, said: str) -> None:
    done = smoke(tmp_path, fails)
    assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stderr
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("smoke.json")]


@pytest.mark.parametrize("out", ["none/smoke.json", "deliver"])
def test_where_its_figures_cannot_be_written_nothing_is_measured(tmp_path: Path, out: str) -> None:
    done = smoke(tmp_path, "none", out)
    told = (done.returncode, done.stderr.count("error[output-refused]: "), done.stderr.count("\n  hint: "))
    assert told == (7, 1, 1), done.stderr
    assert not (tmp_path / "asked").exists()
    assert not list(tmp_path.rglob("*.part"))
