"""The quickstart, before it does anything."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "quickstart" / "run.sh"


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_is_told_and_not_asked_of_the_model(flag: str) -> None:
    done = subprocess.run(["bash", str(SCRIPT), flag], capture_output=True, text=True, check=True)
    assert '"a question"' in done.stdout
    assert "==" not in done.stdout
    assert done.stderr == ""
