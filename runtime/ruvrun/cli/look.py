"""``ruvrun doctor`` and ``ruvrun status``: look, and change nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from ruvrun.cli.voice import PATH, common
from ruvrun.errors import UnreachableError


@click.command()
@click.argument("path", type=PATH)
@click.option("--node", help="Which node this machine is.")
@click.option("--peers", is_flag=True, help="Look whether the other nodes can be reached.")
@click.option("--json", "as_json", is_flag=True, help="One object.")
@common
def doctor(path: Path, node: str | None, peers: bool, as_json: bool) -> None:
    """Say what this machine has, lacks and must change for PATH (a manifest or a bundle directory).

    What is for a GPU or an NPU runs on the CPU where RUVRUN_DEVICE=CPU is set, for this command and for all others.

    Example: ruvrun doctor dist/manifest.toml --peers
    """
    from ruvrun.doctor import examine, to_json

    findings = []
    for finding in examine(path, node, peers=peers):
        findings.append(finding)
        if not as_json:
            click.echo(f"{finding.state:4}  {finding.check}: {finding.seen}")
            if finding.hint:
                click.echo(f"      hint: {finding.hint}")
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
