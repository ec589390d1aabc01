"""The golden check that a stage repeats before it joins: within its bound, beyond it, and what it is compared on."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest

from ruvrun.bundle import Golden
from ruvrun.errors import IntegrityError
from ruvrun.executors import Array, Span
from ruvrun.manifest import Tensor
from ruvrun.pipeline.selfcheck import check_golden
from tests.runtime.fakes import FakeDecoder, fake_spec


class Plus:
    """A graph that adds ``by``."""

    def __init__(self, by: float) -> None:
        self.by = by

    def run(self, tensors: dict[str, Array]) -> dict[str, Array]:
        return {"y": tensors["x"] + np.float32(self.by), "n": np.array([3])}


def golden(directory: Path, kind: str = "graph", bound: float = 0.01, **arrays: Array) -> object:
    import msgspec

    np.savez(directory / "golden.npz", allow_pickle=False, **arrays)
    return msgspec.structs.replace(fake_spec(0, 4), kind=kind, golden=Golden(file="golden.npz", bound=bound))


X = np.zeros(3, np.float32)


@pytest.mark.parametrize("by", [0.0, 0.009, -0.009])
def test_golden_within_the_bound(tmp_path: Path, by: float) -> None:
    spec = golden(tmp_path, **{"in.x": X, "out.y": X, "out.n": np.array([3])})
    assert check_golden(tmp_path, spec, Plus(by)) == pytest.approx(abs(by))  # type: ignore[arg-type] # a graph


@pytest.mark.parametrize(
    ("by", "out"),
    [
        (0.02, {"out.y": X}),
        (float("nan"), {"out.y": X}),
        (0.0, {"out.y": X[:2]}),
        (0.0, {"out.y": X.astype(np.float64)}),
        (0.0, {"out.z": X}),
        (0.0, {"out.n": np.array([4])}),
    ],
)
def test_golden_beyond_it(tmp_path: Path, by: float, out: dict[str, Array]) -> None:
    spec = golden(tmp_path, **{"in.x": X, **out}, bound=5.0 if "out.n" in out else 0.01)
    with pytest.raises(IntegrityError) as caught:
        check_golden(tmp_path, spec, Plus(by))  # type: ignore[arg-type] # a graph
    assert caught.value.ref == "golden-mismatch"
    assert caught.value.exit_code == 5


def test_golden_of_a_decoder_is_one_chunk(tmp_path: Path) -> None:
    ids = np.arange(5, dtype=np.int64)
    spec = fake_spec(0, 4)
    wanted = FakeDecoder(0, 4, slots=1, context=8).step([Span(0, 0, 5, 1)], {"input_ids": ids})
    spec = golden(tmp_path, "decoder", **{"in.input_ids": ids, "out.logits": wanted["logits"]})
    assert check_golden(tmp_path, spec, FakeDecoder(0, 4, slots=2, context=8)) == 0.0
    spec = golden(tmp_path, "decoder", **{"in.input_ids": ids, "out.logits": wanted["logits"] + 1})
    with pytest.raises(IntegrityError):
        check_golden(tmp_path, spec, FakeDecoder(0, 4, slots=2, context=8))
    assert check_golden(tmp_path, spec, FakeDecoder(0, 4, slots=2, context=4)) == 0.0, "it has no room for it"


class Carries:
    """A decoder stage that passes on what comes in, with something added to its last token."""

    context = 8

    def __init__(self, by: float) -> None:
        self.by = by

    def step(self, _: list[Span], tensors: dict[str, Array]) -> dict[str, Array]:
        made = tensors["x"].copy()
        made[-1] += np.float32(self.by)
        return {"x": made}


@pytest.mark.parametrize(("by", "passes"), [(0.04, True), (0.06, False)])
def test_a_token_is_held_to_a_bound_of_its_own_size(tmp_path: Path, by: float, passes: bool) -> None:
    """The first one is a thousand times as large as the last, of which 5 % are 0.05."""
    import msgspec

    x = np.array([[1000.0, 1.0], [2.0, 1.0], [1.0, -1.0]], np.float32)
    port = Tensor(name="x", dtype="float32", shape=["tokens", 2])
    spec = golden(tmp_path, "decoder", bound=50.0, **{"in.x": x, "out.x": x})
    spec = msgspec.structs.replace(spec, inputs=[port], outputs=[port])
    with contextlib.nullcontext() if passes else pytest.raises(IntegrityError, match=r"x of token 2 differs by 0\.06"):
        assert check_golden(tmp_path, spec, Carries(by)) == pytest.approx(by, rel=1e-3)
