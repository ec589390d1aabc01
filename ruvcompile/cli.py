"""The command line of the compiler: flags in, one call, text or JSON out, an exit code.

Only here is anything printed and only here does the process exit. Results go to standard output; progress,
defaults and errors to standard error. With ``--json`` standard output is one object: the result, or
``{"error": ...}``. The compiler itself is imported only by the commands that need it, so that help and wrong flags
are answered at once.
"""

from __future__ import annotations

import contextlib
import gc
import json
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from ruvcompile import __version__, listing, tables
from ruvcompile.accelerated import unless_parts
from ruvcompile.errors import MachineError, RuvError, UsageError, did_you_mean, raise_all
from ruvcompile.flags import build_options, common, computed_with
from ruvcompile.options import OF_DECODERS, Options, resolve
from ruvcompile.progress import Terminal
from ruvcompile.targets import fleet_targets, load_target, target_names
from ruvcompile.workspace import REFUSALS


class _Commands(click.Group):
    """A group whose unknown commands get a did-you-mean."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        if name not in self.commands and not name.startswith("-"):
            raise UsageError("command-unknown", f"unknown command {name!r}", hint=did_you_mean(name, self.commands))
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ruvcompile")
def root() -> None:
    """Cut a model by measured cost into one bundle per machine of a small fleet.

    \b
    Example:
        ruvcompile build model.gguf --target host --nodes 2
        ruvrun serve dist/manifest.toml
    """


@root.command()
@build_options
@common
def build(**flags: Any) -> None:
    """Build MODEL into one bundle per node.

    MODEL is a .gguf file, a Hugging Face directory, a decoder's ONNX directory, or any .onnx file.

    \b
    Example:
        ruvcompile build SmolLM2-135M-Instruct.Q4_1.gguf --target host --nodes 2
    """
    options, progress = _start(flags)
    from ruvcompile import compile as steps

    local = all(node.local for node in options.fleet.nodes)
    _finish(flags, steps.build(options, progress), unless_parts(lambda result: tables.build_text(result, local=local)))


@root.command()
@build_options
@click.option("--simulate", is_flag=True, help="Run requests through the planned fleet, in simulation.")
@click.option("--users", type=int, help="How many people use it, for --simulate. [default: 30]")
@click.option("--max-tokens", type=int, help="Tokens of an answer in the mean, for --simulate. [default: 128]")
@common
def plan(**flags: Any) -> None:
    """Measure MODEL and show what build would make of it; write nothing.

    MODEL is a .gguf file, a Hugging Face directory, a decoder's ONNX directory, or any .onnx file.

    \b
    Example:
        ruvcompile plan model.gguf --target pi5 --nodes 4 --json
    """
    options, progress = _start(flags, unsaid=("output",))
    from ruvcompile import compile as steps

    _finish(flags, steps.plan(options, progress), unless_parts(tables.plan_text))


@root.command()
@click.argument("model", required=False)
@click.option("--target", help="The kind of machine that is to be measured (see: ruvcompile targets).")
@click.option("--backend", help="Of several that it has. [default: the first]")
@computed_with
@click.option("--inputs", help="Samples (.npz) for graphs with open shapes.")
@click.option("--shape", multiple=True, help="NAME=1x3x640x640, for graphs with open shapes; repeatable.")
@click.option("--name", help="The model's name. [default: from the model]")
@click.option("--targets-dir", help="A folder with more targets.")
@click.option("-o", "--output", help="Where the probe goes. [default: probe]")
@common
def probe(output: str | None, **flags: Any) -> None:
    """Write one small piece of MODEL of each distinct shape, to be measured before any model is copied.

    Copy the folder to such a machine (a Raspberry Pi 5, say), run `ruvrun profile` on it there, and give the cost
    table it writes to build. Large weights are not in it: they are drawn at random on the machine.

    \b
    Example:
        ruvcompile probe model.gguf --target pi5 -o probe
        ruvrun profile probe -o costs.toml
        ruvcompile build model.gguf --target pi5 --nodes 4 --costs costs.toml
    """
    output = "probe" if output is None else output  # the empty one is refused
    options, progress = _start({**flags, "nodes": "1", "output": output}, unsaid=("objective",))
    from ruvcompile import compile as steps

    _finish(flags, steps.probe(options, progress), tables.probe_text)


@root.command()
@click.argument("model", required=False)
@click.option("--target", help="host: this machine, and no other is measured from here.")
@click.option("--backend", help="As for build. [default: auto]")
@click.option("--nodes", help="How many stages work here at the same time. [default: 1]")
@computed_with
@click.option("--inputs", help="Samples (.npz) for graphs with open shapes.")
@click.option("--shape", multiple=True, help="NAME=1x3x640x640, for graphs with open shapes; repeatable.")
@click.option("--costs", multiple=True, help="Tables whose rows need not be measured again; repeatable.")
@click.option("--name", help="The model's name. [default: from the model]")
@click.option("--streams", type=int, help="Sequences at once: of more than 8 larger steps are measured, too.")
@click.option("-o", "--output", help="The cost table; rows that are there and not measured stay. [default: costs.toml]")
@common
def profile(output: str | None, **flags: Any) -> None:
    """Measure what the parts of MODEL cost on this machine, into a cost table for build.

    \b
    Example:
        ruvcompile profile model.gguf --target host --nodes 2 -o costs.toml
        ruvcompile build model.gguf --target host --nodes 2 --costs costs.toml
    """
    output = "costs.toml" if output is None else output
    options, progress = _start({**flags, "output": output}, unsaid=("objective",))
    from ruvcompile import compile as steps

    _finish(flags, steps.profile(options, progress), tables.profile_text)


@root.command()
@click.argument("manifest")
@click.option("--model", help="The file the build came from. [default: as the manifest names it]")
@click.option(
    "--tokens",
    type=click.IntRange(0, 1_000_000),
    help="Compare with float64 at so many tokens of a text. [default: 2048 of mixed back ends or f16 links, else 0]",
)
@common
def verify(manifest: str, model: str | None, tokens: int | None, **flags: Any) -> None:
    """Compare the staged model with the uncut one, with what its weights mean, and with the file it came from.

    \b
    Example:
        ruvcompile verify dist/manifest.toml
    """
    from ruvcompile import compile as steps
    from ruvcompile.verify import failure

    result = steps.verify(Path(manifest), Path(model) if model else None, _progress(flags), tokens)
    _finish(flags, result, tables.verify_text)
    if (problem := failure(result)) is not None:
        click.echo(str(problem), err=True)
        raise click.exceptions.Exit(problem.exit_code)


@root.command()
@click.argument("manifest")
@click.option("--run", help="JSON of `ruvrun bench` with one number of streams: what really happened, beside the plan.")
@common
def report(manifest: str, run: str | None, **flags: Any) -> None:
    """Write report.html beside MANIFEST again.

    \b
    Example:
        ruvcompile report dist/manifest.toml --run bench.json
    """
    from ruvcompile import compile as steps

    path = steps.report(Path(manifest), Path(run) if run else None)
    _finish(flags, {"report": str(path)}, lambda result: f"wrote {result['report']}")


@root.command()
@click.option("--check", is_flag=True, help="Check the data and the templates of every target; exit 3 if any is wrong.")
@click.option("--markdown", is_flag=True, help="As a table in Markdown.")
@click.option("--targets-dir", help="A folder with more targets.")
@common
def targets(check: bool, markdown: bool, targets_dir: str | None, **flags: Any) -> None:
    """List the kinds of machines a model can be built for: those that come along, and those in ./targets.

    \b
    Example:
        ruvcompile targets --targets-dir my-targets
    """
    extra = Path(targets_dir) if targets_dir else None
    if check:
        from ruvcompile.whole_targets import check_targets  # which renders, and that takes a while to load

        raise_all(check_targets(extra))
    found = [load_target(name, extra) for name in sorted(target_names(extra))]
    text = listing.targets_markdown if markdown else listing.targets_text
    _finish(flags, listing.targets_json(found), lambda _: text(found))


def _start(flags: dict[str, Any], unsaid: Sequence[str] = ()) -> tuple[Options, Terminal]:
    """The options, their defaults told: not those in ``unsaid``, and what only decoders have once it is known."""
    progress = _progress(flags)
    options = resolve({key: value for key, value in flags.items() if key not in ("as_json", "quiet", "verbose")})
    fleet_targets(options)
    if told := [entry for entry in options.defaults if entry[0] not in (*unsaid, *OF_DECODERS)]:
        progress.note(", ".join(f"--{name} {value} (default)" for name, value in told))
    return options, progress


def _progress(flags: dict[str, Any]) -> Terminal:
    return Terminal(sys.stderr, -1 if flags["quiet"] else int(flags["verbose"]))


def _finish(flags: dict[str, Any], result: dict[str, Any], text: Callable[[dict[str, Any]], str]) -> None:
    click.echo(json.dumps(result) if flags["as_json"] else text(result))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; whatever goes wrong has been told."""
    try:
        code = root.main(args=list(arguments), prog_name="ruvcompile", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return UsageError.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return 130
    except click.ClickException as error:
        problem: RuvError = UsageError("usage", error.format_message().rstrip("."), hint="see --help")
    except RuvError as error:
        problem = error
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output is gone; say nothing more
        return 141
    except OSError as error:
        if error.errno not in REFUSALS:
            return _bug(error, arguments)
        what = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
        problem = MachineError("machine-refuses", what, hint="choose another place, or make room there")
    except Exception as error:  # noqa: BLE001 - the one place where our own bugs end
        inside = _inside(error)
        if inside is None:
            return _bug(error, arguments)
        problem = inside
    click.echo(str(problem), err=True)
    if "--json" in arguments:
        with contextlib.suppress(OSError):  # a full disk behind standard output does not hide the exit code
            click.echo(json.dumps(problem.to_dict()))
    return problem.exit_code


def _inside(error: BaseException | None) -> RuvError | None:
    """The error of ours that a library raised one of its own for: weights are read while it writes a graph, say."""
    while error is not None and not isinstance(error, RuvError):
        error = error.__cause__
    return error


def _bug(error: Exception, arguments: Sequence[str]) -> int:
    traceback.print_exception(error)
    if "--json" in arguments:
        problem = RuvError("bug", f"{type(error).__name__}: {error}", hint="this is our own bug; please report it")
        click.echo(json.dumps(problem.to_dict()))
    return 1


def _end(*_: object) -> NoReturn:
    """SIGTERM as Ctrl-C: scratch folders are removed on the way out, which else stay, gigabytes for a large model."""
    click.echo("terminated", err=True)
    sys.exit(128 + signal.SIGTERM)


def main() -> NoReturn:
    """Entry point of the ``ruvcompile`` command."""
    signal.signal(signal.SIGTERM, _end)
    # A graph of 50,000 nodes is a million objects that stay: looking through them again and again for what could go
    # takes a third of a build.
    gc.set_threshold(200_000, 50, 50)
    sys.exit(run(sys.argv[1:]))
