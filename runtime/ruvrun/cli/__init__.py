"""The command line of the runtime. Only this package prints and exits; everything it calls returns or raises.

Exit codes are those of ``ruvrun.errors``. Commands import what they need when they run, so that a child process
loads only what its role needs, and ``--help`` is quick.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

from ruvrun import __version__
from ruvrun.cli.bench import bench
from ruvrun.cli.look import doctor, status
from ruvrun.cli.profile import profile
from ruvrun.cli.run import run
from ruvrun.cli.serve import serve
from ruvrun.cli.voice import Commands, report, usage
from ruvrun.errors import REFUSALS, UNREAD, MachineError, RuvError, UsageError


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="ruvrun")
def cli() -> None:
    """Run one machine's part of a pipeline that `ruvcompile build` made.

    Example: ruvrun serve dist/manifest.toml
    """


for command in (serve, run, bench, profile, doctor, status):
    cli.add_command(command)


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run a command and exit with its code."""
    words = list(sys.argv[1:] if args is None else args)
    try:
        code = cli.main(words, prog_name="ruvrun", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        code = UsageError.exit_code
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.ClickException as error:
        code = report(usage(error), words)
    except RuvError as error:
        code = report(error, words)
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except SystemExit as left:
        code = UNREAD if left.code == 1 else left.code  # 1 is click's, where whoever read our output has gone
    except OSError as error:
        code = _refused(error, words) if error.errno in REFUSALS else _bug(error, words)
    except Exception as error:  # noqa: BLE001 - where our own bugs end
        code = _bug(error, words)
    sys.exit(code or 0)


def _refused(error: OSError, words: Sequence[str]) -> int:
    what = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    return report(MachineError("machine-refuses", what, hint="check the path, its permissions and the space"), words)


def _bug(error: Exception, words: Sequence[str]) -> int:
    """The one case with a traceback."""
    traceback.print_exception(error)
    return report(RuvError("bug", f"{type(error).__name__}: {error}", hint="please report it"), words)
