"""What ``ruvcompile targets`` says: the kinds of machines there are, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ruvcompile.quantities import show_bytes
from ruvcompile.tables import table
from ruvcompile.targets import Target

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


def _memory(target: Target) -> str:
    """What is assumed where a fleet does not say, and what else such machines are sold with."""
    others = ", ".join(show_bytes(size) for size in sorted(target.memory[1:]))
    return show_bytes(target.installed) + (f" (or {others})" if others else "")


def targets_json(targets: Sequence[Target]) -> dict[str, Any]:
    """The same as one object."""
    return {
        "targets": [
            {
                "name": target.name,
                "title": target.title,
                "backend": target.backend,
                "backends": list(target.backends),
                "machine": target.machine,
                "memory": list(target.memory) or [target.installed],
                "quants": list(target.quants),
                "kv_types": list(target.kv_types),
                "figures": {
                    figure.name: {
                        "value": figure.value,
                        "unit": figure.unit,
                        "kind": figure.kind,
                        "source": figure.source,
                    }
                    for figure in target.figures
                },
            }
            for target in targets
        ],
        "platform": PLATFORM,
    }
