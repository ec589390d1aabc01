"""Frames: what goes in comes out, and nothing else does."""

from __future__ import annotations

import pickle
import tracemalloc

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruvrun import frames
from ruvrun.frames import FrameError, decode, encode
from tests.strategies import messages, tensors

LARGE = frames.LARGEST_INSIDE // 8 + 1
STEP = frames.Step(3, 7, (frames.SeqStep(1, 0, 5, 2, 1),))


def sent(message: frames.Message, arrays: dict[str, np.ndarray]) -> list[bytes]:
    """The parts as they arrive: bytes, whatever they were views of."""
    return [bytes(part) for part in encode(message, arrays)]


@given(messages(), tensors())
def test_round_trip(message: frames.Message, arrays: dict[str, np.ndarray]) -> None:
    parts = sent(message, arrays)
    again, there = decode(parts)
    assert again == message
    assert type(again) is type(message)
    assert list(there) == list(arrays)
    for name, array in arrays.items():
        assert there[name].dtype == array.dtype
        assert there[name].shape == array.shape
        assert there[name].tobytes() == array.tobytes()
    assert frames.size(encode(message, arrays)) == sum(map(len, parts))


def test_a_large_contiguous_array_is_not_copied_on_either_side() -> None:
    array = np.arange(2 * LARGE, dtype=np.float64).reshape(2, -1)
    parts = encode(STEP, {"h": array})
    array[0, 0] = 99
    assert decode(parts)[1]["h"][0, 0] == 99


@pytest.mark.parametrize(
    "array",
    [np.arange(12, dtype=np.float32).reshape(3, 4).T, np.arange(6, dtype=">i4"), np.arange(10)[::2]],
    ids=["transposed", "big-endian", "strided"],
)
def test_other_layouts_arrive_as_the_same_values(array: np.ndarray) -> None:
    there = decode(sent(STEP, {"h": array}))[1]["h"]
    assert there.tolist() == array.tolist()
    assert there.flags.c_contiguous


def test_a_part_may_begin_at_any_byte() -> None:
    header, body = sent(STEP, {"h": np.arange(float(LARGE))})
    there = decode([header, memoryview(b"x" + body)[1:]])[1]["h"]
    assert there.flags.aligned
    assert (there == np.arange(LARGE)).all()


def test_a_small_tensor_rides_in_the_header() -> None:
    (header,) = sent(STEP, {"h": np.arange(5.0)})
    there = decode([header])[1]["h"]
    assert there.flags.aligned
    assert there.tolist() == [0, 1, 2, 3, 4]


def test_many_small_tensors_do_not_make_a_header_that_would_be_refused() -> None:
    arrays = {f"h{number}": np.full(LARGE - 1, number, np.float64) for number in range(40)}
    parts = sent(STEP, arrays)
    assert len(parts[0]) < frames.LARGEST_INSIDE + 4096
    there = decode(parts)[1]
    assert [there[name][-1] for name in arrays] == list(range(40))


@pytest.mark.parametrize("array", [np.array(["text"]), np.array([object()]), np.zeros(2, "M8[s]")])
def test_what_does_not_travel_is_refused_by_the_sender(array: np.ndarray) -> None:
    with pytest.raises(FrameError, match="does not travel"):
        encode(STEP, {"h": array})


@given(messages(), tensors(), st.data())
def test_truncated_anywhere(message: frames.Message, arrays: dict[str, np.ndarray], data: st.DataObject) -> None:
    parts = sent(message, arrays)
    number = data.draw(st.integers(0, len(parts) - 1))
    if not parts[number]:
        return
    parts[number] = parts[number][: data.draw(st.integers(0, len(parts[number]) - 1))]
    with pytest.raises(FrameError):
        decode(parts)


