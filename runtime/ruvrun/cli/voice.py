"""What every command shares: the options it has, how it speaks, and how an error leaves the process.

Results go to standard output; notices, ``(default)`` lines and errors to standard error. Under ``--json`` an
error is one object on standard output.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ruvrun import __version__
from ruvrun.errors import RuvError, UsageError, did_you_mean

PATH = click.Path(path_type=Path)
COUNT = click.IntRange(min=1)


class Real(click.FloatRange):
    """A number within a range; "nan" is in none, although it is not below or above it either."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        found = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return found


_OF_DECODERS = ("prompt_tokens", "temperature", "top_p", "seed")


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
        _tell_defaults(click.get_current_context())
        command(*args, **kwargs)

    return wrapped


def _tell_defaults(context: click.Context) -> None:
    """Every default that is applied is told; what only decoders have is not applied to tensors."""
    unused: tuple[str, ...] = ()
    if context.params.get("inputs") or context.params.get("golden"):
        unused = _OF_DECODERS if context.info_name == "bench" else (*_OF_DECODERS, "max_tokens")
    applied = [
        f"{option.opts[-1]} {value} (default)"
        for option in context.command.params
        if isinstance(option, click.Option) and not option.is_flag and not option.multiple and option.name
        if option.name not in unused
        if (value := context.params.get(option.name)) is not None
        if context.get_parameter_source(option.name) is ParameterSource.DEFAULT
    ]
    if applied:
        say(", ".join(applied))


def require_meant(kind: str, *names: str) -> None:
    """Refuse options of the running command that say nothing about a model of ``kind`` and would be passed over.

    Raises:
        UsageError: one of ``names`` (of parameters) was given.
    """
    context = click.get_current_context()
    given = [
        f"--{name.replace('_', '-')}"
        for name in names
        if context.get_parameter_source(name) not in (ParameterSource.DEFAULT, None)
    ]
    if given:
        told = f"{', '.join(given)} says nothing about a {kind}"
        raise UsageError("option-of-other-models", told, hint="leave it out")


def say(line: str) -> None:
    """A notice."""
    context = click.get_current_context(silent=True)
    if context is None or not context.ensure_object(dict).get("quiet"):
        click.echo(line, err=True)


def pass_on(line: str) -> None:
    """What a child said: it was told how much to say."""
    click.echo(line, err=True)


def voice_for_children(*, quiet: bool = False) -> tuple[str, ...]:
    """What children are told of ``-q`` and ``-v``; ``quiet`` is for commands whose children are of no interest."""
    context = click.get_current_context(silent=True)
    said = context.ensure_object(dict) if context is not None else {}
    if said.get("verbose"):
        return ("-v",)
    return ("-q",) if quiet or said.get("quiet") else ()


def report(error: RuvError, words: Sequence[str]) -> int:
    """Print an error as the command line asks for it, and return its exit code."""
    with contextlib.suppress(OSError):  # where nobody reads on, the exit code still says it
        if "--role" in words:  # a child: its parent reads this line
            click.echo(json.dumps(error.to_dict()), err=True)
        elif "--json" not in words or not _is_printed(error):
            click.echo(error, err=True)
    return error.exit_code


def _is_printed(error: RuvError) -> bool:
    """Print it as an object, and say whether that was possible: a full disk behind standard output does not hide it."""
    try:
        click.echo(json.dumps(error.to_dict()))
    except OSError:
        return False
    return True


def usage(error: click.ClickException) -> UsageError:
    """Errors of click in our form."""
    hint = "see --help"
    near = getattr(error, "possibilities", None)
    if near:
        hint = f"did you mean {near[0]!r}?"
    elif isinstance(error, click.UsageError) and error.ctx is not None:
        hint = f"see `{error.ctx.command_path} --help`"
    message = error.message if isinstance(error, click.NoSuchOption) else error.format_message()
    return UsageError("usage", message.rstrip("."), hint=hint)


def parse_cpus(names: Sequence[str], text: str | None, node: str | None) -> dict[str, list[int]]:
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
