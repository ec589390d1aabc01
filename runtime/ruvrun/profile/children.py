"""The processes that a measurement starts, which are gone when it ends, however it ends."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from ruvrun.errors import UnreachableError
from ruvrun.supervise import Process, Supervisor

_LAST_WORDS = 2.0


def child(directory: Path, arguments: Sequence[str], threads: int, cpus: Sequence[int], file: Path) -> Process:
    """A process of ``ruvrun profile`` on the bundle in ``directory``, which writes ``file``."""
    argv = [
        *(sys.executable, "-P", "-m", "ruvrun", "profile", str(directory), *arguments),
        *("--threads", str(threads), "-q", "-o", str(file)),
        *(("--cpus", ",".join(map(str, cpus))) if cpus else ()),
    ]
    return Process("the stage that is measured", argv, {"OMP_NUM_THREADS": str(threads), "OPENBLAS_NUM_THREADS": "1"})


@contextlib.contextmanager
def kept(processes: Sequence[Process]) -> Iterator[list[BaseException]]:
    """Keep processes while the block runs; the list gets what ended one of them early."""
    failed: list[BaseException] = []
    supervisor = Supervisor(processes, tell=lambda _line: None, restart=False)

    def keep() -> None:
        try:
            supervisor.run()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits for us
            failed.append(error)

    # A thread passes its cores on: the children, which are told theirs, come from one that may use all.
    keeper = threading.Thread(target=keep, name="supervisor")
    keeper.start()
    try:
        yield failed
    except UnreachableError:
        keeper.join(_LAST_WORDS)
        if failed:  # a child's own words say more than that it was lost
            raise failed[0] from None
        raise
    finally:
        supervisor.stop()
        keeper.join()
