"""``ruvrun bench``: measure a manifest on this machine, without HTTP; or a graph's head that runs elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ruvrun.cli.voice import COUNT, PATH, Real, common, parse_cpus, pass_on, require_meant, voice_for_children
from ruvrun.errors import UsageError


@click.command()
@click.argument("manifest", type=PATH, required=False)
@click.option("--url", help="Measure this running head of a graph, over HTTP.")
@click.option("--api-key", envvar="RUVRUN_API_KEY", help="Key for --url (or RUVRUN_API_KEY).")
@click.option("--streams", default="1", show_default=True, help="Requests at a time; a list measures each: 1,2,4,8.")
@click.option("--prompt-tokens", type=COUNT, default=128, show_default=True)
@click.option("--max-tokens", type=COUNT, default=128, show_default=True, help="Tokens per request (calls of a graph).")
@click.option("--repeats", type=COUNT, default=1, show_default=True)
@click.option("--seconds", type=Real(min=0, min_open=True), help="Begin requests again for this long.")
@click.option("--input", "inputs", type=PATH, multiple=True, help="Arrays for a graph (npz).")
@click.option("--context", type=COUNT, help="Positions per stream.  [default: prompt and answer, at least as built]")
@click.option("--cpus", help='Cores of each stage, pipeline after pipeline: "0;1" or "0,1;2,3".  [default: as built]')
@click.option("--json", "as_json", is_flag=True, help="One object.")
@common
def bench(
    manifest: Path | None,
    url: str | None,
    api_key: str | None,
    streams: str,
    prompt_tokens: int,
    max_tokens: int,
    repeats: int,
    seconds: float | None,
    inputs: tuple[Path, ...],
    context: int | None,
    cpus: str | None,
    as_json: bool,
) -> None:
    """Measure MANIFEST on this machine, without HTTP, or a graph's running head.

    Example: ruvrun bench dist/manifest.toml --streams 1,2,4 --prompt-tokens 64 --max-tokens 64
    """
    from ruvrun import bench as measure
    from ruvrun import launch
    from ruvrun.manifest import load_manifest
    from ruvrun.placement import manifest_path, place, space
    from ruvrun.run import read_inputs, read_values

    try:
        counts = [int(part) for part in streams.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise UsageError("streams-wrong", f"--streams {streams} is no list of numbers", hint="for example 1,2,4,8")
    if inputs:
        require_meant("graph", "prompt_tokens", "context")
    if url is not None:
        if not inputs:
            raise UsageError("url-without-input", "--url measures graphs", hint="give --input in.npz, or a MANIFEST")
        known = load_manifest(manifest_path(manifest)) if manifest is not None else None
        arrays = read_values(inputs) if known is None else read_inputs(inputs, known)
        _show(_over_http(url, api_key, arrays, counts, repeats, (max_tokens, seconds)), "items", as_json)
        return
    if manifest is None:
        raise UsageError("manifest-missing", "give a MANIFEST or --url", hint="see `ruvrun bench --help`")
    placement = place(manifest)
    _require_whole(placement)
    graph = placement.manifest.program.kind == "graph"
    if graph != bool(inputs):
        hint = "give --input in.npz" if graph else "use --streams, --prompt-tokens and --max-tokens"
        raise UsageError("wrong-kind", f"this model is a {placement.manifest.program.kind}", hint=hint)
    arrays = read_inputs(inputs, placement.manifest) if graph else {}
    planned = placement.manifest.space
    if context is None and planned is not None:
        longest = placement.manifest.program.context or planned.context
        context = min(longest, max(planned.context, prompt_tokens + max_tokens))
    settings = launch.Settings(
        space(placement.manifest, context, max(counts)),
        parse_cpus(placement.in_order, cpus, None),
        voice_for_children(quiet=True),
    )
    if not graph:
        measure.require_context(measure.Work(max(counts), prompt_tokens, max_tokens), settings.space.context)
    launch.require_fit(placement, settings)
    with launch.hosted(placement, settings, pass_on) as driver:

        def once(count: int) -> dict[str, Any]:
            work = measure.Work(count, prompt_tokens, max_tokens, seconds)
            if graph:
                return measure.bench_graph(driver, placement.manifest, arrays, work)
            return measure.bench(driver, placement.manifest, work)

        result = measure.sweep(counts, repeats, once)
    _show(result, "items" if graph else "tokens", as_json)


def _over_http(
    url: str,
    key: str | None,
    arrays: dict[str, Any],
    counts: Sequence[int],
    repeats: int,
    amount: tuple[int, float | None],
) -> dict[str, Any]:
    """Measure the head at ``url`` with so many calls of each caller, or for so many seconds."""
    from ruvrun import bench as measure
    from ruvrun import client

    calls, seconds = amount
    base = client.base_url(url)
    model = client.graph(base, key)

    def once(count: int) -> dict[str, Any]:
        work = measure.Work(count, 0, calls, seconds)
        return measure.bench_head(lambda: client.infer(base, model, arrays, key), work)

    return measure.sweep(counts, repeats, once)


def _show(result: dict[str, Any], unit: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(result))
        return
    for one in result.get("runs", [result]):
        click.echo(f"{_streams(one['streams'])}: {one[f'{unit}_per_s']:.1f} {unit}/s; {one['verdict']}")
    means = result.get("mean", [])
    for mean in means if isinstance(means, list) else [means]:
        count, figure = mean["streams"], next(value for key, value in mean.items() if key != "streams")
        if figure["low"] is not None:  # a single run is its own mean, and has been told
            spread = f"(95 %: {figure['low']:.1f} to {figure['high']:.1f})"
            click.echo(f"mean with {_streams(count)}: {figure['mean']:.1f} {unit}/s {spread}")


def _streams(count: int) -> str:
    return f"{count} stream{'' if count == 1 else 's'}"


def _require_whole(placement: Any) -> None:
    if not placement.whole:
        raise UsageError(
            "not-local", "some nodes of this manifest are other machines", hint="bench a manifest that is wholly local"
        )
