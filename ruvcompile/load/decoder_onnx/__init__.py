"""A decoder that already is ONNX, made into a program: the table of contents.

1. Its state pairs are recognised (``passes/state``); what has none is any other graph, and is left alone.
2. What lies beside it is read: configuration, tokenizer (``facts``).
3. Where every layer is of a pattern that is known, the canonical form is drawn from it, its weights as they are
   (``canonical``).
4. Otherwise it is run as it is, with its state kept in the stages: sizes are settled (``shapes``), parts get the names
   that say where it may be cut (``blocks``).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ruvcompile.errors import InputError
from ruvcompile.load.decoder_onnx.blocks import crossing, name_blocks
from ruvcompile.load.decoder_onnx.canonical import Unclear, canonical
from ruvcompile.load.decoder_onnx.facts import Facts, read_facts
from ruvcompile.load.decoder_onnx.runs import heads_of, probes, size_of, watch
from ruvcompile.load.decoder_onnx.shapes import add_sources, asked, settle_shapes
from ruvcompile.load.directory import directory_name
from ruvcompile.load.directory_tokenizer import read_tokenizer
from ruvcompile.passes.canonicalise import canonicalise
from ruvcompile.passes.state import FILLED, IDS, LOGITS, WANTED, Ports, find_ports, why_no_decoder
from ruvcompile.program import Decoder, Program

# Tables hold a row for every position: some configurations say a thousand million, and mean that there is no limit.
_MOST_POSITIONS = 1 << 20
_SLOW = "the decoder is run as it was exported, its state copied with every token: correct, and slower than it could be"


def as_decoder(program: Program, path: Path) -> Program:
    """``program`` as a decoder, if its graph is one; otherwise as it is.

    Args:
        program: as loaded.
        path: the graph's file, beside which more is read.

    Raises:
        InputError: it is a decoder, and something that it needs is missing or does not fit.
    """
    if find_ports(program.model) is None:
        why = why_no_decoder(program.model)
        return replace(program, notes=(*program.notes, f"no decoder, though it has state: {why}")) if why else program
    program = canonicalise(program)
    model = program.model
    _plain_inputs(model)
    facts = read_facts(path, program.source.path)
    ports = _settle_ports(model, facts, program.source.path)
    facts = _complete(facts, ports, program.source.path)
    folder = str(Path(program.source.path).parent) if facts.folder == path.parent else str(facts.folder)
    head = read_tokenizer(facts.folder, folder, facts.config, facts.vocab)
    _keep_all_state(model)
    add_sources(model)
    ports = replace(ports, filled=tuple(value for value in model.graph.inputs if value.name in FILLED))
    # Exporters call every graph the same; the folder has the model's name.
    name = directory_name(facts.folder) if path.stem == "model" else program.name
    return _drawn(replace(program, name=name, head_files=head.files), facts, ports, head.eos)


def _drawn(program: Program, facts: Facts, ports: Ports, eos: tuple[int, ...]) -> Program:
    """The program in canonical form where that is clear, else as it was exported."""
    notes: tuple[str, ...] = ()
    model, vocab, context = program.model, facts.vocab, facts.context
    sizes = probes(model, context)
    try:
        seen = watch(model, ports, asked(model), sizes, vocab)
    except InputError as error:
        raise InputError(
            "decoder-does-not-run",
            f"{program.source.path} does not run as the decoder that its configuration tells of",
            context=error.context,
            hint="it may be another model's: copy the one that was exported with this file beside it",
        ) from None
    try:
        model, width = canonical(model, seen, vocab=vocab, context=context)
    except Unclear as why:
        notes = (_SLOW, f"it is not brought into the usual form: {why}")
        settle_shapes(model, seen)
        width = name_blocks(model, ports, watch(model, ports, crossing(model, ports), sizes, vocab))
    kv_heads = heads_of(ports.pairs[0].past)
    decoder = Decoder(
        architecture=facts.architecture,
        layers=ports.layers,
        hidden=width,
        heads=facts.heads or kv_heads,
        kv_heads=kv_heads,
        head_size=size_of(ports.pairs[0].past),
        vocab=facts.vocab,
        context=facts.context,
        eos=eos,
        exported=bool(notes),
    )
    return replace(program, model=model, decoder=decoder, notes=program.notes + notes)


def _settle_ports(model: ir.Model, facts: Facts, named_as: str) -> Ports:
    """The ports, under canonical names and with the sizes that the graph leaves open."""
    ports = find_ports(model)
    assert ports is not None
    for pair in ports.pairs:
        shape = pair.past.shape
        heads = shape[1] if shape is not None else None
        size = shape[3] if shape is not None else None
        size = size if isinstance(size, int) else facts.head_size
        if not isinstance(heads, int) or not size:
            raise InputError(
                "decoder-state-open",
                f"{named_as} does not say how large its state {pair.past.name} is",
                hint="export it with fixed numbers of heads and head sizes",
            )
        pair.past.shape = ir.Shape(["batch", heads, "past", size])
        pair.present.shape = ir.Shape(["batch", heads, "total", size])
    _rename(ports)
    ports.ids.shape = ir.Shape(["batch", "sequence"])
    return ports


def _plain_inputs(model: ir.Model) -> None:
    """Whole numbers come in as int64, whatever the exporter chose, and all logits are wanted (which 0 stands for)."""
    graph = model.graph
    for value in list(graph.inputs):
        name, kind = str(value.name), value.dtype
        if name in WANTED:
            graph.inputs.remove(value)
            array = np.zeros([size if isinstance(size, int) else 1 for size in value.shape or ()], np.int64)
            value.const_value = ir.Tensor(array.astype(kind.numpy() if kind else np.int64), name=name)
            graph.register_initializer(value)
        elif name in {IDS, *FILLED} and kind not in (None, ir.DataType.INT64):
            value.type = ir.TensorType(ir.DataType.INT64)
            cast = ir.node("Cast", [value], {"to": int(kind or 0)}, name=f"Cast/{name}", num_outputs=1)
            cast.outputs[0].name = f"{name}/as_exported"
            cast.outputs[0].type = ir.TensorType(kind or ir.DataType.INT64)
            value.replace_all_uses_with(cast.outputs[0])
            cast.replace_input_with(0, value)
            graph.insert_before(graph[0], cast)


def _keep_all_state(model: ir.Model) -> None:
    """A layer with a window may be told to keep no more state than that; here it is told the window alone.

    It computes the same: what has left the window is not looked at. But state that is overwritten cannot be rewound.
    """
    for node in model.graph:
        if node.op_type == "GroupQueryAttention":
            node.attributes.pop("sliding_window_cache", None)


def _rename(ports: Ports) -> None:
    """Canonical names of inputs and outputs. Each first gets one that nobody has, as exporters name crosswise."""
    wanted = {ports.ids: IDS, ports.logits: LOGITS}
    for pair in ports.pairs:
        wanted[pair.past] = f"past_{pair.half}.{pair.layer}"
        wanted[pair.present] = f"present_{pair.half}.{pair.layer}"
    for value in wanted:
        value.name = f"{value.name}/renamed"
    for value, name in wanted.items():
        value.name = name


def _complete(facts: Facts, ports: Ports, named_as: str) -> Facts:
    """``facts`` with the vocabulary out of the graph, once it is sure that the rest is there."""
    shape = ports.logits.shape
    last = shape[-1] if shape is not None and len(shape) else None
    vocab = last if isinstance(last, int) else facts.vocab
    if not vocab or not facts.context:
        what = "how long a text it takes" if vocab else "how many tokens its vocabulary has"
        raise InputError(
            "decoder-config-short",
            f"the configuration beside {named_as} does not say {what}",
            hint="export the model again with its configuration",
        )
    ports.logits.shape = ir.Shape(["batch", "sequence", vocab])
    return replace(facts, vocab=vocab, context=min(facts.context, _MOST_POSITIONS))


__all__ = ["as_decoder"]
