"""The scripts say what they are before they do anything: none installs, fetches or asks for ``--help``."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("examples/quickstart/run.sh", '"a question"'),
        ("examples/benchmarks/run.sh", "two-nodes-one"),
        ("tests/run.sh", "--reference"),
    ],
)
def test_help_is_told_and_nothing_is_done(script: str, told: str, flag: str) -> None:
    done = subprocess.run(["bash", str(ROOT / script), flag], capture_output=True, text=True, check=True)
    assert told in done.stdout
    assert "==" not in done.stdout
    assert done.stderr == ""
