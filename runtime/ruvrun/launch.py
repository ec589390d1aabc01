"""From a placement to running processes: the command line of each child, and what a child then does.

``serve`` keeps children for the stages and for the head. ``run`` and ``bench`` are the head themselves: the
driver's thread runs in the command's own process, the stages are its children (``hosted``).
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ruvrun import machine
from ruvrun.backends import device_for
from ruvrun.bundle import HEAD, verify_head
from ruvrun.errors import InputError, UsageError
from ruvrun.garbage import leave_be
from ruvrun.manifest import LOCAL, Space
from ruvrun.needs import needs, require_memory
from ruvrun.pipeline.aloud import await_ready, news_of
from ruvrun.pipeline.driver import Driver
from ruvrun.pipeline.head import open_driver
from ruvrun.pipeline.lane import patience_of
from ruvrun.placement import LOOPBACK, Endpoint, Endpoints, Placement
from ruvrun.supervise import Process
from ruvrun.supervise.child import LOADED, end_with_parent
from ruvrun.supervise.kept import kept
from ruvrun.supervise.vigil import STARTING, Pulse

if TYPE_CHECKING:
    from ruvrun.tokenizer import Tokenizer

Say = Callable[[str], None]

HANGS = 2.0
"""A stage that is at one message for so many times what a step of the whole pipeline may take, hangs."""

COMPILING = 600.0
"""Seconds that a device's compiler may take in the middle of serving, for a shape that nobody has asked for before."""

STANDSTILL = 30.0
"""Seconds that the head's loop may stand still."""


@dataclass(frozen=True)
class Http:
    """How the head answers HTTP."""

    host: str
    port: int
    api_keys: Path | None = None
    queue: int | None = None
    request_seconds: float | None = None


@dataclass(frozen=True)
class Settings:
    """What a command decided for all its processes.

    ``space`` is each pipeline's; ``cpus`` overrides the manifest's, by node; ``voice`` is ``-q`` or ``-v`` for the
    children, or nothing; ``reuse`` is as for ``open_driver``, where a command is the head itself.
    """

    space: Space
    cpus: Mapping[str, Sequence[int]] = field(default_factory=dict)
    voice: Sequence[str] = ()
    reuse: bool = False


