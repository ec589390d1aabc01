"""The command line of the runtime. Only this module prints and exits; everything it calls returns or raises.

Results go to standard output; notices, ``(default)`` lines and errors to standard error. Under ``--json`` an
error is one object on standard output. Exit codes are those of ``ruvrun.errors``.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from ruvrun import __version__
from ruvrun.errors import InputError, MachineError, RuvError, UnreachableError, UsageError, did_you_mean

PATH = click.Path(path_type=Path)
COUNT = click.IntRange(min=1)
LOOPBACKS = ("127.0.0.1", "::1", "localhost")


class Commands(click.Group):
    """A group that answers an unknown command with the nearest known one."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            known = self.list_commands(ctx)
            raise UsageError("command-unknown", f"no command {args[0]!r}", hint=did_you_mean(args[0], known))
        return super().resolve_command(ctx, args)


def common(command: Callable[..., None]) -> Callable[..., None]:
    """The options every command has: ``-q``, ``-v``, ``--version``."""

    @click.option("-q", "--quiet", is_flag=True, help="Only results and errors.")
    @click.option("-v", "--verbose", is_flag=True, help="More about what happens.")
    @click.version_option(__version__, prog_name="ruvrun")
    @functools.wraps(command)
    def wrapped(*args: Any, quiet: bool, verbose: bool, **kwargs: Any) -> None:
        voice = click.get_current_context().ensure_object(dict)
        voice.update(quiet=quiet, verbose=verbose)
        logging.basicConfig(level=logging.DEBUG if verbose else logging.WARNING, format="%(name)s: %(message)s")
        command(*args, **kwargs)

    return wrapped


def say(line: str) -> None:
    """A notice."""
    context = click.get_current_context(silent=True)
    if context is None or not context.ensure_object(dict).get("quiet"):
        print(line, file=sys.stderr, flush=True)


def say_if_verbose(line: str) -> None:
    """A notice that is seldom wanted."""
    context = click.get_current_context(silent=True)
    if context is not None and context.ensure_object(dict).get("verbose"):
        print(line, file=sys.stderr, flush=True)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ruvrun")
def cli() -> None:
    """Run one machine's part of a pipeline that `ruvcompile build` made.

    Example: ruvrun serve dist/manifest.toml
    """


@cli.command()
@click.argument("manifest", type=PATH)
@click.option("--node", help="Which node this machine is, where several bundles lie beside the manifest.")
@click.option("--host", help="Where HTTP listens; other than loopback needs --api-key-file.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port of HTTP; 0 takes a free one.  [default: 8000]")
@click.option("--api-key-file", type=PATH, help="Lines of `name key`; requests must bring one of the keys.")
@click.option("--no-auth", is_flag=True, help="Serve without keys, whoever can connect.")
@click.option("--context", type=COUNT, help="Positions per stream.  [default: as built]")
@click.option("--streams", type=COUNT, help="Requests at a time.  [default: as built]")
@click.option("--role", type=click.Choice(["stage", "head"]), hidden=True)
@click.option("--endpoints", hidden=True)
@click.option("--threads", type=COUNT, hidden=True)
@click.option("--cpus", hidden=True)
@common
def serve(
    manifest: Path,
    node: str | None,
    host: str | None,
    port: int | None,
    api_key_file: Path | None,
    no_auth: bool,
    context: int | None,
    streams: int | None,
    role: str | None,
    endpoints: str | None,
    threads: int | None,
    cpus: str | None,
) -> None:
    """Serve this machine's part of MANIFEST; on the head's node, answer HTTP.

    When every node is a process of this machine, all of them are started and kept running.

    Example: ruvrun serve dist/manifest.toml --port 8000
    """
    from ruvrun import launch
    from ruvrun.placement import place, space

    if role is not None:  # a child of ours
        signal.signal(signal.SIGTERM, _leave)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    placement = place(manifest, node)
    host_, port_ = host or "127.0.0.1", 8000 if port is None else port
    if placement.head and api_key_file is None and not no_auth and host_ not in LOOPBACKS:
        raise UsageError(
            "auth-missing",
            f"--host {host_} lets other machines in, and nothing asks them for a key",
            hint="give --api-key-file FILE (lines of `name key`), or --no-auth to serve everyone",
        )
    settings = launch.Settings(space(placement.manifest, context, streams), _cpus(placement.stages, cpus, node))
    http = launch.Http(host_, port_, api_key_file)
    if role is not None and endpoints is not None:
        placement = launch.with_endpoints(placement, endpoints)
        if role == "stage":
            launch.run_stage(placement, settings, threads or 1, say)
        else:
            launch.run_head(placement, settings, http, say, functools.partial(print, flush=True))
        return
    launch.require_fit(placement, settings)
    if placement.head:
        _tell_defaults(
            {"host": (host, host_), "port": (port, port_)}
            | (
                {"context": (context, settings.space.context), "streams": (streams, settings.space.streams)}
                if placement.manifest.program.kind == "decoder"
                else {}
            )
        )
    _supervise(launch.processes(placement, settings, http))


