"""``ruvrun run``: one request from the command line."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ruvrun.cli.voice import COUNT, PATH, Real, common, pass_on, require_meant, say, voice_for_children
from ruvrun.errors import InputError, UnreachableError, UsageError

SEED = click.IntRange(0, 2**63 - 1)  # as in frames and in the HTTP API


@click.command()
@click.argument("manifest", required=False)
@click.option("--url", help="Ask this running head instead of starting one.")
@click.option("--api-key", envvar="RUVRUN_API_KEY", help="Key for --url (or RUVRUN_API_KEY).")
@click.option("--prompt", help="Text for a decoder.")
@click.option("--chat", is_flag=True, help="Put the prompt into the model's chat template.")
@click.option("--max-tokens", type=COUNT, default=128, show_default=True, help="Tokens of the answer, at most.")
@click.option("--temperature", type=Real(min=0), default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-p", type=Real(0, 1, min_open=True), default=1.0, show_default=True)
@click.option("--seed", type=SEED, default=0, show_default=True, help="For temperatures above 0.")
@click.option(
    "--input", "inputs", type=PATH, multiple=True, help="Arrays for a graph (npz, names as in the ONNX file)."
)
@click.option("--golden", is_flag=True, help="Ask --url what the build was asked; exit 5 if it differs.")
@click.option("--output", type=PATH, help="Where the graph's outputs go (npz).")
@click.option("--context", type=COUNT, help="Positions per stream.  [default: as built]")
@click.option("--json", "as_json", is_flag=True, help="One object, with token ids.")
@common
def run(
    manifest: str | None,
    url: str | None,
    api_key: str | None,
    prompt: str | None,
    chat: bool,
    max_tokens: int,
    temperature: float,
    top_p: float,
    seed: int,
    inputs: tuple[Path, ...],
    golden: bool,
    output: Path | None,
    context: int | None,
    as_json: bool,
) -> None:
    """Run MANIFEST once: a prompt to text, or tensors to tensors.

    Example: ruvrun run dist/manifest.toml --chat --prompt "What is the capital of France?"
    """
    from ruvrun import launch
    from ruvrun.frames import Sampling
    from ruvrun.placement import space
    from ruvrun.run import Prompt, ask, ask_over_http, read_inputs, read_values, run_over_http, sizes_of, write_outputs

    if golden:
        require_meant(
            "golden record", "prompt", "chat", "max_tokens", "temperature", "top_p", "seed", "inputs", "output"
        )
        _check(manifest, url, api_key, as_json)
        return
    if (prompt is None) == (not inputs):
        raise UsageError("nothing-to-run", "give either --prompt or --input", hint="see `ruvrun run --help`")
    if prompt is not None and any("\ud800" <= character <= "\udfff" for character in prompt):
        raise UsageError("prompt-not-text", "--prompt is not text in the terminal's encoding", hint="give UTF-8 text")
    if inputs and output is None:
        raise UsageError("output-missing", "--input needs --output", hint="say where the outputs go: --output out.npz")
    show: Callable[[str], None] = (lambda _: None) if as_json else functools.partial(click.echo, nl=False)
    target, known = _running_or_local(manifest, url)
    wanted_kind = "decoder" if prompt is not None else "graph"
    if known is not None and known.program.kind != wanted_kind:
        flag = "--prompt" if wanted_kind == "graph" else "--input and --output"
        raise UsageError("wrong-kind", f"this model is no {wanted_kind}", hint=f"use {flag}")
    if prompt is None:
        require_meant("graph", "chat", "max_tokens", "temperature", "top_p", "seed", "context")
    else:
        require_meant("decoder", "output")
    arrays = read_values(inputs) if known is None else read_inputs(inputs, known) if inputs else {}
    outputs: dict[str, Any] = {}
    wanted = Prompt(prompt or "", chat, max_tokens, Sampling(temperature, top_p, seed))
    if isinstance(target, str):
        if prompt is not None:
            result = ask_over_http(target, wanted, api_key, show)
        else:
            outputs = run_over_http(target, arrays, api_key)
    else:
        planned = space(target.manifest, context, None)
        settings = launch.Settings(planned, voice=voice_for_children(quiet=True))
        launch.require_fit(target, settings)
        tokenizer = launch.tokenizer_of(target) if prompt is not None else None
        with launch.hosted(target, settings, pass_on) as driver:
            if tokenizer is not None:
                result = ask(driver, target.manifest, tokenizer, wanted, show)
            else:
                outputs = driver.run(arrays)
    if output is not None and prompt is None:
        write_outputs(output, outputs)
        result = {"output": str(output), "tensors": sizes_of(outputs)}
    if as_json:
        click.echo(json.dumps(result))
    elif prompt is not None:
        click.echo()
    else:
        say(f"wrote {output}")


def _check(manifest: str | None, url: str | None, key: str | None, as_json: bool) -> None:
    """Hold a running head against the record of the build."""
    from ruvrun.client import base_url
    from ruvrun.record import check_answer, read_record

    if manifest is None or url is None:
        raise UsageError("golden-wrong", "--golden takes a MANIFEST and a --url", hint="see `ruvrun run --help`")
    found = check_answer(base_url(url), read_record(Path(manifest)), key)
    if as_json:
        click.echo(json.dumps(found))
    else:
        off = f"off by {found['largest_difference']:.3g}, {found['bound']:.3g} is allowed"
        click.echo(f"as built: {found['compared']} {off}")


def _running_or_local(manifest: str | None, url: str | None) -> tuple[Any, Any]:
    """The URL of the head to ask, or the placement to host here; and the manifest, where one was given."""
    from ruvrun.client import base_url
    from ruvrun.manifest import load_manifest
    from ruvrun.placement import manifest_path, place
    from ruvrun.status import one_line, serves
    from ruvrun.status import status as look

    if url is not None:
        return base_url(url), load_manifest(manifest_path(Path(manifest))) if manifest is not None else None
    if manifest is None:
        raise UsageError("manifest-missing", "give a MANIFEST or --url", hint="see `ruvrun run --help`")
    incomplete: InputError | None = None
    try:
        placement = place(Path(manifest))
        if placement.whole:
            return placement, placement.manifest
    except UsageError:
        pass  # several nodes' bundles: whichever they are, the head may be running
    except InputError as error:
        incomplete = error
    try:
        body = look(manifest)
    except UnreachableError:
        if incomplete is not None:
            raise incomplete from None
        raise
    if not serves(body):
        raise UnreachableError("not-ready", one_line(body), hint="start the nodes that are missing")
    return body["url"], load_manifest(manifest_path(Path(manifest)))
