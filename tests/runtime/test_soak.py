"""A few seconds of the soak, which goes on for as long as one likes by itself (``soak.py``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtime.soak import soak


@pytest.mark.parametrize("pooled", [False, True], ids=["slots", "blocks"])
def test_nothing_is_wrong_stuck_or_left_behind(tmp_path: Path, pooled: bool) -> None:
    seen = soak(tmp_path, 4.0, 1, pooled=pooled).seen
    for kind in ("answered", "streamed", "stopped", "hung up", "left", "too much", "lost"):
        assert seen[kind], f"nothing of the kind {kind} came to pass: {seen}"


@pytest.mark.system
@pytest.mark.parametrize("pooled", [False, True], ids=["slots", "blocks"])
def test_nor_in_half_a_minute(tmp_path: Path, pooled: bool) -> None:
    seen = soak(tmp_path, 30.0, 2, pooled=pooled).seen
    assert sum(seen.values()) > 300
    assert (seen["put back"] > 0) == pooled
