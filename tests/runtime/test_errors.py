"""The one form of errors, whatever is in the names that they speak of."""

from __future__ import annotations

import pickle

import pytest

from ruvrun.errors import InputError

EVIL = "a\x1b[2J\nerror[forged]: b\x9b31m\x7f"


def test_what_would_move_the_cursor_is_spelt_out() -> None:
    error = InputError("ref", f"no {EVIL}", context=[EVIL], hint=EVIL)
    told = str(error)
    spelt = r"a\x1b[2J"
    assert told.splitlines() == [
        rf"error[ref]: no {spelt}\nerror[forged]: b\x9b31m\x7f",
        f"  {spelt}",
        r"  error[forged]: b\x9b31m\x7f",
        rf"  hint: {spelt}\nerror[forged]: b\x9b31m\x7f",
    ]
    assert error.to_dict()["error"]["message"] == f"no {EVIL}", "JSON has a way of its own to spell them"


@pytest.mark.parametrize("text", ["模型 ü 😀", "tab and \\n as letters"])
def test_other_letters_stay(text: str) -> None:
    error = pickle.loads(pickle.dumps(InputError("ref", text, hint=None)))
    assert str(error) == f"error[ref]: {text}"