@given(messages(), tensors(), st.data())
def test_garbled_anywhere(message: frames.Message, arrays: dict[str, np.ndarray], data: st.DataObject) -> None:
    """A flipped byte is refused or changes a value; it never escapes as another kind of error."""
    parts = sent(message, arrays)
    header = bytearray(parts[0])
    header[data.draw(st.integers(0, len(header) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        _, there = decode([bytes(header), *parts[1:]])
    except FrameError:
        return
    inside = sum(array.nbytes for array in there.values()) - sum(map(len, parts[1:]))
    assert 0 <= inside <= len(parts[0])


@given(st.lists(st.binary(max_size=64), max_size=4))
def test_noise(parts: list[bytes]) -> None:
    try:
        decode(parts)
    except FrameError:
        return


def header(*described: tuple[object, ...]) -> bytes:
    """A header whose tensors are in parts of their own."""
    return msgspec.msgpack.encode((("close", 1, 2, 3), [(*tensor, None) for tensor in described]))


@pytest.mark.parametrize(
    ("described", "body"),
    [
        (("h", "<f4", (2**62,)), b""),
        (("h", "<f8", (2**31, 2**31)), b"12345678"),
        (("h", "<f8", (2**61, 8)), b""),
        (("h", "<f4", (1,) * 65), b"1234"),
        (("h", "<f4", (-1,)), b"1234"),
        (("h", "<f4", (2,)), b"1234"),
        (("h", "<f4", (1,)), b"12345678"),
        (("h", "<f4", ()), b""),
        (("h", "|O", (1,)), b"12345678"),
        (("h", ">f4", (1,)), b"1234"),
        (("h", "V8", (1,)), b"12345678"),
        (("h", "<f4", (1.5,)), b"1234"),
        (("h", "<f4"), b"1234"),
    ],
)
def test_a_claim_that_is_not_what_came(described: tuple[object, ...], body: bytes) -> None:
    parts = [header(described), body]
    tracemalloc.start()
    with pytest.raises(FrameError):
        decode(parts)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20, "a claim must not make us allocate"


@pytest.mark.parametrize("start", [b"\xdd\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\x92\xdd\xff\xff\xff\xff"])
def test_a_header_that_claims_billions_of_items(start: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(FrameError):
        decode([start + b"\x01" * 100])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_two_tensors_of_one_name() -> None:
    with pytest.raises(FrameError, match="one name"):
        decode([header(("h", "|u1", (1,)), ("h", "|u1", (1,))), b"a", b"b"])


@pytest.mark.parametrize("bodies", [0, 2])
def test_as_many_parts_as_the_header_tells(bodies: int) -> None:
    with pytest.raises(FrameError, match="header tells of 1"):
        decode([header(("h", "|u1", (1,))), *[b"a"] * bodies])


def test_a_huge_header_is_not_even_read() -> None:
    with pytest.raises(FrameError, match="a header of"):
        decode([b"\x00" * (frames.LARGEST_HEADER + 1)])
    with pytest.raises(FrameError, match="without a header"):
        decode([])


def test_deep_nesting_is_an_error_and_not_a_crash() -> None:
    with pytest.raises(FrameError):
        decode([b"\x91" * 100_000])


def test_the_wire_is_what_it_was() -> None:
    """Another version on another node must understand these bytes: change them only with PROTOCOL, or at their ends."""
    (part,) = sent(STEP, {"h": np.array([[1.5]], np.float32)})
    assert part.hex() == "9294a473746570030791960100050201909194a168a33c6634920101c4040000c03f"
    header, body = sent(STEP, {"h": np.zeros(LARGE)})
    assert header.hex() == "9294a473746570030791960100050201909194a168a33c663891cd2601c0"
    assert body == bytes(8 * LARGE)
    assert sent(frames.Hello(1, "id", "n0", "head", "0.1.0"), {}) == [
        bytes.fromhex("9296a568656c6c6f01a26964a26e30a468656164a5302e312e3090")
    ]


def test_an_older_peer_knows_of_no_blocks() -> None:
    older = bytes.fromhex("9294a4737465700307919501000502019194a168a33c6634920101c4040000c03f")
    assert decode([older])[0] == STEP


def test_a_newer_peer_may_say_more() -> None:
    body = msgspec.msgpack.encode((("close", 1, 2, 3, "what a later version adds"), ()))
    assert decode([body])[0] == frames.Close(1, 2, 3)


def test_the_error_survives_a_process_boundary() -> None:
    error = pickle.loads(pickle.dumps(FrameError("what")))
    assert (type(error), error.message, error.exit_code) == (FrameError, "what", 5)
