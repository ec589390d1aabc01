"""``ruvrun doctor`` and ``ruvrun status``: look, and change nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from ruvrun.cli.voice import COUNT, PATH, common
from ruvrun.errors import UnreachableError, UsageError


@click.command()
@click.argument("path", type=PATH)
@click.option("--node", help="Which node this machine is.")
@click.option("--peers", is_flag=True, help="Look whether the other nodes can be reached.")
@click.option("--self-check", is_flag=True, help="Load the stages too, and compare what they compute with the build.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of HTTP, to be looked at with the others.")
@click.option("--context", type=COUNT, help="Positions per stream that there is to be memory for.  [default: as built]")
@click.option("--streams", type=COUNT, help="Whole contexts that there is to be memory for.  [default: as built]")
@click.option("--json", "as_json", is_flag=True, help="One object.")
@common
def doctor(
    path: Path,
    node: str | None,
    peers: bool,
    self_check: bool,
    port: int | None,
    context: int | None,
    streams: int | None,
    as_json: bool,
) -> None:
    """Say what this machine has, lacks and must change for PATH (a manifest or a bundle directory).

    With -q only what is not as it should be.

    What is for a GPU or an NPU runs on the CPU where RUVRUN_DEVICE=CPU is set, for this command and for all others.

    Example: ruvrun doctor dist/manifest.toml --peers
    """
    from ruvrun.doctor import examine, to_json

    quiet = bool(click.get_current_context().ensure_object(dict).get("quiet"))
    findings = []
    looked = examine(path, node, peers=peers, http=port, context=context, streams=streams, load=self_check)
    for finding in looked:
        findings.append(finding)
        if as_json or (quiet and finding.state == "ok"):
            continue
        click.echo(f"{finding.state:4}  {finding.check}: {finding.seen}")
        for what, text in (("why", finding.why), ("hint", finding.hint)):
            if text:
                click.echo(f"      {what}: {text}")
    if as_json:
        click.echo(json.dumps(to_json(findings)))
    worst = next((finding.exit_code for finding in findings if finding.state == "fail"), 0)
    raise click.exceptions.Exit(worst)


@click.command()
@click.argument("target")
@click.option("--watch", is_flag=True, help="Show every change until Ctrl-C.")
@click.option("--check", is_flag=True, help="One line; exit 0 when ready, else 6.")
@click.option("--json", "as_json", is_flag=True, help="One object.")
@common
def status(target: str, watch: bool, check: bool, as_json: bool) -> None:
    """Say how the service at TARGET is: a URL, or a manifest whose head answers at port 8000.

    Example: ruvrun status http://127.0.0.1:8000 --check
    """
    from ruvrun.status import is_ready, lines, one_line
    from ruvrun.status import status as look

    if watch and check:
        raise UsageError("watch-or-check", "--watch has no end, and --check is one answer", hint="give one of them")
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
            click.echo(text)
            shown = text
        if not watch:
            raise click.exceptions.Exit(6 if check and not ready else 0)
        time.sleep(2.0)
