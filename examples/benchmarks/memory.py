"""What a stage's process takes beside its weights: peak memory of a stage of 300 MB or more, on each back end.

    python memory.py [--pairs N] [--reuse]

(peak resident bytes - those with the back end imported and nothing loaded - key/value space) / bytes of the weights in
the bundle. A llama of 1B's shapes and random weights, in int4, in one stage. It is loaded as a stage's process loads
it, with hashes and golden check, in a fresh process; then a prompt fills its key/value space, and some tokens follow.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from built import build
from checkpoint import SHAPES, write_checkpoint
from harness import CACHE, Benchmark, Options, Target, finish, read_options, report, tell, two_cores, versions

BOUNDS = {"onnxruntime": Target(at_most=1.45), "openvino": Target(at_most=2.5)}
BENCHMARK = Benchmark("memory", "ratio", BOUNDS["onnxruntime"])
LEAST = 300e6
CONTEXT, CHUNK, DECODED = 512, 256, 16


def resident(manifest: Path, cpu: int) -> None:
    """In a process of its own: load the stage, let it work, and say what that took, as JSON."""
    os.sched_setaffinity(0, {cpu})
    import numpy as np

    import ruvrun.stage  # noqa: F401 - what a stage's process has imported before it loads anything
    from ruvrun import frames
    from ruvrun.bench import GREEDY
    from ruvrun.bundle import find_bundles, load_spec
    from ruvrun.executors import back_end
    from ruvrun.machine import peak_bytes
    from ruvrun.manifest import load_manifest
    from ruvrun.pipeline.loading import load_worker

    loaded = load_manifest(manifest)
    (placed,) = loaded.pipeline[0].stages
    directory = find_bundles(manifest, loaded)[placed.node]
    spec = load_spec(directory)
    back_end(spec)
    bare = now_resident()
    worker = load_worker(directory, loaded, placed.stage, context=CONTEXT, streams=1, threads=1)
    draws = np.random.default_rng(0)
    prompt = CONTEXT - DECODED
    parts = [(first, min(CHUNK, prompt - first)) for first in range(0, prompt, CHUNK)]
    parts += [(position, 1) for position in range(prompt, CONTEXT)]
    worker.handle(frames.Open(1, 0, 0, GREEDY), {})
    for step, (position, count) in enumerate(parts, 1):
        row = int(position + count >= prompt)
        inputs = {each.name: draw(draws, each, count) for each in spec.inputs}
        worker.handle(frames.Step(1, step, (frames.SeqStep(0, 0, position, count, row),)), inputs)
    stage = loaded.stage[placed.stage]
    assert stage.kv is not None
    told = {
        "peak_bytes": peak_bytes(),
        "bare_bytes": bare,
        "kv_bytes": stage.kv.bytes_per_token * CONTEXT,
        "weight_bytes": stage.weight_bytes,
    }
    print(json.dumps(told), flush=True)


def draw(draws: Any, tensor: Any, tokens: int) -> Any:
    """An input of so many tokens."""
    shape = (tokens, *tensor.shape[1:])
    if tensor.dtype == "int64":
        return draws.integers(0, 1000, shape)
    return draws.standard_normal(shape).astype(tensor.dtype)


def now_resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(manifest: Path, cpu: int) -> dict[str, Any]:
    """What the stage takes, and the ratio."""
    argv = [sys.executable, __file__, "stage", str(manifest), str(cpu)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=True, text=True, env=env)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if told["weight_bytes"] < LEAST:
        raise SystemExit(f"error: the stage has {told['weight_bytes']} bytes of weights; that proves nothing")
    beside = told["peak_bytes"] - told["bare_bytes"] - told["kv_bytes"]
    return {"ratio": beside / told["weight_bytes"], **told}


def main() -> int:
    options = read_options(__doc__ or "", Options(pairs=3))
    cpu, _ = two_cores()
    model = CACHE / "memory-model"
    if not (options.reuse and (model / "model.safetensors.index.json").is_file()):
        tell(f"making {model}")
        write_checkpoint(SHAPES["1b"], model)
    runs: list[dict[str, Any]] = []
    ratios: dict[str, list[float]] = {}
    more = ["--context", str(CONTEXT), "--streams", "1"]
    for backend in BOUNDS:
        path = build(f"memory-{backend}", [cpu], reuse=options.reuse, backends=[backend], more=more, model=model)
        for number in range(1, options.pairs + 1):
            runs.append({"backend": backend, **measure(path, cpu)})
            ratios.setdefault(backend, []).append(runs[-1]["ratio"])
            size = runs[-1]["weight_bytes"] / 1e6
            tell(f"{backend}, {number} of {options.pairs}: {runs[-1]['ratio']:.3f} of {size:.0f} MB")
    values = {backend: statistics.median(found) for backend, found in ratios.items()}
    details = {
        "what": "(peak - with nothing loaded - key/value) / weights in the bundle, ONNX Runtime",
        "openvino": {"value": values["openvino"], **BOUNDS["openvino"].as_json()},
        "context": CONTEXT,
    }
    result = report(
        BENCHMARK,
        values["onnxruntime"],
        runs=runs,
        spread=ratios["onnxruntime"],
        details=details,
        versions=versions("openvino"),
        also=BOUNDS["openvino"].met(values["openvino"]),
    )
    return finish(result)


if __name__ == "__main__":
    if sys.argv[1:2] == ["stage"]:
        resident(Path(sys.argv[2]), int(sys.argv[3]))
        sys.exit(0)
    sys.exit(main())
