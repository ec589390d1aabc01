"""Fleets of one to six nodes on this machine, for plans of a model whose every unit costs 1 ms."""

from __future__ import annotations

from pathlib import Path

LAYERS = 3
UNITS = 2 * LAYERS + 2
VOCAB = 300
THREE = [f"cpus = [{core}]" for core in range(3)]

# One pass through two stages of this machine crosses two links between processes of two nodes, 0.1 ms each by default;
# the head is beside stage 0.
HOPS = 0.2


def fleet(folder: Path, *nodes: str) -> str:
    """A fleet file of nodes a, b, ... on this machine, each with more keys; one thread each, as the rows have."""
    tables = [
        f'[[node]]\nname = "{name}"\ntarget = "host"\nthreads = 1\n{keys}\n'
        for name, keys in zip("abcdef", nodes, strict=False)
    ]
    path = folder / "fleet.toml"
    path.write_text("\n".join(tables))
    return str(path)


def cut_of(result: dict) -> list[int]:
    """Units before each cut, out of the predicted times of stages whose units all cost 1 ms."""
    bounds, at = [], 0.0
    for stage in result["stages"][:-1]:
        at += stage["predicted_ms_one"]
        bounds.append(round(at))
    return bounds
