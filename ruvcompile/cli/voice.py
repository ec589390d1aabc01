"""How every command begins and ends: options, and which defaults were applied; a bar for what takes long; a result."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from ruvcompile.errors import UsageError, did_you_mean
from ruvcompile.options import OF_DECODERS, Options, resolve
from ruvcompile.progress import Terminal
from ruvcompile.targets import fleet_targets


class Commands(click.Group):
    """A group whose unknown commands get a did-you-mean."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        name = args[0]
        if name not in self.commands and not name.startswith("-"):
            raise UsageError("command-unknown", f"unknown command {name!r}", hint=did_you_mean(name, self.commands))
        return super().resolve_command(ctx, args)


def start(flags: dict[str, Any], unsaid: Sequence[str] = ()) -> tuple[Options, Terminal]:
    """The options, their defaults told: not those in ``unsaid``, and what only decoders have once it is known."""
    progress = progress_of(flags)
    options = resolve({key: value for key, value in flags.items() if key not in ("as_json", "quiet", "verbose")})
    fleet_targets(options)
    if told := [entry for entry in options.defaults if entry[0] not in (*unsaid, *OF_DECODERS)]:
        progress.note(", ".join(f"--{name} {value} (default)" for name, value in told))
    return options, progress


def progress_of(flags: dict[str, Any]) -> Terminal:
    """Bars and notes on standard error, as much as ``-q`` and ``-v`` ask for."""
    return Terminal(sys.stderr, -1 if flags["quiet"] else int(flags["verbose"]))


def finish(flags: dict[str, Any], result: dict[str, Any], text: Callable[[dict[str, Any]], str]) -> None:
    """Print a result: its JSON, or what ``text`` makes of it."""
    click.echo(json.dumps(result) if flags["as_json"] else text(result))
