"""``ruvcompile probe`` and ``profile``: what the parts of a model cost, to be measured elsewhere or here."""

from __future__ import annotations

from typing import Any

import click

from ruvcompile.cli import results
from ruvcompile.cli.flags import common, computed_with
from ruvcompile.cli.voice import finish, start


@click.command()
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
    options, progress = start({**flags, "nodes": "1", "output": output}, unsaid=("objective",))
    from ruvcompile import compile as steps

    finish(flags, steps.probe(options, progress), results.probe_text)


@click.command()
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
    options, progress = start({**flags, "output": output}, unsaid=("objective",))
    from ruvcompile import compile as steps

    finish(flags, steps.profile(options, progress), results.profile_text)
