"""Writes the model of a build for OpenVINO GenAI: the same four-bit weights, in the form that it takes.

Ours is the canonical program, stateful, before anything else that our compiler does to it: attention is not paged yet
(the library does that itself, when it loads), and the projections of one input are products of their own, as exporters
write them. ``stacked=True`` leaves them as one, as our compiler makes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import openvino as ov

from ruvcompile import passes
from ruvcompile.load import load
from ruvcompile.lower import stage
from ruvcompile.lower.draft import Draft, Written
from ruvcompile.lower.openvino.bundle import Form, write_form
from ruvcompile.lower.openvino.states import make_stateful
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import pieces, program_units
from ruvcompile.passes.quantise import quantise
from ruvrun.bundle import StageSpec
from ruvrun.executors.openvino.intermediate import map_stage

BLOCK = 32
_STACKED = "stacked"


def write_peer_model(source: Path, like: StageSpec, directory: Path, *, context: int, stacked: bool = False) -> None:
    """Write ``directory`` from the model in the file ``source``; files in it are replaced.

    Args:
        like: our stage of the whole model; what is computed, and how, is as there.
        context: positions that one sequence may have.
    """
    program = quantise(passes.run(load(str(source))), "int4")
    (piece,) = pieces(program, program_units(program), ())
    made = directory / (_STACKED if stacked else "apart")
    stage.LOWERINGS[__name__] = __name__
    spec = stage.write_stage(program, piece, made, WeightStore(directory / "store"), backend=__name__, target="host")
    model, _constants = map_stage(ov.Core(), made, spec)  # which the model reads
    _without_rows(model)
    ov.save_model(model, directory / "openvino_model.xml", compress_to_fp16=False)
    # An answer is measured at its full length, so nothing that may be picked ends it.
    end = {"eos_token_id": program.decoder.vocab - 1 if program.decoder else 0}
    (directory / "config.json").write_text(json.dumps({"model_type": "llama", **end}))
    (directory / "generation_config.json").write_text(json.dumps(end))
    settings = {**like.options, "blocks": 4 * -(-context // BLOCK)}
    (directory / "settings.json").write_text(json.dumps(settings))


def write(draft: Draft) -> Written:
    """The lowering: state, and nothing else."""
    return write_form(draft, Form(_shape, _options, "openvino", stacked=draft.directory.name == _STACKED))


def _shape(model: Any, draft: Draft, windows: Sequence[int]) -> None:
    del windows
    make_stateful(model, draft)


def _options(kv_type: str, level: int) -> Mapping[str, str]:
    del kv_type, level
    return {}


def _without_rows(model: Any) -> None:
    """Logits of every row, on an axis of sequences and one of tokens; which are wanted is the library's to say."""
    (rows,) = [each for each in model.get_parameters() if each.get_friendly_name() == "logit_rows"]
    (wanted,) = [port.get_node() for port in rows.output(0).get_target_inputs()]
    hidden = wanted.input_value(0).get_node().input_value(0)
    for reader in wanted.output(0).get_target_inputs():
        reader.replace_source_output(hidden)
    model.remove_parameter(rows)
    model.validate_nodes_and_infer_types()