def processes(placement: Placement, settings: Settings, http: Http | None) -> list[Process]:
    """The children of this invocation: a stage for every node that has one, and the head if ``http`` is given."""
    found = []
    for name in placement.stages:
        threads = threads_of(placement, settings, name)
        env = {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1"}
        extra = ["--threads", str(threads)]
        argv = _argv(placement, settings, name, "stage", extra)
        found.append(Process(f"stage on {name}", argv, env, within=STARTING))
    if http is not None and placement.head:
        extra = ["--host", http.host, "--port", str(http.port)]
        extra += ["--api-key-file", str(http.api_keys)] if http.api_keys else ["--no-auth"]
        extra += ["--queue", str(http.queue)] if http.queue is not None else []
        extra += ["--request-seconds", str(http.request_seconds)] if http.request_seconds is not None else []
        env = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1"}
        argv = _argv(placement, settings, placement.manifest.head.node, "head", extra)
        found.append(Process("head", argv, env, front=True, within=STARTING))
    return found


def cpus_of(placement: Placement, settings: Settings, name: str) -> Sequence[int]:
    """The cores that a node's processes are kept on; none: wherever the machine puts them."""
    return settings.cpus.get(name, placement.manifest.node_named(name).cpus)


def threads_of(placement: Placement, settings: Settings, name: str) -> int:
    """A stage's threads: as built, else one per core of the node, else this machine's cores, shared."""
    cpus = cpus_of(placement, settings, name)
    share = max(1, machine.cores() // max(1, len(placement.stages)))
    threads = placement.manifest.node_named(name).threads or len(cpus) or share
    return min(threads, len(cpus)) if cpus else threads


def require_fit(placement: Placement, settings: Settings) -> None:
    """Refuse key/value space that this machine's memory does not hold (FitError)."""
    space = settings.space
    wanted = needs(placement.manifest, placement.stages, context=space.context, streams=space.streams)
    require_memory(wanted, machine.memory_available(), context=space.context, streams=space.streams)


def run_stage(
    placement: Placement, settings: Settings, threads: int, say: Say, whisper: Say = lambda _line: None
) -> None:
    """What a stage's process does, until SIGTERM; ``whisper`` gets lines for the supervisor alone."""
    ((name, directory),) = placement.bundles.items()
    placed = placement.manifest.place_of(name)
    assert placed is not None, f"{name} holds no stage"
    compiles = device_for(placement.manifest.stage[placed[1].stage].backend)
    longest = HANGS * patience_of(placement.manifest, placed[0]) + (COMPILING if compiles else 0.0)
    pulse = Pulse()

    def loaded(turn: Callable[[], int | None]) -> None:
        leave_be()
        whisper(LOADED)
        pulse.look(turn, longest)

    end_with_parent()
    machine.pin(cpus_of(placement, settings, name))
    pulse.start(whisper)
    from ruvrun.stage import serve  # a head process must not load what only stages need

    serve(
        directory,
        placement.manifest,
        name,
        placement.endpoints,
        context=settings.space.context,
        streams=settings.space.streams,
        threads=threads,
        say=say,
        loaded=loaded,
    )


def run_head(
    placement: Placement,
    settings: Settings,
    http: Http,
    say: Say,
    ready: Say,
    whisper: Say = lambda _line: None,
) -> None:
    """What the head's process does, until SIGTERM: the driver, and HTTP in front of it.

    ``say`` gets notices; ``ready`` gets ``ready: URL``, once, when every stage answers; ``whisper`` gets lines for the
    supervisor alone.

    Raises:
        RuvError: the port is taken, the tokenizer or the key file is not what it should be.
    """
    end_with_parent()
    machine.pin(cpus_of(placement, settings, placement.manifest.head.node))
    pulse = Pulse()
    pulse.start(whisper)
    try:
        from ruvrun.server import HttpServer, Limits, build_app, listen, load_keys, url_of
    except ImportError as error:
        raise _not_installed(error) from None
    # The driver's thread must get the interpreter back from the HTTP thread sooner than after 5 ms.
    sys.setswitchinterval(0.0005)
    manifest = placement.manifest
    keys = load_keys(http.api_keys) if http.api_keys else {}
    bound = listen(http.host, http.port)
    tokenizer = tokenizer_of(placement) if manifest.program.kind == "decoder" else None
    driver = open_driver(
        manifest, placement.endpoints, placement.head_bundle, settings.space, on_change=news_of(say), serving=True
    )
    limits = Limits(http.queue, http.request_seconds)
    app = build_app(driver, tokenizer, manifest, api_keys=keys, context=settings.space.context, limits=limits)
    server = HttpServer(app, bound)
    broken: list[BaseException] = []
    leaving = threading.Event()

    def watch() -> None:
        try:
            await_ready(driver, say)
            leave_be()
            ready(f"ready: {url_of(bound)}")
            driver.wait_end()
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            if not leaving.is_set():
                broken.append(error)
        server.stop()

    def turn() -> int:
        driver.health()  # does not come back where the driver hangs with its lock
        return server.ticks

    driver.start()
    threading.Thread(target=watch, name="watch", daemon=True).start()
    whisper(LOADED)
    pulse.look(turn, STANDSTILL)
    try:
        server.run()
    finally:
        leaving.set()
        driver.stop()
    if broken:
        raise broken[0]


def tokenizer_of(placement: Placement) -> Tokenizer:
    """The tokenizer of a decoder, from the bundle of the head's node, once its files are known to be the manifest's.

    Raises:
        RuvError: its files are missing or altered, or its packages are missing.
    """
    try:
        from ruvrun.tokenizer import Tokenizer
    except ImportError as error:
        raise _not_installed(error) from None
    verify_head(placement.head_bundle, placement.manifest.program)
    return Tokenizer(placement.head_bundle / HEAD)


@contextlib.contextmanager
def hosted(placement: Placement, settings: Settings, say: Say) -> Iterator[Driver]:
    """A driver in this process with every stage of the manifest as a child, ready; all gone at the end.

    Raises:
        RuvError: a stage cannot run here, in its own words; or it died before all was ready.
    """
    with kept(processes(placement, settings, None), say) as failed:
        machine.pin(cpus_of(placement, settings, placement.manifest.head.node))
        with _driving(placement, settings) as driver:
            while not driver.wait_ready(0.2):
                if failed:
                    raise failed[0]
            yield driver


@contextlib.contextmanager
def _driving(placement: Placement, settings: Settings) -> Iterator[Driver]:
    driver = open_driver(
        placement.manifest, placement.endpoints, placement.head_bundle, settings.space, reuse=settings.reuse
    )
    driver.start()
    try:
        yield driver
    finally:
        driver.stop()


def with_endpoints(placement: Placement, text: str) -> Placement:
    """A child's placement: where everything listens is what its parent says."""
    try:
        return replace(placement, endpoints=msgspec.json.decode(text, type=Endpoints))
    except msgspec.DecodeError as error:
        raise UsageError("endpoints-wrong", f"--endpoints cannot be read: {error}", hint="leave it out") from None


def _argv(placement: Placement, settings: Settings, name: str, role: str, extra: Sequence[str]) -> list[str]:
    cpus, space = cpus_of(placement, settings, name), settings.space
    return [
        *(sys.executable, "-P", "-m", "ruvrun", "serve", str(placement.path), "--node", name, "--role", role),
        *("--endpoints", msgspec.json.encode(_as_listened(placement.endpoints, name, role)).decode()),
        *("--context", str(space.context), "--streams", str(placement.streams(space))),
        *(("--cpus", ",".join(map(str, cpus))) if cpus else ()),
        *settings.voice,
        *extra,
    ]


def _as_listened(endpoints: Endpoints, name: str, role: str) -> Endpoints:
    """Where everything is, for one child: itself it listens on all of the machine's addresses.

    Its own name may stand for 127.0.1.1 there (Debian's /etc/hosts), where nobody else could reach it. Who has no
    key of the fleet gets nothing, whatever the address.
    """
    own = endpoints.head if role == "head" else endpoints.nodes[name]
    if own.host in (LOOPBACK, LOCAL):
        return endpoints
    everywhere = Endpoint("0.0.0.0", own.port)
    if role == "head":
        return Endpoints(endpoints.nodes, everywhere)
    return Endpoints({**endpoints.nodes, name: everywhere}, endpoints.head)


def _not_installed(error: ImportError) -> InputError:
    return InputError(
        "head-packages-missing",
        "the head needs packages that are not installed here",
        context=[str(error)],
        hint="pip install 'ruvrun[head]'",
    )
