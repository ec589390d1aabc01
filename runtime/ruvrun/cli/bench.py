"""``ruvrun bench``: measure a manifest on this machine, without HTTP; or a head that runs elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ruvrun.cli.voice import COUNT, PATH, Real, common, parse_cpus, pass_on, require_meant, voice_for_children
from ruvrun.errors import UsageError

if TYPE_CHECKING:
    from ruvrun.manifest import Manifest


@click.command()
@click.argument("manifest", type=PATH, required=False)
@click.option("--url", help="Measure this running head, over HTTP.")
@click.option("--api-key", envvar="RUVRUN_API_KEY", help="Key for --url (or RUVRUN_API_KEY).")
@click.option("--streams", default="1", show_default=True, help="Requests at a time; a list measures each: 1,2,4,8.")
@click.option("--prompt-tokens", type=COUNT, default=128, show_default=True)
@click.option("--max-tokens", type=COUNT, default=128, show_default=True, help="Tokens per request (calls of a graph).")
@click.option("--repeats", type=COUNT, default=1, show_default=True)
@click.option(
    "--reuse", is_flag=True, help="Prompts that came before are not computed again: decoding is measured alone."
)
@click.option("--seconds", type=Real(min=0, min_open=True), help="Begin requests again for this long.")
@click.option("--input", "inputs", type=PATH, multiple=True, help="Arrays for a graph (npz).")
@click.option("--golden", is_flag=True, help="A graph's inputs are those of MANIFEST's golden checks.")
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
    reuse: bool,
    seconds: float | None,
    inputs: tuple[Path, ...],
    golden: bool,
    context: int | None,
    cpus: str | None,
    as_json: bool,
) -> None:
    """Measure MANIFEST on this machine, without HTTP, or a running head; of a decoder it needs the MANIFEST, too.

    Example: ruvrun bench dist/manifest.toml --streams 1,2,4 --prompt-tokens 64 --max-tokens 64
    """
    from ruvrun import bench as measure
    from ruvrun import launch
    from ruvrun.placement import place, space

    try:
        counts = [int(part) for part in streams.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise UsageError("streams-wrong", f"--streams {streams} is no list of numbers", hint="for example 1,2,4,8")
    if inputs or golden:
        require_meant("graph", "prompt_tokens", "context", "reuse")
    if url is not None:
        require_meant("head that runs elsewhere", "context", "cpus", "reuse")
        kind, measured = _head(url, api_key, manifest, inputs, golden)
        found = measure.sweep(
            counts, repeats, lambda count: measured(measure.Work(count, prompt_tokens, max_tokens, seconds))
        )
        _show(found, kind, as_json)
        return
    if manifest is None:
        raise UsageError("manifest-missing", "give a MANIFEST or --url", hint="see `ruvrun bench --help`")
    placement = place(manifest)
    _require_whole(placement)
    graph = placement.manifest.program.kind == "graph"
    if graph != (bool(inputs) or golden):
        hint = "give --input in.npz, or --golden" if graph else "use --streams, --prompt-tokens and --max-tokens"
        raise UsageError("wrong-kind", f"this model is a {placement.manifest.program.kind}", hint=hint)
    arrays = _arrays(placement.manifest, manifest, inputs, golden) if graph else {}
    planned = placement.manifest.space
    if context is None and planned is not None:
        longest = placement.manifest.program.context or planned.context
        context = min(longest, max(planned.context, prompt_tokens + max_tokens))
    settings = launch.Settings(
        space(placement.manifest, context, max(counts)),
        parse_cpus(placement.in_order, cpus, None),
        voice_for_children(quiet=True),
        reuse,
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


def _head(
    url: str, key: str | None, path: Path | None, inputs: Sequence[Path], golden: bool
) -> tuple[str, Callable[[Any], dict[str, Any]]]:
    """Of what there are so many per second, and how the head at ``url`` is measured."""
    from ruvrun import bench as measure
    from ruvrun import client
    from ruvrun.bench.head import bench_texts
    from ruvrun.manifest import load_manifest
    from ruvrun.placement import manifest_path

    base = client.base_url(url)
    known = load_manifest(manifest_path(path)) if path is not None else None
    if known is not None and known.program.kind == "decoder":
        require_meant("decoder", "inputs", "golden")
        return "tokens", lambda work: bench_texts(base, key, known, work)
    if not inputs and not golden:
        hint = "give the MANIFEST of a decoder, or --input in.npz of a graph"
        raise UsageError("url-without-input", "--url alone does not say what to ask", hint=hint)
    arrays = _arrays(known, path, inputs, golden)
    model = client.graph(base, key)
    return "items", lambda work: measure.bench_head(lambda: client.infer(base, model, arrays, key), work)


def _arrays(known: Manifest | None, path: Path | None, inputs: Sequence[Path], golden: bool) -> dict[str, Any]:
    """A graph's inputs: of files, or those that the build has checked its stages with."""
    from ruvrun.record import read_record
    from ruvrun.run import read_inputs, read_values

    if not golden:
        return read_values(inputs) if known is None else read_inputs(inputs, known)
    if path is None or inputs:
        raise UsageError("golden-wrong", "--golden takes the inputs of a MANIFEST", hint="give one, and no --input")
    return dict(read_record(path).inputs)


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
