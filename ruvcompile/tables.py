"""What the commands say to a person: results as text. Pure; the command line prints it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ruvcompile.quantities import show_bytes
from ruvcompile.targets import Target
from ruvrun.bundle import BUNDLES
from ruvrun.manifest import MANIFEST, NODES

PLATFORM = "Linux only for now (Windows through WSL2, CPU only)"


def plan_text(result: Mapping[str, Any]) -> str:
    """A plan (or build) as a table of stages and the figures under it.

    Args:
        result: the JSON object of ``plan`` and ``build``.
    """
    rows = [
        [
            str(number),
            stage["node"],
            stage["target"],
            stage["backend"],
            str(stage["graph_nodes"]),
            show_bytes(stage["weight_bytes"]),
            show_bytes(stage["kv_bytes"]),
            show_bytes(stage["cut_bytes"]),
            f"{stage['predicted_ms']:.2f}",
        ]
        for number, stage in enumerate(result["stages"])
    ]
    head = ["stage", "node", "target", "back end", "graph nodes", "weights", "key/value", "sends", "predicted ms"]
    lines = [table(head, rows), ""]
    lines.append(
        f"slowest stage {result['bottleneck_ms']:.2f} ms, lower bound {result['lower_bound_ms']:.2f} ms, "
        f"gap {100 * result['gap']:.1f} %; costs: {result['cost_source']}"
    )
    if result.get("predicted_tokens_per_s") is not None:
        lines.append(
            f"predicted: {result['predicted_tokens_per_s']:.0f} tokens/s, one stream "
            f"{result['predicted_tokens_per_s_one']:.0f}, first token after {result['predicted_ttft_ms']:.0f} ms"
        )
    elif result.get("predicted_items_per_s") is not None:
        rate, latency = result["predicted_items_per_s"], result["predicted_latency_ms"]
        lines.append(f"predicted: {rate:.1f} items/s, one takes {latency:.1f} ms")
    for other in result.get("alternatives", ()):
        lines.append(f"  otherwise {_shape(other.get('shape'))}: {other.get('why', '')}".rstrip(": "))
    for entry in result.get("rejected", ()):
        lines.append(f"  rejected {entry['node']}: {entry['rule']}, wanted {entry['wanted']}, has {entry['has']}")
    lines.append(result["verdict"])
    return "\n".join(lines)


def build_text(result: Mapping[str, Any], *, local: bool = True) -> str:
    """A build: its plan, where it is, what it took, and what to do next.

    Args:
        result: the JSON object of ``build``.
        local: whether every node is a process of this machine.
    """
    manifest, memory = result["manifest"], show_bytes(result["peak_rss_bytes"])
    done = f"built {manifest} in {result['seconds']:.1f} s, peak memory {memory}"
    if not local:
        folder = manifest.removesuffix(MANIFEST)
        done += f"\naddresses: as in {folder}{NODES}; after a change, copy it into node/ of each bundle"
        then = f"copy each directory of {folder}{BUNDLES} to its machine, and there: sudo ./node/install.sh"
    elif result.get("predicted_items_per_s") is not None:
        then = f"ruvrun run {manifest} --input in.npz --output out.npz"
    else:
        then = f"ruvrun serve {manifest}"
    return f"{plan_text(result)}\n\n{done}\nnext: {then}"


def verify_text(result: Mapping[str, Any]) -> str:
    """Staged against uncut, and the quantised model against its source."""
    same = "identical" if result["identical"] else "NOT identical"
    cases = counted(result.get("cases", 0), "case")
    compared = f"{cases}, {result['tokens']} tokens" if result.get("tokens") else cases
    largest = result.get("max_abs_diff")
    apart = f"; largest difference {largest:.3g}" if largest is not None else ""
    lines = [f"staged against uncut: {same} ({compared}{apart})"]
    source = result.get("vs_source")
    if random := result.get("random"):
        lines.append(f"left to chance, so only their types were compared: {', '.join(random)}")
    if source:
        lines.append(
            f"against the file it came from: KL {source['kl']:.4f}, same first choice {100 * source['top1']:.1f} % "
            f"({source['tokens']:.0f} tokens)"
        )
    return "\n".join(lines)


def targets_text(targets: Sequence[Target]) -> str:
    """The targets that can be named."""
    head = ["target", "what", "back end", "machine", "memory", "quant", "key/value"]
    rows = [
        [
            target.name,
            target.title,
            target.backend,
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


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell; columns of numbers to the right."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    right = [bool(rows) and all(row[column][:1].isdigit() for row in rows) for column in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = zip(row, widths, right, strict=True)
        return "  ".join(cell.rjust(width) if ends else cell.ljust(width) for cell, width, ends in cells).rstrip()

    return "\n".join(line(row) for row in [head, *rows])


def counted(number: int, what: str) -> str:
    """``1 stage``, ``2 stages``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _shape(shape: Any) -> str:
    if isinstance(shape, Mapping):
        replicas, stages = shape.get("replicas", 1), shape.get("stages", 1)
        return counted(stages, "stage") if replicas == 1 else f"{replicas} x {counted(stages, 'stage')}"
    return str(shape)
