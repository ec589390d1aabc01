"""A small fleet for tests of the links: keys, a manifest, ports, and stages of the fake decoder as real processes."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ruvrun.backends import POOLED
from ruvrun.bundle import NODE_NAME, SECRET_KEY
from ruvrun.manifest import LOCAL, Manifest, dump_manifest, identify
from ruvrun.manifest.blocks import pool_of, sequences_of
from ruvrun.placement import Endpoint, Endpoints
from ruvrun.ports import free_ports
from ruvrun.stage import Stage
from ruvrun.transport.keys import KeyPair, make_keypair, write_keys
from ruvrun.transport.zeromq import ZeroMq
from tests.runtime.fake_ring import fake_manifest
from tests.runtime.fakes import fake_workers
from tests.runtime.pools import pooled_workers

ROOT = Path(__file__).parents[2]
SLOTS, CONTEXT = 4, 64


@dataclass
class Fleet:
    """Nodes ``n0``, ``n1``, ... with a stage each; ``n0`` is also the head's."""

    directory: Path
    manifest: Manifest
    endpoints: Endpoints
    keys: dict[str, KeyPair]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [node.name for node in self.manifest.node]

    def bundle(self, node: str) -> Path:
        return self.directory / node

    def sockets(self, node: str) -> ZeroMq:
        return ZeroMq(self.keys[node], {one.name: one.public_key for one in self.manifest.node})

    def start(self, node: str) -> subprocess.Popen[bytes]:
        """A stage process."""
        argv = [sys.executable, "-m", "tests.runtime.fleets", str(self.directory), node]
        process = subprocess.Popen(argv, cwd=ROOT, stdout=(self.directory / f"{node}.log").open("ab"))
        self.processes[node] = process
        return process

    def said(self, node: str) -> list[str]:
        """What the stage process of ``node`` has said so far."""
        return (self.directory / f"{node}.log").read_text().splitlines()


@contextlib.contextmanager
def fleet(
    directory: Path, stages: int, pipelines: int = 1, *, local: bool = False, pooled: bool = False
) -> Iterator[Fleet]:
    """A fleet on free ports, or with links of this machine alone; its processes are gone afterwards.

    Space is in blocks where it is ``pooled``, as OpenVINO's, else in slots.
    """
    names = [f"n{index}" for index in range(stages * pipelines)]
    keys = {name: make_keypair() for name in names}
    manifest = fake_manifest(names, pipelines=pipelines, backend="openvino" if pooled else "onnxruntime")
    nodes = [msgspec.structs.replace(node, public_key=keys[node.name].public) for node in manifest.node]
    manifest = msgspec.structs.replace(
        manifest, node=nodes, id=identify(manifest.program, manifest.stage, manifest.pipeline)
    )
    if local:
        head, *ports = [secrets.randbits(62) for _ in range(1 + len(names))]
    else:
        head, *ports = free_ports(1 + len(names))
    host = LOCAL if local else "127.0.0.1"
    endpoints = Endpoints(
        nodes={name: Endpoint(host, port) for name, port in zip(names, ports, strict=True)}, head=Endpoint(host, head)
    )
    (directory / "manifest.toml").write_bytes(dump_manifest(manifest))
    (directory / "endpoints.json").write_bytes(msgspec.json.encode(endpoints))
    for name in names:
        (directory / name / "node").mkdir(parents=True)
        (directory / name / NODE_NAME).write_text(name)
        write_keys(directory / name / SECRET_KEY, keys[name])
    made = Fleet(directory, manifest, endpoints, keys)
    try:
        yield made
    finally:
        for process in made.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGCONT)
            process.kill()
            process.wait()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _main(directory: Path, node: str) -> None:
    """One stage of the fake decoder, until SIGTERM."""
    from ruvrun.manifest import load_manifest
    from ruvrun.pipeline.sockets import open_sockets

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    manifest = load_manifest(directory / "manifest.toml")
    endpoints = msgspec.json.decode((directory / "endpoints.json").read_bytes(), type=Endpoints)
    if manifest.stage[0].backend in POOLED:
        pool, sequences = pool_of(CONTEXT, SLOTS), sequences_of(SLOTS)
        workers = pooled_workers(len(manifest.stage), sequences=sequences, context=CONTEXT, pool=pool)
    else:
        workers = fake_workers(len(manifest.stage), slots=SLOTS, context=CONTEXT)
    place = manifest.place_of(node)
    assert place is not None
    transport = open_sockets(manifest, node, directory / node, endpoints)
    Stage(manifest, node, endpoints, transport, lambda: workers[place[1].stage], _say).run()


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2])
