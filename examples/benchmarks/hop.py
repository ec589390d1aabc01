"""One hop and back between two processes on two cores, by the ways of the links, beside raw TCP with the same bytes.

    python hop.py [--pairs N]

ZeroMQ with CURVE, as between machines, and the rings between processes of one machine; both as a head and its one stage
use them (``ruvrun/transport``): each has called the other, sends over the link that it opened, one part, and is sent to
over the other's. TCP is a socket without Nagle's algorithm that reads as many bytes as it knows will come. In every
pair each way takes its turns, block by block, with 4 KB and with 36 KB: what a step of 2 and of 16 rows of SmolLM2
carries. One end is on each core, with all its threads, and each blocks while it waits.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from harness import Benchmark, Options, Target, finish, quantile, read_options, report, tell, two_cores, versions

from ruvrun.transport import Came, Peer, Transport, Up
from ruvrun.transport.keys import KeyPair, make_keypair
from ruvrun.transport.samehost import SameHost
from ruvrun.transport.zeromq import ZeroMq

SIZES = {"4 KB": 4096, "36 KB": 36 * 1024}
BENCHMARK = Benchmark("hop", "ratio", Target(at_most=2.0))
BOUNDS = {
    ("zeromq", "4 KB"): Target(at_most=2.0),
    ("zeromq", "36 KB"): Target(at_most=3.0),
    ("samehost", "4 KB"): Target(at_most=0.9),
    ("samehost", "36 KB"): Target(at_most=0.9),
}
BLOCKS, TRIPS = 24, 100
HERE, THERE = "here", "there"
Trip = Callable[[bytes], None]


def transport(way: str, node: str, keys: dict[str, list[str]]) -> Transport:
    """One end."""
    if way == "samehost":
        return SameHost(node, [HERE, THERE])
    return ZeroMq(KeyPair(*keys[node]), {name: pair[0] for name, pair in keys.items()})


def echo(way: str, cpu: int) -> None:
    """The other end: sends back whatever comes, until its standard input ends. Says first where it listens."""
    os.sched_setaffinity(0, {cpu})
    keys = json.loads(sys.stdin.readline())
    if way == "tcp":
        listener = socket.create_server(("127.0.0.1", 0))
        print(listener.getsockname()[1], flush=True)
        connected, _ = listener.accept()
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        room = memoryview(bytearray(max(SIZES.values())))
        while head := connected.recv(4):
            size = int.from_bytes(head, "little")
            fill(connected, room[:size])
            connected.sendall(room[:size])
        return
    link = transport(way, THERE, keys)
    print(listen(way, link), flush=True)
    call(link, HERE, int(sys.stdin.readline()))
    print("ready", flush=True)
    while True:
        for event in link.receive(None):
            if isinstance(event, Came):
                link.send(Peer(HERE), event.parts)


def listen(way: str, link: Transport) -> int:
    """Where the other end reaches this one."""
    return link.bind("127.0.0.1", secrets.randbits(62) if way == "samehost" else 0)


def call(link: Transport, node: str, port: int) -> None:
    """Open the link over which this end sends."""
    link.connect(node, "127.0.0.1", port)
    while not any(isinstance(event, Up) for event in link.receive(None)):
        pass


def fill(connected: socket.socket, room: memoryview) -> None:
    """Read until ``room`` is full."""
    while room:
        room = room[connected.recv_into(room) :]


@contextlib.contextmanager
def ways(cpus: tuple[int, int]) -> Iterator[dict[str, Trip]]:
    """By each way, a function that goes there and back."""
    keys = {node: list(vars_of(make_keypair())) for node in (HERE, THERE)}
    with contextlib.ExitStack() as stack:
        found: dict[str, Trip] = {}
        for way in ("tcp", "zeromq", "samehost"):
            argv = [sys.executable, __file__, "echo", way, str(cpus[1])]
            child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            stack.callback(child.wait)
            stack.callback(child.kill)
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write(json.dumps(keys) + "\n")
            child.stdin.flush()
            port = int(child.stdout.readline())
            if way == "tcp":
                connected = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                found[way] = over_tcp(connected)
            else:
                link = transport(way, HERE, keys)
                stack.callback(link.close)
                child.stdin.write(f"{listen(way, link)}\n")
                child.stdin.flush()
                call(link, THERE, port)
                child.stdout.readline()  # its own call has come through
                found[way] = over(link)
        yield found


def vars_of(keys: KeyPair) -> tuple[str, str]:
    return keys.public, keys.secret


def over_tcp(connected: socket.socket) -> Trip:
    room = memoryview(bytearray(max(SIZES.values())))

    def trip(data: bytes) -> None:
        connected.sendall(len(data).to_bytes(4, "little") + data)
        fill(connected, room[: len(data)])

    return trip


def over(link: Transport) -> Trip:
    peer = Peer(THERE)

    def trip(data: bytes) -> None:
        link.send(peer, [data])
        while not any(isinstance(event, Came) for event in link.receive(None)):
            pass

    return trip


def pair(found: dict[str, Trip]) -> dict[str, dict[str, float]]:
    """Of each way, the median microseconds of a trip by size; the ways take turns, block by block, in any order: how
    soon a core wakes depends on how long it slept in the blocks before.
    """
    times: dict[tuple[str, str], list[float]] = {}
    for _ in range(BLOCKS):
        for name, size in SIZES.items():
            data = bytes(size)
            for way, trip in random.sample(list(found.items()), len(found)):
                taken = times.setdefault((way, name), [])
                for _ in range(TRIPS):
                    began = time.perf_counter()
                    trip(data)
                    taken.append(1e6 * (time.perf_counter() - began))
    return {way: {name: statistics.median(times[way, name]) for name in SIZES} for way in found}


def main() -> int:
    options = read_options(__doc__ or "", Options())
    cpus = two_cores()
    runs: list[dict[str, dict[str, float]]] = []
    os.sched_setaffinity(0, {cpus[0]})
    with ways(cpus) as found:
        pair(found)  # a connection's first trips are slower
        for number in range(1, options.pairs + 1):
            runs.append(pair(found))
            told = "; ".join(f"{way} {us['4 KB']:.0f} and {us['36 KB']:.0f}" for way, us in runs[-1].items())
            tell(f"pair {number} of {options.pairs}: {told} us with 4 and 36 KB")
    ratios = {(way, name): [run[way][name] / run["tcp"][name] for run in runs] for way, name in BOUNDS}
    medians = {key: statistics.median(values) for key, values in ratios.items()}
    details: dict[str, Any] = {
        "what": "round trip with CURVE over ZeroMQ to raw TCP's, 4 KB; the others in `ratios`",
        "ratios": [
            {"way": way, "size": name, "value": medians[way, name], "p10": quantile(ratios[way, name], 0.1),
             "p90": quantile(ratios[way, name], 0.9), **bound.as_json()}
            for (way, name), bound in BOUNDS.items()
        ],
        "tcp_us": {name: statistics.median(run["tcp"][name] for run in runs) for name in SIZES},
        "cpus": cpus,
    }  # fmt: skip
    for (way, name), bound in BOUNDS.items():
        tell(f"{way}, {name}: {medians[way, name]:.2f} of raw TCP's, at most {bound.at_most}")
    first = ("zeromq", "4 KB")
    kept = all(bound.met(medians[key]) for key, bound in BOUNDS.items())
    result = report(
        BENCHMARK,
        medians[first],
        runs=runs,
        spread=ratios[first],
        details=details,
        versions=versions("pyzmq"),
        also=kept,
    )
    return finish(result)


if __name__ == "__main__":
    if sys.argv[1:2] == ["echo"]:
        echo(sys.argv[2], int(sys.argv[3]))
    sys.exit(main())