@cli.command()
@click.argument("manifest", required=False)
@click.option("--url", help="Ask this running head instead of starting one.")
@click.option("--api-key", envvar="RUVRUN_API_KEY", help="Key for --url (or RUVRUN_API_KEY).")
@click.option("--prompt", help="Text for a decoder.")
@click.option("--chat", is_flag=True, help="Put the prompt into the model's chat template.")
@click.option("--max-tokens", type=COUNT, default=128, show_default=True, help="Tokens of the answer, at most.")
@click.option("--temperature", type=click.FloatRange(min=0), default=0.0, show_default=True, help="0 is greedy.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="For temperatures above 0.")
@click.option(
    "--input", "inputs", type=PATH, multiple=True, help="Arrays for a graph (npz, names as in the ONNX file)."
)
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
    from ruvrun.run import Prompt, ask, ask_over_http, read_inputs, write_outputs

    if (prompt is None) == (not inputs):
        raise UsageError("nothing-to-run", "give either --prompt or --input", hint="see `ruvrun run --help`")
    if inputs and output is None:
        raise UsageError("output-missing", "--input needs --output", hint="say where the outputs go: --output out.npz")
    show: Callable[[str], None] = (lambda _: None) if as_json else functools.partial(print, end="", flush=True)
    target = _running_or_local(manifest, url)
    if isinstance(target, str):
        if prompt is None:
            raise UsageError("needs-manifest", "--input runs local manifests only", hint="run it on the head's machine")
        wanted = Prompt(prompt, chat, max_tokens, Sampling(temperature, top_p, seed))
        result = ask_over_http(target, wanted, api_key, show)
    else:
        wanted_kind = "decoder" if prompt is not None else "graph"
        if target.manifest.program.kind != wanted_kind:
            flag = "--prompt" if wanted_kind == "graph" else "--input and --output"
            raise UsageError("wrong-kind", f"this model is no {wanted_kind}", hint=f"use {flag}")
        planned = space(target.manifest, context, None)
        settings = launch.Settings(planned)
        arrays = read_inputs(inputs, target.manifest) if inputs else {}
        launch.require_fit(target, settings)
        tokenizer = _tokenizer(target) if prompt is not None else None
        with launch.hosted(target, settings, say_if_verbose) as driver:
            if prompt is not None and tokenizer is not None:
                wanted = Prompt(prompt, chat, max_tokens, Sampling(temperature, top_p, seed))
                result = ask(driver, target.manifest, tokenizer, wanted, show)
            else:
                outputs = driver.run(arrays)
                assert output is not None
                write_outputs(output, outputs)
                result = {"output": str(output), "tensors": {name: list(a.shape) for name, a in outputs.items()}}
    if as_json:
        print(json.dumps(result))
    elif prompt is not None:
        print()
    else:
        say(f"wrote {output}")


@cli.command()
@click.argument("manifest", type=PATH)
@click.option("--streams", default="1", show_default=True, help="Requests at a time; a list measures each: 1,2,4,8.")
@click.option("--prompt-tokens", type=COUNT, default=128, show_default=True)
@click.option("--max-tokens", type=COUNT, default=128, show_default=True, help="Tokens per request (calls of a graph).")
@click.option("--repeats", type=COUNT, default=1, show_default=True)
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Begin requests again for this long.")
@click.option("--input", "inputs", type=PATH, multiple=True, help="Arrays for a graph (npz).")
@click.option("--context", type=COUNT, help="Positions per stream.  [default: prompt and answer, at least as built]")
@click.option("--cpus", help='Cores of each stage in order, for example "0;1" or "0,1;2,3".  [default: as built]')
@click.option("--json", "as_json", is_flag=True, help="One object.")
@common
def bench(
    manifest: Path,
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
    """Measure MANIFEST on this machine, without HTTP.

    Example: ruvrun bench dist/manifest.toml --streams 1,2,4 --prompt-tokens 64 --max-tokens 64
    """
    from ruvrun import bench as measure
    from ruvrun import launch
    from ruvrun.placement import place, space
    from ruvrun.run import read_inputs

    try:
        counts = [int(part) for part in streams.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise UsageError("streams-wrong", f"--streams {streams} is no list of numbers", hint="for example 1,2,4,8")
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
    settings = launch.Settings(space(placement.manifest, context, max(counts)), _cpus(_in_order(placement), cpus, None))
    launch.require_fit(placement, settings)
    with launch.hosted(placement, settings, say_if_verbose) as driver:

        def once(count: int) -> dict[str, Any]:
            work = measure.Work(count, prompt_tokens, max_tokens, seconds)
            if graph:
                return measure.bench_graph(driver, placement.manifest, arrays, work)
            return measure.bench(driver, placement.manifest, work)

        result = measure.sweep(counts, repeats, once)
    if as_json:
        print(json.dumps(result))
        return
    for one in result.get("runs", [result]):
        name = "items_per_s" if graph else "tokens_per_s"
        print(f"{one['streams']} streams: {one[name]:.1f} {'items' if graph else 'tokens'}/s; {one['verdict']}")
    means = result.get("mean", [])
    for mean in means if isinstance(means, list) else [means]:
        count, figure = mean["streams"], next(value for key, value in mean.items() if key != "streams")
        spread = "" if figure["low"] is None else f" (95 %: {figure['low']:.1f} to {figure['high']:.1f})"
        print(f"mean of {count} streams: {figure['mean']:.1f}{spread}")


@cli.command()
@click.argument("path", type=PATH)
@click.option("--node", help="Which node this machine is.")
@click.option("--peers", is_flag=True, help="Look whether the other nodes can be reached.")
@click.option("--json", "as_json", is_flag=True, help="One object.")
@common
def doctor(path: Path, node: str | None, peers: bool, as_json: bool) -> None:
    """Say what this machine has, lacks and must change for PATH (a manifest or a bundle directory).

    Example: ruvrun doctor dist/manifest.toml --peers
    """
    from ruvrun.doctor import examine, to_json

    findings = []
    for finding in examine(path, node, peers=peers):
        findings.append(finding)
        if not as_json:
            print(f"{finding.state:4}  {finding.check}: {finding.seen}", flush=True)
            if finding.hint:
                print(f"      hint: {finding.hint}")
    if as_json:
        print(json.dumps(to_json(findings)))
    worst = next((finding.exit_code for finding in findings if finding.state == "fail"), 0)
    raise click.exceptions.Exit(worst)


@cli.command()
@click.argument("target")
@click.option("--watch", is_flag=True, help="Show every change until Ctrl-C.")
@click.option("--check", is_flag=True, help="One line; exit 0 when ready, else 6.")
@click.option("--json", "as_json", is_flag=True, help="One object.")
@common
def status(target: str, watch: bool, check: bool, as_json: bool) -> None:
    """Say how the service at TARGET (a URL or a manifest) is.

    Example: ruvrun status http://127.0.0.1:8000 --check
    """
    from ruvrun.status import is_ready, lines, one_line
    from ruvrun.status import status as look

    shown = ""
    while True:
        try:
            body = look(target)
            text = json.dumps(body) if as_json else one_line(body) if check else "\n".join(lines(body))
            ready = is_ready(body)
        except UnreachableError as error:
            if not (check or watch) or as_json:
                raise
            text, ready = f"unreachable: {error.message}", False
        if text != shown:
            print(text, flush=True)
            shown = text
        if not watch:
            raise click.exceptions.Exit(6 if check and not ready else 0)
        time.sleep(2.0)


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its code."""
    words = list(sys.argv[1:] if args is None else args)
    try:
        code = cli.main(words, prog_name="ruvrun", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        code = UsageError.exit_code
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.ClickException as error:
        code = _report(_usage(error), words)
    except RuvError as error:
        code = _report(error, words)
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except BrokenPipeError:
        # Whoever read us has gone; the interpreter must not complain once more when it closes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
    except Exception as error:  # noqa: BLE001 - our own bug, the one case with a traceback
        traceback.print_exc()
        code = _report(RuvError("bug", f"{type(error).__name__}: {error}", hint="please report it"), words)
    sys.exit(code or 0)


def _report(error: RuvError, words: Sequence[str]) -> int:
    if "--role" in words:  # a child: its parent reads this line
        print(json.dumps(error.to_dict()), file=sys.stderr, flush=True)
    elif "--json" in words:
        print(json.dumps(error.to_dict()), flush=True)
    else:
        print(error, file=sys.stderr, flush=True)
    return error.exit_code


def _usage(error: click.ClickException) -> UsageError:
    """Errors of click in our form."""
    hint = "see --help"
    near = getattr(error, "possibilities", None)
    if near:
        hint = f"did you mean {near[0]!r}?"
    elif isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f"see `{error.ctx.command_path} --help`"
    message = error.message if isinstance(error, click.NoSuchOption) else error.format_message()
    return UsageError("usage", message.rstrip("."), hint=hint)


def _supervise(processes: Sequence[Any]) -> None:
    """Keep the children running until Ctrl-C or SIGTERM."""
    from ruvrun.supervise import Supervisor

    supervisor = Supervisor(processes, tell=say)

    def stop(_number: int, _frame: FrameType | None) -> None:
        supervisor.stop()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    supervisor.run()


def _running_or_local(manifest: str | None, url: str | None) -> Any:
    """The URL of the head to ask, or the placement to host here."""
    from ruvrun.client import base_url
    from ruvrun.placement import place
    from ruvrun.status import is_ready, one_line
    from ruvrun.status import status as look

    if url is not None:
        return base_url(url)
    if manifest is None:
        raise UsageError("manifest-missing", "give a MANIFEST or --url", hint="see `ruvrun run --help`")
    with contextlib.suppress(UsageError, InputError):
        placement = place(Path(manifest))
        if placement.whole:
            return placement
    body = look(manifest)
    if not is_ready(body):
        raise UnreachableError("not-ready", one_line(body), hint="start the nodes that are missing")
    return body["url"]


def _require_whole(placement: Any) -> None:
    if not placement.whole:
        raise UsageError(
            "not-local", "some nodes of this manifest are other machines", hint="bench a manifest that is wholly local"
        )


def _tokenizer(placement: Any) -> Any:
    from ruvrun.bundle import HEAD

    try:
        from ruvrun.tokenizer import Tokenizer
    except ImportError as error:
        raise MachineError(
            "head-packages-missing",
            "the head needs packages that are not here",
            context=[str(error)],
            hint="pip install 'ruvrun[head]'",
        ) from None
    return Tokenizer(placement.head_bundle / HEAD)


def _in_order(placement: Any) -> list[str]:
    return [placed.node for placed in placement.manifest.pipeline[0].stages]


def _cpus(names: Sequence[str], text: str | None, node: str | None) -> dict[str, list[int]]:
    """``0;1`` for the stages in order, or for the one node a child is."""
    if text is None:
        return {}
    try:
        groups = [[int(cpu) for cpu in group.split(",")] for group in text.split(";")]
    except ValueError:
        groups = []
    wanted = [node] if node is not None else names
    if len(groups) != len(wanted):
        raise UsageError(
            "cpus-wrong", f"--cpus {text} does not name cores for {len(wanted)} stages", hint='for example "0;1"'
        )
    return dict(zip(wanted, groups, strict=True))


def _tell_defaults(values: dict[str, tuple[Any, Any]]) -> None:
    say(", ".join(f"{name} {used}{' (default)' if given is None else ''}" for name, (given, used) in values.items()))


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)
