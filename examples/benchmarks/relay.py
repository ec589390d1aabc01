"""A TCP relay that holds everything back for a while: a long line, on one machine.

    python relay.py MILLISECONDS LISTEN:TARGET [LISTEN:TARGET ...]

Connections to port LISTEN of loopback go on to port TARGET. Every byte leaves MILLISECONDS after it came, in either
direction, however many follow it, so that it is latency and not bandwidth. What passes is not looked at: encrypted
links work as they are. It runs until it is killed.

A thread reads and a thread writes for each direction; the one that writes sleeps until the bytes are due, which is
exact to a tenth of a millisecond, where an event loop rounds up to whole ones.
"""

from __future__ import annotations

import queue
import socket
import sys
import threading
import time

_PIECE = 1 << 18


def serve(listener: socket.socket, target: int, seconds: float) -> None:
    """Relay every connection that comes."""
    while True:
        near, _ = listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", target))
        except ConnectionRefusedError:  # not there yet; who called will call again
            near.close()
            continue
        for one, other in ((near, far), (far, near)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            held: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()
            threading.Thread(target=_read, args=(one, held, seconds), daemon=True).start()
            threading.Thread(target=_write, args=(other, held), daemon=True).start()


def _read(source: socket.socket, held: queue.SimpleQueue[tuple[float, bytes]], seconds: float) -> None:
    data = b"..."
    while data:
        try:
            data = source.recv(_PIECE)
        except OSError:
            data = b""
        held.put((time.monotonic() + seconds, data))


def _write(target: socket.socket, held: queue.SimpleQueue[tuple[float, bytes]]) -> None:
    """Pass on what is due; nothing means that the other end is gone."""
    while True:
        due, data = held.get()
        if (left := due - time.monotonic()) > 0:
            time.sleep(left)
        try:
            if not data:
                target.shutdown(socket.SHUT_WR)
                return
            target.sendall(data)
        except OSError:
            return


def main() -> None:
    seconds = float(sys.argv[1]) / 1e3
    threads = []
    for pair in sys.argv[2:]:
        listen, target = map(int, pair.split(":"))
        listener = socket.create_server(("127.0.0.1", listen))
        threads.append(threading.Thread(target=serve, args=(listener, target, seconds), daemon=True))
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    main()
