"""A head that serves a graph over HTTP: its driver is real, its stages are called in its poll."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import msgspec

from ruvrun.errors import InputError
from ruvrun.executors import Array
from ruvrun.manifest import Manifest, Tensor
from ruvrun.pipeline.calls import Calls
from ruvrun.pipeline.driver import Driver
from ruvrun.pipeline.worker import Worker
from ruvrun.server import build_app
from tests.runtime.driving import NAMES, graph_spec
from tests.runtime.fake_ring import WAIT, FakeRing, fake_manifest
from tests.runtime.fronts import served

X = Tensor(name="x", dtype="int64", shape=["n"])
INFER = "/v2/models/fake/infer"


class Doubler:
    """A stage of a graph: y = 2 x; refuses what is negative."""

    def run(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        if (tensors["x"] < 0).any():
            raise InputError("graph-run-failed", "no", context=["x is negative"], hint=None)
        return {"x": tensors["x"] * 2}


def graph_manifest() -> Manifest:
    manifest = fake_manifest(NAMES, "graph")
    program = msgspec.structs.replace(manifest.program, inputs=[X], outputs=[X])
    return msgspec.structs.replace(manifest, program=program)


@contextmanager
def serving(api_keys: dict[str, str] | None = None) -> Iterator[tuple[str, FakeRing, Driver]]:
    ring = FakeRing([Worker(Doubler(), graph_spec(first, not first)) for first in (True, False)], NAMES)
    manifest = graph_manifest()
    driver = Driver(manifest, ring, Calls(stages=2, epoch=7))
    driver.start()
    try:
        ring.ready()
        assert driver.wait_ready(WAIT)
        with served(build_app(driver, None, manifest, api_keys=api_keys or {}, context=0)) as url:
            yield url, ring, driver
    finally:
        driver.stop()
