"""The command line of the compiler: flags in, one call, text or JSON out, an exit code.

Only in this package is anything printed and only here does the process exit. Results go to standard output; progress,
defaults and errors to standard error. With ``--json`` standard output is one object: the result, or
``{"error": ...}``. The compiler itself is imported only by the commands that need it, so that help and wrong flags
are answered at once.

Commands are in ``build``, ``measure`` and ``look``; ``flags`` holds the options that they share, ``voice`` how they
begin and end. What a person reads is made in ``plans``, ``results``, ``listing`` (of targets) and ``accelerated``, all
in columns of ``table``.
"""

from __future__ import annotations

import contextlib
import gc
import json
import signal
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from ruvcompile import __version__
from ruvcompile.cli.build import build, plan
from ruvcompile.cli.look import report, targets, verify
from ruvcompile.cli.measure import probe, profile
from ruvcompile.cli.voice import Commands
from ruvcompile.errors import REFUSALS, UNREAD, MachineError, RuvError, UsageError


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ruvcompile")
def root() -> None:
    """Cut a model by measured cost into one bundle per machine of a small fleet.

    \b
    Example:
        ruvcompile build model.gguf --target host --nodes 2
        ruvrun serve dist/manifest.toml
    """


for command in (build, plan, probe, profile, verify, report, targets):
    root.add_command(command)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code; whatever goes wrong has been told."""
    try:
        code = root.main(args=list(arguments), prog_name="ruvcompile", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as done:
        return done.exit_code
    except SystemExit as left:
        if left.code != 1:  # which is click's, where whoever read our output has gone
            raise
        return UNREAD
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
    with contextlib.suppress(OSError):  # where nobody reads it, or a disk is full, the exit code still says it
        click.echo(str(problem), err=True)
        if "--json" in arguments:
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
