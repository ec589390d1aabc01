"""A small graph in two stages, served by real processes: called over HTTP by many at once, equal to the uncut model."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.commands.served import WAIT, Served, command, get, metric, post, serving, until
from tests.graphs import Array, assert_equal, make_model, run_original, tensor, weight

CALLERS = 6


def write_model(path: Path) -> onnx.ModelProto:
    """Two equal halves of enough work that a cut between them is the best there is."""
    random = np.random.default_rng(0)
    nodes, weights, before = [], [], "x"
    for number in range(4):
        weights.append(weight(f"w{number}", random.standard_normal((512, 512)) / 16))
        nodes.append(helper.make_node("MatMul", [before, f"w{number}"], [f"a{number}"], name=f"multiply{number}"))
        nodes.append(helper.make_node("Tanh", [f"a{number}"], [f"b{number}"], name=f"bend{number}"))
        before = f"b{number}"
    nodes.append(helper.make_node("ArgMax", [before], ["best"], name="best", axis=-1, keepdims=0))
    outputs = [tensor(before, ["rows", 512]), tensor("best", ["rows"], TensorProto.INT64)]
    model = make_model(nodes, [tensor("x", ["rows", 512])], outputs, weights)
    onnx.save(model, path)
    return model


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, onnx.ModelProto]:
    directory = tmp_path_factory.mktemp("graph")
    model = write_model(directory / "bends.onnx")
    words = ("--target", "host", "--nodes", 2, "--stages", 2, "--backend", "onnxruntime", "--shape", "x=64x512", "-q")
    done = command("ruvcompile", "build", directory / "bends.onnx", *words, "-o", directory / "dist")
    assert done.returncode == 0, done.stderr
    return directory / "dist" / "manifest.toml", model


@pytest.fixture(scope="module")
def service(built: tuple[Path, onnx.ModelProto]) -> Iterator[Served]:
    with serving(built[0], "--port", "0") as served:
        served.ready()
        yield served


def arrays_of(seed: int, rows: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).standard_normal((rows, 512), np.float32)}


def as_json(arrays: dict[str, Array]) -> dict[str, Any]:
    (x,) = arrays.values()
    return {"inputs": [{"name": "x", "shape": list(x.shape), "datatype": "FP32", "data": x.tolist()}]}


def infer(url: str, arrays: dict[str, Array]) -> dict[str, Array]:
    status, body = post(url, "/v2/models/bends/infer", as_json(arrays))
    assert status == 200, body
    types = {"FP32": np.float32, "INT64": np.int64}
    return {one["name"]: np.array(one["data"], types[one["datatype"]]).reshape(one["shape"]) for one in body["outputs"]}


def test_the_model_is_described(service: Served) -> None:
    status, body = get(service.url, "/v2/models/bends")
    assert status == 200
    assert body["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 512]}]
    assert [one["name"] for one in body["outputs"]] == ["b3", "best"]
    assert get(service.url, "/v2/models/bends/ready") == (200, {"name": "bends", "ready": True})
    assert get(service.url, "/v1/models")[0] == 404


def test_calls_in_flight_fill_the_pipeline_and_are_the_uncut_models(
    service: Served, built: tuple[Path, onnx.ModelProto]
) -> None:
    """The second stage is stopped: as many calls as the window holds go in all the same, the others wait in the head.
    When it goes on, every call gets its own answer, and that is the uncut model's.
    """
    asked = [arrays_of(seed, rows=1 + seed % 3) for seed in range(CALLERS)]
    stopped = service.children()["stage host-1"]
    with ThreadPoolExecutor(CALLERS) as pool:
        os.kill(stopped, signal.SIGSTOP)
        try:
            answers = [pool.submit(infer, service.url, arrays) for arrays in asked]
            until(lambda: in_flight(service.url) == (4, CALLERS - 4))
            assert not any(answer.done() for answer in answers)
        finally:
            os.kill(stopped, signal.SIGCONT)
        for arrays, answer in zip(asked, answers, strict=True):
            assert_equal(answer.result(WAIT), run_original(built[1], arrays))
    assert in_flight(service.url) == (0, 0)


def in_flight(url: str) -> tuple[int, int]:
    """Calls in the ring, and calls that wait for their turn."""
    return metric(url, "requests_running"), metric(url, "requests_waiting")


def test_wrong_inputs_end_one_call_and_no_other(service: Served) -> None:
    arrays = arrays_of(1, rows=2)
    status, body = post(service.url, "/v2/models/bends/infer", as_json({"x": arrays["x"][:, :511]}))
    assert (status, "'x' is [2, 511]" in body["error"]) == (400, True)
    assert infer(service.url, arrays)["b3"].shape == (2, 512)


def test_run_asks_a_running_head(service: Served, built: tuple[Path, onnx.ModelProto], tmp_path: Path) -> None:
    arrays = arrays_of(7, rows=5)
    np.savez(tmp_path / "in.npz", x=arrays["x"])
    words = ("--input", tmp_path / "in.npz", "--output", tmp_path / "out.npz", "--json")
    done = command("ruvrun", "run", "--url", service.url, *words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["tensors"] == {"b3": [5, 512], "best": [5]}
    with np.load(tmp_path / "out.npz") as found:
        assert_equal(dict(found), run_original(built[1], arrays))
    looked = command("ruvrun", "status", service.url, "--check")
    assert (looked.returncode, looked.stdout) == (0, f"ready: 2 of 2 stages at {service.url}\n")


def test_a_lost_stage_costs_the_calls_a_pause(service: Served, built: tuple[Path, onnx.ModelProto]) -> None:
    arrays = arrays_of(3, rows=1)
    lost = service.children()["stage host-1"]
    with ThreadPoolExecutor(1) as pool:
        os.kill(lost, signal.SIGSTOP)
        answer = pool.submit(infer, service.url, arrays)
        until(lambda: in_flight(service.url) == (1, 0))
        os.kill(lost, signal.SIGKILL)
        assert_equal(answer.result(WAIT), run_original(built[1], arrays))
    assert service.children()["stage host-1"] != lost


def test_texts_travel_too(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("StringConcat", ["x", "x"], ["twice"], name="first"),
        helper.make_node("StringConcat", ["twice", "x"], ["y"], name="second"),
    ]
    texts = [tensor(name, ["n"], TensorProto.STRING) for name in "xy"]
    onnx.save(make_model(nodes, texts[:1], texts[1:], opset=20), tmp_path / "thrice.onnx")
    np.savez(tmp_path / "in.npz", x=np.array(["a"]))
    words = ("--target", "host", "--nodes", 2, "--stages", 2, "--inputs", tmp_path / "in.npz", "-q")
    done = command("ruvcompile", "build", tmp_path / "thrice.onnx", *words, "-o", tmp_path / "dist")
    assert done.returncode == 0, done.stderr
    with serving(tmp_path / "dist" / "manifest.toml", "--port", "0") as served:
        entry = {"name": "x", "shape": [2], "datatype": "BYTES", "data": ["ü", ""]}
        status, body = post(served.ready(), "/v2/models/thrice/infer", {"inputs": [entry]})
    assert (status, body["outputs"]) == (200, [{"name": "y", "datatype": "BYTES", "shape": [2], "data": ["üüü", ""]}])
