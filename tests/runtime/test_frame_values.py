"""Values in frames that are more than one array of numbers: texts, sequences, optionals that are absent."""

from __future__ import annotations

import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruvrun import frames
from ruvrun.frames import FrameError, decode, encode
from tests.strategies import tensors

RUN = frames.Run(3, 7, 1)
texts = st.lists(st.text(max_size=5), max_size=4).map(lambda each: np.array([*each, ""], object)[:-1])
values = st.one_of(st.none(), texts, tensors().map(lambda each: list(each.values())), st.lists(texts, max_size=2))


def same(found: object, wanted: object) -> bool:
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(same, found, wanted))
    if wanted is None:
        return found is None
    assert isinstance(found, np.ndarray)
    assert isinstance(wanted, np.ndarray)
    alike = found.dtype == wanted.dtype and found.shape == wanted.shape
    return alike and (
        found.tolist() == wanted.tolist() if wanted.dtype == object else found.tobytes() == wanted.tobytes()
    )


def sent(given: dict[str, object]) -> list[bytes]:
    return [bytes(part) for part in encode(RUN, given)]


@given(st.dictionaries(st.text(max_size=3), values, max_size=3))
def test_round_trip(given) -> None:
    message, found = decode(sent(given))
    assert message == RUN
    assert list(found) == list(given)
    assert all(same(found[name], value) for name, value in given.items())


def test_large_ones_are_parts_of_their_own() -> None:
    large = np.arange(frames.LARGEST_INSIDE, dtype=np.float32)
    many = np.full((100, 100), "twelve bytes", object)
    parts = sent({"a": [large, np.zeros(1), large + 1], "t": many, "b": large + 2})
    assert len(parts) == 5
    found = decode(parts)[1]
    assert [each[0] for each in found["a"]] == [0, 0, 1]
    assert found["t"].shape == (100, 100)
    assert found["b"][0] == 2


@given(st.dictionaries(st.text(max_size=3), values, max_size=3), st.data())
def test_garbled_anywhere(given, data) -> None:
    parts = sent(given)
    number = data.draw(st.integers(0, len(parts) - 1))
    part = bytearray(parts[number])
    part[data.draw(st.integers(0, len(part) - 1))] ^= data.draw(st.integers(1, 255))
    parts[number] = bytes(part)
    try:
        decode(parts)
    except FrameError:
        return


@pytest.mark.parametrize(
    "described",
    [
        [("h", "str", (2,), b"\x91\xa1a")],
        [("h", "str", (2**40, 2**40), b"\x91\xa1a")],
        [("h", "str", (1,), b"\x91\x01")],
        [("h", "str", (1,), b"\x91\xa1\xff")],
        [("h", "str", (2**31,), b"\xdd\x7f\xff\xff\xff")],
        [("h", "str", (1,) * 17, b"\x91\xa1a")],
        [("h", "seq", (1,), b"")],
        [("h", "seq", (2**62,), b""), ("", "|u1", (1,), b"a")],
        [("h", "seq", (), b"")],
        [("h", "seq", (1,), b"x"), ("", "|u1", (1,), b"a")],
        [("h", "seq", (1,), b""), ("", "seq", (0,), b"")],
        [("h", "none", (1,), b"")],
        [("h", "none", (), b"x")],
        [("h", "obj", (), b"")],
        [("h", "none", (), b""), ("h", "none", (), b"")],
    ],
)
def test_a_claim_that_is_not_what_came(described) -> None:
    part = msgspec.msgpack.encode((("close", 1, 2, 3), described))
    tracemalloc.start()
    with pytest.raises(FrameError):
        decode([part])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20, "a claim must not make us allocate"


@pytest.mark.parametrize("value", [{"a": 1}, [{"a": 1}], [[np.zeros(1)]], np.array([1, "a"], object), "text", 3.0])
def test_what_does_not_travel_is_refused_by_the_sender(value) -> None:
    with pytest.raises(FrameError, match="does not travel"):
        encode(RUN, {"h": value})


def test_the_wire_is_what_it_was() -> None:
    (part,) = sent({"t": np.array(["a"], object), "s": [np.zeros(1, np.int8)], "n": None})
    assert part.hex() == (
        "9295a372756e030701a09494a174a37374729101c40391a16194a173a3736571"
        "9101c40094a0a37c69319101c4010094a16ea46e6f6e6590c400"
    )
