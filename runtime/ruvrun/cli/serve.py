"""``ruvrun serve``: this machine's part of a manifest, or one child process of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import click

from ruvrun.cli.voice import COUNT, PATH, Real, common, parse_cpus, pass_on, require_meant, say, voice_for_children
from ruvrun.credentials import API_KEYS, credential
from ruvrun.errors import InputError, UsageError
from ruvrun.notify import Notify

QUEUE = 256
LOOPBACKS = ("127.0.0.1", "::1", "localhost")


@click.command()
@click.argument("manifest", type=PATH)
@click.option("--node", help="Which node this machine is, where several bundles lie beside the manifest.")
@click.option("--host", help="Where HTTP listens; other than loopback needs --api-key-file.  [default: 127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), help="Port of HTTP; 0 takes a free one.  [default: 8000]")
@click.option("--api-key-file", type=PATH, help="Lines of `name key`; requests must bring one of the keys.")
@click.option("--no-auth", is_flag=True, help="Serve without keys, whoever can connect.")
@click.option("--context", type=COUNT, help="Positions per stream.  [default: as built]")
@click.option(
    "--streams", type=COUNT, help="Whole contexts that there is space for, on all pipelines.  [default: as built]"
)
@click.option("--queue", type=COUNT, help="Requests that may wait for their turn; more get 429.  [default: 256]")
@click.option("--request-seconds", type=Real(0, min_open=True), help="What a request may take at most.")
@click.option("--role", type=click.Choice(["stage", "head"]), hidden=True)
@click.option("--endpoints", hidden=True)
@click.option("--threads", type=COUNT, hidden=True)
@click.option("--cpus", hidden=True)
@common
def serve(
    manifest: Path,
    node: str | None,
    host: str | None,
    port: int | None,
    api_key_file: Path | None,
    no_auth: bool,
    context: int | None,
    streams: int | None,
    queue: int | None,
    request_seconds: float | None,
    role: str | None,
    endpoints: str | None,
    threads: int | None,
    cpus: str | None,
) -> None:
    """Serve this machine's part of MANIFEST; on the head's node, answer HTTP.

    When every node is a process of this machine, all of them are started and kept running.

    Example: ruvrun serve dist/manifest.toml --port 8000
    """
    from ruvrun import launch
    from ruvrun.placement import place, space
    from ruvrun.ports import free_ports

    if role is not None:  # a child of ours
        signal.signal(signal.SIGTERM, _leave)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    placement = place(manifest, node)
    from_init = credential(API_KEYS) if role is None and placement.head and not no_auth else None
    from_init = None if api_key_file else from_init
    api_key_file = api_key_file or from_init
    if role is None and placement.manifest.program.kind == "graph":
        require_meant("graph", "context", "streams", "queue", "request_seconds")
    host_, port_ = host or "127.0.0.1", 8000 if port is None else port
    if placement.head and api_key_file is None and not no_auth and host_ not in LOOPBACKS:
        raise UsageError(
            "auth-missing",
            f"--host {host_} lets other machines in, and nothing asks them for a key",
            hint="give --api-key-file FILE (lines of `name key`), or --no-auth to serve everyone",
        )
    if api_key_file is not None and no_auth:
        raise UsageError(
            "auth-twice", "--api-key-file and --no-auth contradict each other", hint="leave one of them out"
        )
    settings = launch.Settings(
        space(placement.manifest, context, streams),
        parse_cpus(placement.stages, cpus, node),
        voice_for_children(),
    )
    http = launch.Http(host_, port_, api_key_file, queue or QUEUE, request_seconds)
    if role is not None and endpoints is not None:
        placement = launch.with_endpoints(placement, endpoints)
        if role == "stage":
            launch.run_stage(placement, settings, threads or 1, say, _whisper)
        else:
            launch.run_head(placement, settings, http, say, _ready, _whisper)
        return
    launch.require_fit(placement, settings)
    if placement.head and api_key_file is not None and not api_key_file.is_file():
        raise InputError("file-missing", f"no key file at {api_key_file}", hint="check the path")
    if placement.head:
        _tell_defaults(
            {"host": (host, host_), "port": (port, port_)}
            | ({"api-key-file": (None, from_init)} if from_init else {})
            | (
                {
                    "context": (context, settings.space.context),
                    "streams": (streams, placement.streams(settings.space)),
                    "queue": (queue, http.queue),
                }
                if placement.manifest.program.kind == "decoder"
                else {}
            )
        )
    if port_ == 0:  # chosen once, so that a head that is started again has the same address
        http = replace(http, port=free_ports(1)[0])
    _supervise(launch.processes(placement, settings, http))


def _supervise(processes: Sequence[Any]) -> None:
    """Keep the children running until Ctrl-C or SIGTERM."""
    from ruvrun.supervise import Supervisor

    notify = Notify.from_environment(os.environ)
    supervisor = Supervisor(
        processes,
        tell=pass_on,
        status=notify.status,
        loaded=notify.ready,
        alive=notify.alive,
        every=notify.every,
    )

    def stop(_number: int, _frame: FrameType | None) -> None:
        notify.stopping()
        supervisor.stop()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    supervisor.run()


def _ready(line: str) -> None:
    from ruvrun.supervise.child import status_line

    click.echo(line)
    _whisper(status_line(line))


def _whisper(line: str) -> None:
    """A line for the supervisor, whatever -q says."""
    click.echo(line, err=True)


def _tell_defaults(values: dict[str, tuple[Any, Any]]) -> None:
    told = [f"--{name} {used}{' (default)' if given is None else ''}" for name, (given, used) in values.items()]
    say(", ".join(told))


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    # Nothing here needs to be put away, and an exception in the middle of loading a back end ends in C++'s terminate.
    # (Once the head answers HTTP, the server's own handler lets answers under way finish.)
    os._exit(0)
