"""``ruvcompile targets --check``: is every target whole, its data and whatever is rendered from it?

What the schema cannot see is looked at here:

1. every file for a node is rendered for every target, as for a stage, for a head, and for a node that is only the head,
   and all that delivers to two such nodes, of decoders and of graphs, with wheels and without; an undefined name in a
   template is an error;
2. a template in a target's own folder is one that something renders;
3. a figure that is scaled from another target's names one that there is;
4. an accelerator's script and notes are rendered, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import ruvrun
from ruvcompile.accelerator.parts import README, SCRIPT, render_parts
from ruvcompile.errors import InputError, RuvError, did_you_mean
from ruvcompile.fleet import HOST
from ruvcompile.render import FILES, SUFFIX, NodeFacts, render_fleet, render_node
from ruvcompile.targets import TEMPLATES, Target, load_target, target_names
from ruvcompile.targets.nouns import FILE, HERE

_STAGE = NodeFacts(
    model="model",
    id="0" * 64,
    node="node-1",
    stage=1,
    stages=2,
    head=False,
    head_node="node-0",
    address="node-1.local",
    port=7070,
    cpus=(0, 1),
    threads=2,
)
SITUATIONS = (
    _STAGE,
    replace(_STAGE, node="node-0", stage=0, head=True, cpus=()),
    replace(_STAGE, node="node-0", stage=None, head=True),
)
"""What a node may be: one that holds a stage, one that has the head, too, and one that has nothing else."""


def check_targets(extra: Path | None = None) -> list[RuvError]:
    """Everything that is wrong with any target's data or templates; empty when all is well."""
    names = target_names(extra)
    problems: list[RuvError] = [
        InputError("target-missing-data", f"{folder} has no {FILE}", hint="a target is a folder with that file")
        for root in dict.fromkeys((extra, HERE))
        for folder in (sorted(root.iterdir()) if root is not None and root.is_dir() else ())
        if folder.is_dir() and folder.name[0] not in "._" and not (folder / FILE).exists()
    ]
    for name, folder in names.items():
        try:
            target = load_target(name, extra)
        except RuvError as problem:
            problems.append(problem)
            continue
        problems += [*_unrendered(target), *_strangers(folder, target), *_sources(target, set(names))]
    if HOST not in names:
        problems.append(
            InputError("host-target-missing", f"there is no target {HOST!r}", hint="install ruvcompile again")
        )
    return problems


def _unrendered(target: Target) -> Iterator[RuvError]:
    """One problem for each template that is not rendered."""
    stage, head, _ = SITUATIONS
    nodes = [(head, target.on(target.backend)), (stage, target.on(target.backend))]
    renderings: list[Callable[[], object]] = [partial(render_node, target, facts) for facts in SITUATIONS]
    renderings += [
        partial(render_fleet, nodes, kind=kind, version=ruvrun.__version__, most=8, wheels=wheels)
        for kind in ("decoder", "graph")
        for wheels in (False, True)
    ]
    if target.accelerator is not None:
        renderings.append(partial(render_parts, target, "model", []))
    told = set()
    for rendered in renderings:
        try:
            rendered()
        except RuvError as problem:
            if str(problem) not in told:
                told.add(str(problem))
                yield problem


def _strangers(folder: Path, target: Target) -> Iterator[RuvError]:
    """Templates of a target's own that nothing renders: a name that was mistyped, mostly."""
    own = folder / TEMPLATES
    known = {f"{name}{SUFFIX}" for name in (*FILES, *target.deploy, f"parts/{SCRIPT}", f"parts/{README}")}
    for path in sorted(own.rglob("*")) if own.is_dir() else ():
        name = str(path.relative_to(own))
        if path.is_file() and name not in known:
            yield InputError("template-unknown", f"nothing renders {path}", hint=did_you_mean(name, sorted(known)))


def _sources(target: Target, names: set[str]) -> Iterator[RuvError]:
    for figure in target.figures:
        other, colon, _ = figure.source.partition(": ")
        if figure.kind == "scaled" and colon and " " not in other and other not in names:
            what = f"target {target.name}: figure {figure.name} is scaled from {other!r}, which is no target"
            yield InputError("target-wrong", what, hint=did_you_mean(other, sorted(names)))
