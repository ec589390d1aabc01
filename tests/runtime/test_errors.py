"""The one form of errors, whatever is in the names that they speak of."""

from __future__ import annotations

import json
import pickle

import pytest

from ruvrun.errors import InputError, MachineError, RuvError, how_it_ended, kind_of, parse_error

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


def test_an_error_arrives_as_what_it_was() -> None:
    for kind in (InputError, MachineError):
        error = kind("ref", "what", context=["where"], hint=None)
        found = parse_error(json.dumps(error.to_dict()))
        assert type(found) is kind
        assert found.to_dict() == error.to_dict()
        assert kind_of(error.exit_code) is kind
    assert parse_error(json.dumps(RuvError("bug", "ours", hint=None).to_dict())) is None, "of no kind"


@pytest.mark.parametrize("line", ["", "hello", '{"error": ', '{"error": {"exit_code": 99}}', '{"error": []}'])
def test_only_an_error_is_an_error(line: str) -> None:
    assert parse_error(line) is None


def test_ends_in_words() -> None:
    assert how_it_ended(3) == "exit code 3"
    assert how_it_ended(-9) == "killed by SIGKILL"
    assert how_it_ended(-99) == "killed by signal 99"
