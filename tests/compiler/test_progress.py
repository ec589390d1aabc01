"""Progress: a bar where a person watches, notes everywhere else, nothing where nobody asked."""

from __future__ import annotations

import io

import pytest

from ruvcompile.progress import Silent, Terminal


class _Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar_and_a_file_gets_none() -> None:
    now = iter(x / 10 for x in range(1000))
    for stream, drawn in ((_Screen(), True), (io.StringIO(), False)):
        progress = Terminal(stream, clock=lambda: next(now))
        with progress.step("measure", total=4) as bar:
            for _ in range(4):
                bar.advance()
        with progress.step("load") as bar:
            bar.advance()
        assert ("4/4" in stream.getvalue()) is drawn
        assert ("measure" in stream.getvalue()) is drawn
        assert "\x1b" not in stream.getvalue()


def test_a_bar_ends_its_line_when_its_step_fails() -> None:
    screen = _Screen()
    with pytest.raises(ValueError, match="no"), Terminal(screen).step("load"):
        raise ValueError("no")
    assert screen.getvalue().endswith("\n")


def test_silence(capsys: pytest.CaptureFixture[str]) -> None:
    with Silent().step("x", total=1) as bar:
        bar.advance()
    Silent().note("x")
    Silent().detail("x")
    assert capsys.readouterr() == ("", "")
