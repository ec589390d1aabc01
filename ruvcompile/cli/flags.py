"""The options that commands share, so that they have one name and one meaning everywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ruvcompile import __version__

_F = TypeVar("_F", bound=Callable[..., Any])


def common(command: _F) -> _F:
    """The options of every command: ``--json``, ``-q``, ``-v``, ``--version``."""
    for option in (
        click.version_option(__version__, prog_name="ruvcompile"),
        click.option("-v", "--verbose", is_flag=True, help="Say more on standard error."),
        click.option("-q", "--quiet", is_flag=True, help="Only results and errors."),
        click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output."),
    ):
        command = option(command)
    return command


def computed_with(command: _F) -> _F:
    """What is measured is what would run: the options of ``build`` that say with which numbers."""
    for option in (
        click.option("--precision", help="As for build. [default: f32]"),
        click.option("--kv-type", help="As for build. [default: the target's]"),
        click.option("--activations", help="As for build. [default: int8]"),
        click.option("--quant", help="As for build: what is measured is what would run. [default: auto]"),
    ):
        command = option(command)
    return command


def plan_options(command: _F) -> _F:
    """The argument and the options that decide what is made: those of ``plan``, and of ``build``."""
    options = (
        click.argument("model", required=False),
        click.option("--target", help="A kind of machine (see: ruvcompile targets); host is this machine."),
        click.option("--nodes", help="How many equal nodes, or their host names with commas. [default: 1]"),
        click.option("--fleet", help="fleet.toml: the machines one by one, instead of --target and --nodes."),
        click.option("--stages", type=int, help="Force how many stages. [default: the plan chooses]"),
        click.option("--replicas", type=int, help="Force how many pipelines. [default: the plan chooses]"),
        click.option("--cut", help="Force the cut: tensor names with commas. [default: the plan chooses]"),
        click.option(
            "--quant",
            help="auto (4 bits for decoders in 16 or 32, else as in the file), none, int8, int4. [default: auto]",
        ),
        click.option("--activations", help="int8 (faster) or float, where weights are quantised. [default: int8]"),
        click.option("--kv-type", help="Type of keys and values. [default: the target's]"),
        click.option("--precision", help="f32, or bf16 on OpenVINO, which leaves equality. [default: f32]"),
        click.option("--link-type", help="f32, f16, or auto: f16 where a link is what is slow. [default: f32]"),
        click.option("--backend", help="onnxruntime, openvino, or auto: the faster one, by stage. [default: auto]"),
        click.option("--context", type=int, help="Tokens per sequence. [default: min(model, 4096)]"),
        click.option("--streams", type=int, help="Sequences at once. [default: max(4, 2 x stages)]"),
        click.option("--prompt-tokens", type=int, help="Prompt assumed for the time to first token. [default: 512]"),
        click.option("--objective", help="throughput or latency. [default: throughput]"),
        click.option("--inputs", help="Samples (.npz) for graphs with open shapes."),
        click.option("--shape", multiple=True, help="NAME=1x3x640x640, for graphs with open shapes; repeatable."),
        click.option("--costs", multiple=True, help="Measured cost tables; repeatable. [default: measured here]"),
        click.option("--name", help="The model's name. [default: from the model]"),
        click.option("--targets-dir", help="A folder with more targets."),
        *(
            click.option(f"--{name}", default=None, hidden=True, is_flag=flag)
            for name, flag in (("sign", False), ("allow-download", True))
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def build_options(command: _F) -> _F:
    """The argument and the options of ``build``: those of a plan, and what says what is written."""
    for option in (
        click.option("-o", "--output", help="Where the build goes. [default: dist]"),
        click.option("--new-keys", is_flag=True, help="Make new link keys instead of the fleet's."),
        click.option("--wheels", help="Put the wheels for these Pythons into the bundles, as in 3.11,3.13."),
    ):
        command = option(command)
    return plan_options(command)
