"""How large a part of a frame may be: what the manifest says, or a bound where it cannot say."""

from __future__ import annotations

import msgspec
import pytest

from ruvrun.engine import Engine
from ruvrun.manifest import Tensor
from ruvrun.pipeline.sockets import largest_part, most_waiting
from tests.runtime.fake_ring import fake_manifest


@pytest.mark.parametrize(
    ("dtype", "shape", "least"),
    [
        ("float32", [1024, 1024], 4 << 20),
        ("bfloat16", [1024, 1024], 2 << 20),
        ("int4", [2048, 1024], 2 << 20),
        ("float64", ["n", 2], 256 << 20),
        ("string", [1], 256 << 20),
        ("seq(float32)", [], 256 << 20),
        ("optional(int64)", [], 256 << 20),
        ("bool", [1], 1 << 20),
    ],
)
def test_the_largest_part(dtype: str, shape: list[int | str], least: int) -> None:
    manifest = fake_manifest(["a"], "graph")
    program = msgspec.structs.replace(manifest.program, inputs=[Tensor(name="x", dtype=dtype, shape=shape)])
    assert largest_part(msgspec.structs.replace(manifest, program=program)) == least + 1024


@pytest.mark.parametrize("stages", [1, 2, 5, 16])
@pytest.mark.parametrize("streams", [1, 32, 5000])
def test_a_link_holds_more_than_is_ever_in_a_ring(stages: int, streams: int) -> None:
    manifest = fake_manifest([f"n{number}" for number in range(stages)])
    engine = Engine(stages=stages, context=64, streams=streams)
    assert engine.window == 2 * stages
    assert most_waiting(manifest, streams) > engine.most_in_ring > engine.window
