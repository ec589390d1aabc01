"""Processes that are there while a block runs, and gone when it ends, however it ends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

from ruvrun.errors import UnreachableError
from ruvrun.supervise import Process, Supervisor

# How long a process that died may take to be found dead, and the others to be ended, before we speak of it.
_LAST_WORDS = 2.0


@contextlib.contextmanager
def kept(
    processes: Sequence[Process], tell: Callable[[str], None] = lambda _line: None
) -> Iterator[list[BaseException]]:
    """Keep processes while the block runs; the list gets what ended one of them early.

    Raises:
        RuvError: where the block finds one unreachable, what that one said of its end.
    """
    failed: list[BaseException] = []
    supervisor = Supervisor(processes, tell=tell, restart=False)

    def keep() -> None:
        try:
            supervisor.run()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits for us
            failed.append(error)

    # Cores are a thread's own and passed on: the children come from one that the block does not keep on any.
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
