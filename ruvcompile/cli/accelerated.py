"""What a graph that was cut for an accelerator looks like, as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ruvcompile.cli.table import table

_NAMED = 5


def unless_parts(text: Callable[[Mapping[str, Any]], str]) -> Callable[[Mapping[str, Any]], str]:
    """``text`` for the results of every other target, and ``parts_text`` for those that are parts."""
    return lambda result: parts_text(result) if "parts" in result else text(result)


def parts_text(result: Mapping[str, Any]) -> str:
    """The parts, why some stay on the CPU, and the commands that compile the others.

    Args:
        result: the JSON object of ``plan`` and ``build`` for a target with an accelerator.
    """
    head = ["part", "on", "nodes", "operators", "in", "out"]
    rows = [
        [
            part["name"],
            result["accelerator"] if part["on"] == "accelerator" else "CPU",
            str(part["nodes"]),
            _named([f"{name} x {count}" for name, count in part["operators"].items()]),
            _named(part["inputs"]),
            _named(part["outputs"]),
        ]
        for part in result["parts"]
    ]
    blocks = [table(head, rows)]
    if why := list(dict.fromkeys(reason for part in result["parts"] for reason in part["why"])):
        blocks.append("\n".join(["on the CPU:", *(f"  {reason}" for reason in why)]))
    if result.get("compiled"):
        blocks.append(f"compiled: {', '.join(result['compiled'])} in {result['folder']}")
    else:
        blocks.append("\n".join(["compiled by:", *(f"  {line}" for line in result["commands"])]))
    return "\n\n".join(blocks)


def _named(names: list[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
