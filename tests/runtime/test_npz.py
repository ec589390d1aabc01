"""Named values in files: what goes in comes out, and nothing is pickled."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ruvrun.npz import read_npz, write_npz


def through(folder: Path, values: dict[str, object], names: tuple[str, ...] = ()) -> dict[str, object]:
    path = folder / "in.npz"
    with path.open("wb") as stream:
        write_npz(stream, values)
    return read_npz(path, names)


def test_what_goes_in_comes_out(tmp_path) -> None:
    values = {
        "file": np.arange(3.0),
        "none": None,
        "texts": np.array([["\u00e9", ""]], object),
        "no texts": np.empty((0, 2), object),
        "some": [np.zeros((2, 0)), np.array("x", object), np.array(3)],
        "empty": [],
    }
    found = through(tmp_path, values)
    assert list(found) == ["file", "texts", "no texts", "some", "empty"]
    np.testing.assert_array_equal(found["file"], values["file"])
    assert found["texts"].dtype == object
    assert found["texts"].tolist() == [["\u00e9", ""]]
    assert found["no texts"].shape == (0, 2)
    assert [each.shape for each in found["some"]] == [(2, 0), (), ()]
    assert found["some"][1].tolist() == "x"
    assert found["empty"] == []


def test_a_name_with_brackets_may_be_just_a_name(tmp_path) -> None:
    found = through(
        tmp_path, {"x[0]": np.zeros(1), "x[1]": np.ones(1), "y[1]": np.ones(1)}, names=("x[0]", "x[1]", "y[1]")
    )
    assert list(found) == ["x[0]", "x[1]", "y[1]"]


def test_the_order_of_a_sequence_is_its_numbers(tmp_path) -> None:
    np.savez(tmp_path / "in.npz", **{f"x[{number}]": np.array(number) for number in (10, 2, 0, 1, *range(3, 10))})
    assert [int(each) for each in read_npz(tmp_path / "in.npz", ())["x"]] == list(range(11))


def test_the_same_values_are_the_same_bytes(tmp_path) -> None:
    for name in ("one", "two"):
        with (tmp_path / name).open("wb") as stream:
            write_npz(stream, {"x": np.arange(4), "y": [np.zeros(1)]})
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_what_numpy_writes_of_a_rare_type_keeps_its_bytes(tmp_path) -> None:
    array = np.array([1.5, -2], ml_dtypes.bfloat16)
    np.savez(tmp_path / "in.npz", x=array)
    assert read_npz(tmp_path / "in.npz", ())["x"].tobytes() == array.tobytes()


def test_a_map_has_no_place(tmp_path) -> None:
    with pytest.raises(TypeError, match="dict"):
        through(tmp_path, {"x": [{1: 2.0}]})


def test_what_is_no_archive(tmp_path) -> None:
    np.save(tmp_path / "one.npy", np.zeros(2))
    (tmp_path / "text").write_text("text")
    np.savez(tmp_path / "gap.npz", **{"x[0]": np.zeros(1), "x[2]": np.zeros(1)})
    np.savez(tmp_path / "objects.npz", x=np.array([{}], object))
    whole = (tmp_path / "gap.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    for name in ("one.npy", "text", "gap.npz", "objects.npz", "cut.npz"):
        with pytest.raises(ValueError, match=r"\S"):
            read_npz(tmp_path / name, ())
    with pytest.raises(FileNotFoundError):
        read_npz(tmp_path / "none.npz", ())


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "no zip archive"), (b"text\n", "no zip archive"), (None, "one array and no name")],
    ids=["empty", "text", "npy"],
)
def test_what_is_no_archive_is_told_in_words_of_ours(tmp_path, content, said) -> None:
    """Numpy's would be that it lacks a method, or that it may be loaded unsafely."""
    path = tmp_path / "in.npz"
    if content is None:
        with path.open("wb") as stream:
            np.save(stream, np.ones(3))
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=said):
        read_npz(path, ())
