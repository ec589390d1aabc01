"""What ``ruvcompile targets`` says: the kinds of machines there are, as text, as a table of Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ruvcompile.cli.table import table
from ruvcompile.quantities import show_bytes
from ruvcompile.targets import NATIVE, Target, requirements

PLATFORM = "Linux only for now (Windows through WSL2, CPU only)"


def targets_text(targets: Sequence[Target]) -> str:
    """The targets that can be named."""
    head = ["target", "what", "back end", "machine", "memory", "quant", "key/value"]
    rows = [
        [
            target.name,
            target.title,
            ", ".join(target.backends),
            target.machine,
            _memory(target),
            ", ".join(target.quants),
            ", ".join(target.kv_types),
        ]
        for target in targets
    ]
    return f"{table(head, rows)}\n\n{PLATFORM}."


def targets_markdown(targets: Sequence[Target]) -> str:
    """The same as a table of Markdown, which says the same on every machine."""
    head = ["target", "what", "back end", "CPU", "weights", "key/value", "memory", "Python", "figures"]
    lines = [f"| {' | '.join(head)} |", "| --- " * len(head) + "|"]
    for target in targets:
        cells = [
            f"`{target.name}`",
            target.title,
            ", ".join(target.backends),
            " ".join(([] if target.arch == NATIVE else [target.arch]) + list(target.features)) or "as here",
            ", ".join(target.quants),
            ", ".join(target.kv_types),
            ", ".join(_short(size) for size in sorted(target.memory)) or "as here",
            ", ".join(target.pythons) or "as here",
            _figures(target),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _figures(target: Target) -> str:
    """How many figures of each kind a target has."""
    kinds = [figure.kind for figure in target.figures]
    return ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)) or "nothing"


def _short(size: int) -> str:
    return f"{size >> 30} GiB" if size % (1 << 30) == 0 else show_bytes(size)


def _memory(target: Target) -> str:
    """What is assumed where a fleet does not say, and what else such machines are sold with."""
    others = ", ".join(show_bytes(size) for size in sorted(target.memory[1:]))
    return show_bytes(target.installed) + (f" (or {others})" if others else "")


def targets_json(targets: Sequence[Target]) -> dict[str, Any]:
    """The same as one object."""
    return {"targets": [_json(target) for target in targets], "platform": PLATFORM}


def _json(target: Target) -> dict[str, Any]:
    found = {
        "name": target.name,
        "title": target.title,
        "backend": target.backend,
        "backends": list(target.backends),
        "machine": target.machine,
        "features": list(target.features),
        "memory": list(target.memory) or [target.installed],
        "pages": list(target.pages) or [target.page],
        "quants": list(target.quants),
        "kv_types": list(target.kv_types),
        "packages": list(requirements(target, head=False)),
        "pythons": list(target.pythons),
        "glibc": target.libc,
        "drivers": list(target.drivers),
        "deploy": list(target.deploy),
        "figures": {figure.name: _without_name(asdict(figure)) for figure in target.figures},
    }
    return {**found, "accelerator": asdict(target.accelerator)} if target.accelerator is not None else found


def _without_name(figure: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in figure.items() if key != "name"}
