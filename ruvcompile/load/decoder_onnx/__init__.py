"""A decoder that already is ONNX, made into a program: the table of contents.

1. Its state pairs are recognised (``passes/state``); what has none is any other graph, and is left alone.
2. What lies beside it is read: configuration, tokenizer (``facts``).
3. Where every layer is of a pattern that is known, the canonical form is drawn from it, its weights as they are
   (``form``, ``pattern``).
4. Otherwise it is run as it is, with its state kept in the stages: sizes are settled (``shapes``), parts get the names
   that say where it may be cut (``blocks``).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from ruvcompile.errors import InputError
from ruvcompile.load.decoder_onnx.blocks import name_blocks
from ruvcompile.load.decoder_onnx.canonical import Unclear, canonical
from ruvcompile.load.decoder_onnx.facts import Facts, read_facts
from ruvcompile.load.decoder_onnx.shapes import add_sources, heads_of, settle_shapes, size_of
from ruvcompile.load.head import TOKENIZER, HeadFiles, head_files
from ruvcompile.load.json_file import read_bytes, read_json_object
from ruvcompile.passes.canonicalise import canonicalise
from ruvcompile.passes.state import FILLED, IDS, LOGITS, Ports, find_ports
from ruvcompile.program import Decoder, Program


def as_decoder(program: Program, path: Path) -> Program:
    """``program`` as a decoder, if its graph is one; otherwise as it is.

    Args:
        program: as loaded.
        path: the graph's file, beside which more is read.

    Raises:
        InputError: it is a decoder, and something that it needs is missing or does not fit.
    """
    if find_ports(program.model) is None:
        return program
    program = canonicalise(program)
    model = program.model
    facts = read_facts(path, program.source.path)
    ports = _settle_ports(model, facts, program.source.path)
    facts = _complete(facts, ports, program.source.path)
    head = _head_files(facts)
    add_sources(model)
    ports = replace(ports, filled=tuple(value for value in model.graph.inputs if value.name in FILLED))
    return _drawn(replace(program, head_files=head.files), facts, ports, head.eos or facts.eos)


def _drawn(program: Program, facts: Facts, ports: Ports, eos: tuple[int, ...]) -> Program:
    """The program in canonical form where that is clear, else as it was exported."""
    stateful = False
    try:
        model, width = canonical(program.model, vocab=facts.vocab, context=facts.context)
    except Unclear:
        model, stateful = program.model, True
        settle_shapes(model, ports, vocab=facts.vocab, context=facts.context)
        width = name_blocks(model, ports, vocab=facts.vocab, context=facts.context)
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
        stateful=stateful,
    )
    return replace(program, model=model, decoder=decoder)


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
    return replace(facts, vocab=vocab)


def _head_files(facts: Facts) -> HeadFiles:
    raw = read_bytes(facts.folder / TOKENIZER, TOKENIZER)
    path = facts.folder / "tokenizer_config.json"
    config = read_json_object(path, path.name) if path.is_file() else {}
    bos, eos = (
        each.get("content", "") if isinstance(each := config.get(key), dict) else each or ""
        for key in ("bos_token", "eos_token")
    )
    return head_files(
        raw,
        template=config.get("chat_template"),
        chatml=False,
        bos=bos,
        eos=eos,
        add_bos=bool(config.get("add_bos_token")),
        ends=facts.eos,
    )


__all__ = ["as_decoder"]
