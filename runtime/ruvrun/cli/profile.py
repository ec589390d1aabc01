"""``ruvrun profile``: what the parts of a model cost on this machine, or what the link to another one can do."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ruvrun.cli.voice import COUNT, PATH, Real, common, require_meant, say
from ruvrun.errors import UsageError

if TYPE_CHECKING:
    from ruvrun.costs import CostTable
    from ruvrun.profile.conditions import Tell

WIDTH = 30


@click.command()
@click.argument("path", type=PATH)
@click.option(
    "-o", "--output", type=PATH, help="The cost table; rows of one that is there stay, but for those measured."
)
@click.option(
    "--threads", type=COUNT, help="Of the stage.  [default: a probe's own, else the cores, shared by --beside]"
)
@click.option("--beside", type=COUNT, default=1, show_default=True, help="Stages that work here at the same time.")
@click.option("--cpus", help='Cores of this stage and of those beside it, for example "0;1" or "0,1;2,3".')
@click.option("--rows", type=COUNT, default=8, show_default=True, help="Sequences of the largest step: up to 32.")
@click.option("--seconds", type=Real(min=0, min_open=True), help="At most, of repeating.  [default: 4]")
@click.option("--node", help="Which node this machine is, where several bundles lie beside the manifest.")
@click.option("--peer", help="Measure the link to this node instead: its name or host; it must run with --answer.")
@click.option("--answer", is_flag=True, help="Answer a node that measures the link to this one, once.")
@click.option("--model", hidden=True)
@click.option("--brief", is_flag=True, hidden=True)
@click.option("--role", type=click.Choice(["stage", "beside", "child"]), hidden=True)
@click.option("--ring", type=PATH, hidden=True)
@click.option("--endpoints", hidden=True)
@click.option("--context", type=COUNT, hidden=True)
@click.option("--streams", type=COUNT, hidden=True)
@click.option("--json", "as_json", is_flag=True, help="One object.")
@common
def profile(path: Path, output: Path | None, peer: str | None, answer: bool, node: str | None, **rest: Any) -> None:
    """Measure the model at PATH (a manifest, a bundle directory or a probe) on this machine, into a cost table.

    Example: ruvrun profile probe/ -o costs.toml
    """
    role = rest["role"]
    if answer or peer is not None:
        require_meant("link", "threads", "beside", "cpus", "rows", "seconds")
    if answer:
        if peer is not None or output is not None:
            told = "--answer only answers: what is measured is written at the other end"
            raise UsageError("answer-alone", told, hint="leave --peer and -o out")
        from ruvrun.profile.ends import end_of
        from ruvrun.profile.link import answer as answer_one

        say(f"measured by {answer_one(end_of(path, node), say)}")
        return
    if output is None:
        raise UsageError("output-missing", "-o says where the cost table goes", hint="for example -o costs.toml")
    if role in ("stage", "beside"):
        _be_child(path, output, role, rest)
        return
    from ruvrun.costs import table_at, write_costs

    before = table_at(output)
    began = time.monotonic()
    table, notes = _link(path, node, peer) if peer is not None else _units(path, node, rest)
    write_costs(output, [before, table])
    for note in notes:
        say(note)
    _show(table, output, notes, time.monotonic() - began, rest["as_json"])


def _link(path: Path, node: str | None, peer: str) -> tuple[CostTable, Sequence[str]]:
    from ruvrun.costs import CostTable
    from ruvrun.profile.ends import end_of
    from ruvrun.profile.link import measure_link
    from ruvrun.profile.provenance import provenance

    links = measure_link(end_of(path, node), peer)
    return CostTable(provenance=[provenance("", "", 0)], link=links), ()


def _units(path: Path, node: str | None, rest: dict[str, Any]) -> tuple[CostTable, Sequence[str]]:
    from ruvrun import machine
    from ruvrun.profile.conditions import Conditions
    from ruvrun.profile.draw import is_probe, load_probe
    from ruvrun.profile.table import profile as measure
    from ruvrun.profile.table import segments
    from ruvrun.supervise.child import end_with_parent

    if rest["role"] == "child":
        end_with_parent()
    cpus = _groups(rest["cpus"])
    directory = path if path.is_dir() else path.parent
    usual_threads = load_probe(directory).threads if is_probe(directory) else max(1, machine.cores() // rest["beside"])
    if rest["role"] is None and (rest["threads"] or 1) > machine.cores():
        told = f"--threads {rest['threads']} is more than the {machine.cores()} cores that may be used here"
        raise UsageError("threads-over-cores", told, hint="threads without a core wait for one another")
    threads = rest["threads"] or (len(cpus[0]) if cpus else usual_threads)
    if any(len(set(group)) < threads for group in cpus):
        told = f"--cpus {rest['cpus']} has not {threads} cores for each stage, one for every thread"
        raise UsageError("threads-over-cores", told, hint="threads without a core wait for one another")
    seconds = rest["seconds"] or Conditions.seconds
    conditions = Conditions(threads, rest["beside"], cpus, seconds, rows=rest["rows"], brief=rest["brief"])
    if not rest["threads"]:
        say(f"--threads {threads} (default)")
    with segments(path, node) as (name, stages), _progress(rest["role"] == "child") as tell:
        child = rest["role"] == "child"
        found = measure(stages, conditions, model=rest["model"] or name, figures=not child, tell=tell)
    return found.table, found.notes


def _be_child(path: Path, output: Path, role: str, rest: dict[str, Any]) -> None:
    """A process of ours that is measured, or that keeps the one company."""
    from ruvrun import machine
    from ruvrun.supervise.child import end_with_parent

    end_with_parent()
    cpus = _groups(rest["cpus"])
    machine.pin(cpus[0] if cpus else ())
    if role == "beside":
        from ruvrun.profile.beside import keep_company

        keep_company(path, rest["threads"], output)
        return
    import msgspec

    from ruvrun.placement import Endpoints
    from ruvrun.profile.alone import standing_alone
    from ruvrun.profile.clocked import serve_clocked

    alone = standing_alone(path, rest["ring"], msgspec.json.decode(rest["endpoints"], type=Endpoints))
    serve_clocked(alone, context=rest["context"], streams=rest["streams"], threads=rest["threads"], file=output)


def _groups(text: str | None) -> tuple[tuple[int, ...], ...]:
    if text is None:
        return ()
    try:
        return tuple(tuple(int(cpu) for cpu in group.split(",")) for group in text.split(";"))
    except ValueError:
        raise UsageError("cpus-wrong", f"--cpus {text} names no cores", hint='for example "0;1"') from None


@contextlib.contextmanager
def _progress(child: bool) -> Any:
    """What is told of progress: a bar on a terminal, lines for the compiler, else nothing."""
    context = click.get_current_context(silent=True)
    quiet = bool(context and context.ensure_object(dict).get("quiet"))
    draws = sys.stderr.isatty() and not quiet and not child

    def bar(what: str, done: int, total: int) -> None:
        filled = WIDTH * done // max(1, total)
        click.echo(
            f"\r{what:<12} [{'#' * filled}{'.' * (WIDTH - filled)}] {done}/{total}".ljust(78), nl=False, err=True
        )

    def line(what: str, done: int, total: int) -> None:
        click.echo(f"{what} {done}/{total}", err=True)

    tell: Tell = bar if draws else line if child else lambda _what, _done, _total: None
    yield tell
    if draws:
        click.echo(err=True)


def _show(table: CostTable, output: Path, notes: Sequence[str], seconds: float, as_json: bool) -> None:
    from ruvrun.costs import costs_json, costs_text

    told = costs_json(table)
    if as_json:
        click.echo(json.dumps({"costs": str(output), "seconds": round(seconds, 2), "notes": list(notes), **told}))
        return
    click.echo(costs_text(told))
    click.echo(f"wrote {output} after {seconds:.1f} s")
