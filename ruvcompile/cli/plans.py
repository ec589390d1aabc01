"""A plan as text: its stages, what is expected of it, what else was looked at, and the verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ruvcompile.cli.table import WIDTH, counted, table, wrapped
from ruvcompile.quantities import show_bytes
from ruvrun.backends import BACK_ENDS

_NAMED = 3
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

        blocks.append(wrapped(simulation_text(simulation)))
    return "\n\n".join([*blocks, wrapped(result["verdict"])])


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
    return "\n".join([*lines, *_usable(stages)])


def _usable(stages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The memory that there is for a stage, once a machine's reserve is off."""
    found: dict[str, list[str]] = {}
    for stage in stages:
        if size := stage.get("usable_bytes"):
            found.setdefault(show_bytes(size), []).append(stage["node"])
    if len(found) == 1:
        yield f"usable memory: {next(iter(found))} of each node"
    elif found:
        yield wrapped(f"usable memory: {', '.join(f'{size} of {_names(nodes)}' for size, nodes in found.items())}")


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
            told += [line, wrapped(why, "    ")]
    return "\n".join(told)


def _shape(shape: Any) -> str:
    if isinstance(shape, Mapping):
        replicas, stages = shape.get("replicas", 1), shape.get("stages", 1)
        return counted(stages, "stage") if replicas == 1 else f"{replicas} pipelines of {counted(stages, 'stage')}"
    return str(shape)
