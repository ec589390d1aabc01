"""A probe: what `ruvrun profile` measures on a machine before any model is copied there.

It is a stage like any other, lowered for the target, with a sheet that says which units its nodes belong to: of a
decoder some layers of each kind between the embedding and the head, of any other graph all of it. Its units have the
keys of the model's own, so the costs that are measured with it are those of the model. Its large weights are not in
it: they are drawn on the machine (``ruvrun.profile.draw``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruvcompile.lower.sheet import Keyed
from ruvcompile.lower.stage import write_stage
from ruvcompile.passes.infer import Type
from ruvcompile.passes.pieces import pieces
from ruvcompile.probe.store import DrawnStore
from ruvcompile.program import Program
from ruvcompile.samples.written import write_inputs
from ruvcompile.targets import Target
from ruvrun.elements import Value
from ruvrun.manifest import dump_toml
from ruvrun.profile.draw import KEPT, PROBE, Probe, gaps

SEED = 0
PROBE_BYTES = 256 << 20
"""Weights of a decoder's probe, while there are layers to add: more than caches hold, so that it is not flattered."""


def write_probe(
    program: Program,
    keyed: Keyed,
    directory: Path,
    *,
    target: Target,
    threads: int,
    quant: str,
    types: Mapping[str, Type],
    samples: Mapping[str, Value],
) -> dict[str, Any]:
    """Write the probe of a model for one kind of machine.

    Args:
        program: quantised; what is measured, so of a decoder a reduced one.
        keyed: its units.
        directory: empty.
        threads: what stages on such a machine run with.
        quant: as asked for.
        types: a graph's, as observed.
        samples: a graph's inputs.

    Returns:
        The JSON object of the command, without what only the command line knows.
    """
    store = DrawnStore(directory / ".store", SEED)
    (piece,) = pieces(program, keyed.units, ())
    spec = write_stage(
        program,
        piece,
        directory,
        store,
        backend=target.backend,
        target=target.name,
        types=types,
        keyed=keyed,
        passing=True,
        kv_type=target.kv_type,
    )
    if program.decoder is None:
        write_inputs(directory, spec, samples)
    store.remove()
    placed = {file.path for file in spec.files}
    files = sorted((file for file in store.files.values() if file.path in placed), key=lambda file: file.path)
    for file in files:
        _keep_the_rest(directory / file.path, gaps(file))
    probe = Probe(model=program.name, quant=quant, target=target.name, threads=threads, seed=SEED, file=files)
    (directory / PROBE).write_bytes(dump_toml(probe))
    drawn = sum(tensor.length for file in files for tensor in file.tensor)
    return {
        "model": program.name,
        "target": target.name,
        "backend": target.backend,
        "threads": threads,
        "units": len(set(keyed.keys)),
        "bytes": sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()),
        "drawn_bytes": drawn,
    }


def _keep_the_rest(path: Path, spans: Sequence[tuple[int, int]]) -> None:
    """Replace a weight file by what is not drawn of it, if anything."""
    if spans:
        with path.open("rb") as whole, path.with_name(path.name + KEPT).open("wb") as kept:
            for start, stop in spans:
                whole.seek(start)
                kept.write(whole.read(stop - start))
    path.unlink()
