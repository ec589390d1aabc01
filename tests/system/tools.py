"""Programs of the system, which what is rendered for a fleet is given to."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def needing(*tools: str) -> pytest.MarkDecorator:
    """Skipped where one of these is not installed; where changes are judged it is an error."""
    return pytest.mark.skipif(
        not all(map(shutil.which, tools)) and "CI" not in os.environ,
        reason=f"it takes {', '.join(tools)}; tests/system/delivery.sh installs them",
    )


def run(*words: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program to its end, with more in its environment."""
    line = [str(word) for word in words]
    return subprocess.run(
        line, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60,
        env={**os.environ, **environment},
    )  # fmt: skip
