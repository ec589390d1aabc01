"""What the commands say to a person: results as text. Pure; the command line prints it."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ruvcompile.quantities import show_bytes
from ruvrun.backends import BACK_ENDS
from ruvrun.bundle import BUNDLES
from ruvrun.costs import costs_text
from ruvrun.manifest import MANIFEST, NODES

WIDTH = 96
"""Columns that a text may take."""

_NAMED = 3
_NUMBER = re.compile(r"-|\d+(\.\d+)?( ([KMG]i)?B)?")
# What is told of an alternative: title, keys of its figures (of decoders, of graphs), digits.
_FIGURES = (
    ("per s", ("tokens_per_s", "items_per_s"), 1),
    ("one alone", ("tokens_per_s_one", "items_per_s_one"), 1),
    ("first token ms", ("ttft_ms",), 0),
    ("one takes ms", ("latency_ms",), 1),
)


def plan_text(result: Mapping[str, Any]) -> str:
    """A plan (or build): its shape, its stages, what is expected of it, what was turned down, and the verdict.

    Args:
        result: the JSON object of ``plan`` and ``build``.
    """
    blocks = [_stages(result), _expected(result)]
    if others := result.get("alternatives"):
        blocks.append(_alternatives(others))
    if rejected := result.get("rejected"):
        rows = [[entry[key] for key in ("node", "rule", "wanted", "has")] for entry in rejected]
        blocks.append(table(["turned down", "by", "wanted", "has"], rows))
    if simulation := result.get("simulation"):
        from ruvcompile.simulate.told import simulation_text  # its package loads numpy, which help does not wait for

        blocks.append(_wrapped(simulation_text(simulation)))
    return "\n\n".join([*blocks, _wrapped(result["verdict"])])


def _stages(result: Mapping[str, Any]) -> str:
    """A table per pipeline; those that are the same but for their nodes share one."""
    stages: Sequence[Mapping[str, Any]] = result["stages"]
    pipelines: dict[int, list[Mapping[str, Any]]] = {}
    for stage in stages:
        pipelines.setdefault(stage.get("pipeline", 0), []).append(stage)
    alike: dict[str, list[list[Mapping[str, Any]]]] = {}
    for pipeline in pipelines.values():
        own = [{key: value for key, value in stage.items() if key not in ("pipeline", "node")} for stage in pipeline]
        alike.setdefault(json.dumps(own), []).append(pipeline)
    machines = dict.fromkeys((stage["target"], stage["backend"]) for stage in stages)
    one = f", {' with '.join(next(iter(machines)))}" if len(machines) == 1 else ""
    shape = _shape({"replicas": len(pipelines), "stages": len(next(iter(pipelines.values())))})
    lines = [f"{shape}: {counted(len(stages), 'node')}{one}"]
    for same in alike.values():
        if len(alike) > 1:
            numbers = ", ".join(str(pipeline[0]["pipeline"]) for pipeline in same)
            lines.append(f"\npipeline{'s' if len(same) > 1 else ''} {numbers}")
        columns = [each for each in _columns(stages) if each[0] not in (("target", "back end") if one else ())]
        rows = [
            [str(number), _names([place["node"] for place in places]), *(tell(places[0]) for _, tell in columns)]
            for number, places in enumerate(zip(*same, strict=True))
        ]
        lines.append(table(["stage", "node", *(title for title, _ in columns)], rows))
        lines += _picks([places[0] for places in zip(*same, strict=True)], result)
    return "\n".join(lines)


def _picks(stages: Sequence[Mapping[str, Any]], result: Mapping[str, Any]) -> Iterator[str]:
    """Why each stage runs on the back end it does, where there was a choice."""
    like = result.get("compared")
    at = f" at {counted(result['rows'], 'row')}" if like else ""
    for number, stage in enumerate(stages):
        if not (choice := stage.get("backends_ms")):
            continue
        own = BACK_ENDS[stage["backend"]].title
        others = [
            f"{ms / choice[stage['backend']]:.2f} times as fast as {BACK_ENDS[name].title}"
            for name, ms in choice.items()
            if name != stage["backend"]
        ]
        yield f"stage {number}: {own}, {' and '.join(others) + at if others else 'which alone can run it'}"
    if like and any(stage.get("backends_ms") for stage in stages):
        yield f"both with {like['activations']} activations, {like['kv_type']} keys and values"


def _columns(stages: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Callable[[Mapping[str, Any]], str]]]:
    """Title and cell of what is told of a stage; not what says nothing of any of them."""
    yield "target", lambda stage: stage["target"]
    yield "back end", lambda stage: stage["backend"]
    yield "graph nodes", lambda stage: str(stage["graph_nodes"])
    yield "weights", lambda stage: show_bytes(stage["weight_bytes"])
    if any(stage["kv_bytes"] for stage in stages):
        yield "key/value", lambda stage: show_bytes(stage["kv_bytes"])
    yield "memory", lambda stage: show_bytes(stage["predicted_rss_bytes"])
    yield "sends", lambda stage: show_bytes(stage["cut_bytes"])
    yield "ms", lambda stage: f"{stage['predicted_ms']:.2f}"
    if any(stage.get("predicted_ms_one", stage["predicted_ms"]) != stage["predicted_ms"] for stage in stages):
        yield "one row", lambda stage: f"{stage['predicted_ms_one']:.2f}"


def _names(nodes: Sequence[str]) -> str:
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return ", ".join(nodes[:_NAMED]) + more


def _expected(result: Mapping[str, Any]) -> str:
    """What is promised, how good that is proven to be, and what it was reckoned from."""
    lines = []
    if result.get("predicted_tokens_per_s") is not None:
        lines.append(
            f"predicted: {result['predicted_tokens_per_s']:.0f} tokens/s, one stream "
            f"{result['predicted_tokens_per_s_one']:.0f}, first token after {result['predicted_ttft_ms']:.0f} ms"
        )
    elif result.get("predicted_items_per_s") is not None:
        rate, latency = result["predicted_items_per_s"], result["predicted_latency_ms"]
        lines.append(f"predicted: {rate:.1f} items/s, one takes {latency:.2f} ms")
    rows = f" at {result['rows']} rows" if result.get("rows", 1) > 1 else ""
    whole = f"slowest part {result['bottleneck_ms']:.2f} ms{rows}"
    for name, ms in result.get("bound_of", {}).items():
        whole = f"{whole}; one {'pass' if name == 'latency_ms' else 'round'} {ms:.2f} ms"
    by = f" by {result['bound_by']}" if "bound_by" in result else ""
    lines.append(
        f"{whole}, lower bound {result['lower_bound_ms']:.2f} ms{by}, "
        f"gap {100 * result['gap']:.1f} %{'' if result.get('exact', True) else ', not every cut was looked at'}"
    )
    if bounds := result.get("bounds"):
        told = ", ".join(f"{name.replace('_', ' ')} {ms:.2f} ms" for name, ms in bounds.items())
        lines.append(f"bounds: {told}")
    links = {"fleet": "as the fleet file says"}.get(source := result.get("link_source", ""), source)
    lines.append(f"costs: {result['cost_source']}{f'; links {links}' if links else ''}")
    return "\n".join(lines)


def _alternatives(others: Sequence[Mapping[str, Any]]) -> str:
    """What else was looked at, each with its figures and why it is not the plan."""
    known = [
        (title, keys, digits)
        for title, keys, digits in _FIGURES
        if any(entry.get(key) is not None for entry in others for key in keys)
    ]
    rows = []
    for entry in others:
        figures = [(next((entry[key] for key in keys if entry.get(key) is not None), None), d) for _, keys, d in known]
        rows.append([_shape(entry.get("shape")), *("-" if ms is None else f"{ms:.{d}f}" for ms, d in figures)])
    lines = table(["otherwise", *(title for title, _, _ in known)], rows).splitlines()
    told = [lines[0]]
    for line, entry in zip(lines[1:], others, strict=True):
        why = entry.get("why", "")
        if len(line) + 2 + len(why) <= WIDTH:
            told.append(f"{line}  {why}".rstrip())
        else:
            told += [line, _wrapped(why, "    ")]
    return "\n".join(told)


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


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


def probe_text(result: Mapping[str, Any]) -> str:
    """A probe: what is in it, and what to do next.

    Args:
        result: the JSON object of ``probe``.
    """
    folder, name = result["probe"], result["probe"].rstrip("/").rpartition("/")[2]
    return (
        f"wrote {folder}: {counted(result['units'], 'distinct part')} of {result['model']}, "
        f"{show_bytes(result['bytes'])} to copy; {show_bytes(result['drawn_bytes'])} of weights are drawn there\n"
        f"next: copy it to a machine of kind {result['target']}, and there: ruvrun profile {name} -o costs.toml"
    )


def profile_text(result: Mapping[str, Any]) -> str:
    """What was measured.

    Args:
        result: the JSON object of ``profile``.
    """
    return f"{costs_text(result)}\nwrote {result['costs']} after {result['seconds']:.1f} s"


def verify_text(result: Mapping[str, Any]) -> str:
    """Staged against uncut, and the quantised model against its source."""
    same = "identical" if result["identical"] else "NOT identical"
    cases = counted(result.get("cases", 0), "case")
    compared = f"{cases}, {result['tokens']} tokens" if result.get("tokens") else cases
    largest = result.get("max_abs_diff")
    apart = f"; largest difference {largest:.3g}" if largest is not None else ""
    what = "in company against alone" if result.get("mixed") or result.get("rounded") else "staged against uncut"
    lines = [f"{what}: {same} ({compared}{apart})"]
    lines += [_equality(each) for each in result.get("equality", [])]
    source = result.get("vs_source")
    if random := result.get("random"):
        lines.append(f"left to chance, so only their types were compared: {', '.join(random)}")
    if source:
        lines.append(
            f"against the file it came from: KL {source['kl']:.4f}, same first choice {100 * source['top1']:.1f} % "
            f"({source['tokens']:.0f} tokens)"
        )
    return "\n".join(lines)


def _equality(found: Mapping[str, Any]) -> str:
    """A pipeline against what its weights mean, and its back ends beside it."""

    def told(figures: Mapping[str, Any]) -> str:
        return f"KL {figures['mean_kl']:.3g}, same first choice {100 * figures['top1_agreement']:.2f} %"

    alone = "".join(f"; {backend} alone: {told(figures)}" for backend, figures in found["alone"].items())
    activations = "float" if found["floats"] else "quantised"
    return _wrapped(
        f"{' + '.join(found['backends'])} ({activations} activations) against float64: {told(found)}, largest "
        f"difference of logits {found['max_logit_diff']:.3g} ({found['tokens']} tokens){alone}"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell; columns of numbers to the right."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    columns = [[row[column] for row in rows] for column in range(len(head))]
    right = [bool(column) and all(map(_NUMBER.fullmatch, column)) for column in columns]

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
        return counted(stages, "stage") if replicas == 1 else f"{replicas} pipelines of {counted(stages, 'stage')}"
    return str(shape)
