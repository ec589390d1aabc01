"""Our side of the benchmarks: builds to measure, made by ``ruvcompile``, and measurements, made by ``ruvrun bench``."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness import CACHE, ROOT, Options, tell

MODEL = CACHE.parent / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
CONTEXT = 512
"""Positions that builds for many streams are planned for."""

_BIN = Path(sys.executable).parent


def build(
    name: str,
    cpus: Sequence[int],
    *,
    reuse: bool,
    backends: Sequence[str] = (),
    more: Sequence[str] = (),
    model: Path = MODEL,
) -> Path:
    """Build a model in int4 with one stage for each of ``cpus``, pinned to it; the manifest.

    Args:
        backends: of each stage in order; none where the plan is to choose.
        more: of the command line.
        model: what to build.
    """
    directory = CACHE / name
    manifest = directory / "dist" / "manifest.toml"
    if reuse and manifest.is_file():
        return manifest
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    fleet = directory / "fleet.toml"
    nodes = [
        f'[[node]]\nname = "core-{number}"\ntarget = "{f"on-{backends[number]}" if backends else "host"}"\n'
        f'address = "local"\ncpus = [{cpu}]\nthreads = 1\n'
        for number, cpu in enumerate(cpus)
    ]
    # Kinds of nodes whose order is not to be chosen: the embedding is on the first.
    place = ['[[place]]\nmatch = "/embed"\non = ["core-0"]\n'] if len(set(backends)) > 1 else []
    fleet.write_text("\n".join(['format = 1\nhead = "core-0"\n', *nodes, *place]))
    tell(f"building {name}: {len(cpus)} stages of {model.name}")
    shape = ["--stages", str(len(cpus)), "--quant", "int4", "--quiet"]
    kinds = ["--targets-dir", str(_kinds(directory, backends))] if backends else []
    output = ["-o", str(directory / "dist")]
    command(["ruvcompile", "build", str(model), "--fleet", str(fleet), *shape, *kinds, *more, *output])
    return manifest


def _kinds(directory: Path, backends: Sequence[str]) -> Path:
    """Targets that are this machine with one of its back ends."""
    host = tomllib.loads((ROOT / "targets" / "host" / "target.toml").read_text("utf-8"))
    for backend in backends:
        kind = {**host, "backends": [backend], "packages": [f"ruvrun[{backend}]"]}
        path = directory / "targets" / f"on-{backend}" / "target.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in kind.items()))
    return directory / "targets"


def build_for(backend: str, cpus: Sequence[int], streams: int, *, reuse: bool) -> Path:
    """The model in one stage for each of ``cpus`` on one back end, planned for so many streams; the manifest.

    OpenVINO keeps keys and values in bytes, as it does where it is asked for nothing.
    """
    kept = ["--kv-type", "u8"] if backend == "openvino" else []
    more = ["--streams", str(streams), "--context", str(CONTEXT), *kept]
    name = f"{backend}-{len(cpus)}-for-{streams}"
    return build(name, cpus, reuse=reuse, backends=[backend] * len(cpus), more=more)


def bench(manifest: Path, options: Options, *, streams: int, more: Sequence[str] = ()) -> dict[str, Any]:
    """One run of ``ruvrun bench`` in fresh processes: head, load and stage 0 on one core, stage 1 on the next.

    ``more`` is of the command line.
    """
    context = options.prompt_tokens + options.tokens
    sizes = ["--prompt-tokens", str(options.prompt_tokens), "--max-tokens", str(options.tokens)]
    space = ["--streams", str(streams), "--context", str(context)]
    result: dict[str, Any] = json.loads(command(["ruvrun", "bench", str(manifest), *space, *sizes, *more, "--json"]))
    return result


def command(arguments: Sequence[str]) -> str:
    """Standard output of one of our commands; where it fails, what it said is passed on and we end."""
    program, *rest = arguments
    done = subprocess.run(
        [str(_BIN / program), *rest], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"error: {' '.join(arguments)} ended with {done.returncode}\n{done.stderr}{done.stdout}")
    return done.stdout


def busy(result: dict[str, Any]) -> list[dict[str, Any]]:
    """What the stages of a run did: the share of time each was busy, and milliseconds per step."""
    return [{key: stage[key] for key in ("node", "busy", "predicted_ms", "measured_ms")} for stage in result["stages"]]
