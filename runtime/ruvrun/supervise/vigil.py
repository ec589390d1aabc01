"""Who goes on, and who hangs.

A process can be there and do nothing any more: it was stopped, or waits for a driver that never answers. Only the
process itself can tell that from having nothing to do. So a child says now and then that it goes on, and for how long
that holds (``alive_line``). Who has not said it again by then hangs, and is ended and started again.

In the child a thread says so (``Pulse``), as long as the number it looks at is not the same for longer than any work
takes; to load is one piece of work (``LOADING``), then come others. In the supervisor a ``Vigil`` knows who has until
when. Time in which the supervisor itself did not run (it was stopped with all the others, as a container is that is
paused) is nobody's silence: all have that much longer.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable

EVERY = 10.0
"""Seconds after which a child says again that it goes on."""

WITHIN = 60.0
"""Seconds for which what it says holds: also where the machine is so busy that a thread seldom gets its turn."""

STARTING = 300.0
"""The same for one that starts and loads: what it loads may have the interpreter to itself for a while."""

LOADING = 1800.0
"""Seconds that loading takes at most, off a slow card too: as long as its unit gives a service (TimeoutStartSec)."""

_ALIVE = '{"alive": '
_LATE = 1.0


def alive_line(seconds: float = WITHIN) -> str:
    """What a child writes to its standard error for its supervisor: it goes on, for so long."""
    return json.dumps({"alive": seconds})


def alive_for(line: str) -> float | None:
    """The seconds of such a line; None where it is another, or was cut off."""
    if not line.startswith(_ALIVE):
        return None
    try:
        return float(json.loads(line)["alive"])
    except ValueError:
        return None


class Pulse:
    """Whether the work of this process goes on: at first it loads, which takes ``LOADING`` at most.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._anew = threading.Event()
        self.look(lambda: 0, LOADING, STARTING)

    def look(self, turn: Callable[[], int | None], longest: float, within: float = WITHIN) -> None:
        """From now on look at ``turn``, a number that changes as the work goes on, and None while there is none.

        No work takes more than ``longest`` seconds, and what is said holds for ``within``.
        """
        self._work, self._within = (turn, longest), within
        self._last: int | None = None
        self._since = self._clock()
        self._anew.set()

    def beats(self) -> bool:
        """Whether it goes on, as far as can be seen now."""
        look, longest = self._work
        turn, now = look(), self._clock()
        if turn is None or turn != self._last:
            self._last, self._since = turn, now
        return now - self._since <= longest

    def start(self, say: Callable[[str], None]) -> None:
        """Say so from a thread of its own, as long as it is true: at once, when other work begins, and now and then."""

        def beat() -> None:
            with contextlib.suppress(OSError, ValueError):  # nobody listens any more
                while True:
                    self._anew.clear()
                    if self.beats():
                        say(alive_line(self._within))
                    self._anew.wait(EVERY)

        threading.Thread(target=beat, name="pulse", daemon=True).start()


class Vigil:
    """By when each child has to say that it goes on; who is not expected to need not. Times are seconds, monotonic."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._said: dict[str, float] = {}

    def heard(self, name: str, seconds: float, now: float) -> None:
        """It goes on or is started, and will say so again within ``seconds``."""
        self._until[name], self._said[name] = now + seconds, seconds

    def forget(self, name: str) -> None:
        """It has ended."""
        self._until.pop(name, None)

    def pause(self, now: float) -> float | None:
        """How long to wait before looking again; None where there is nobody to look after."""
        return max(0.0, min(min(self._until.values()) - now, EVERY)) if self._until else None

    def waited(self, meant: float | None, seconds: float) -> None:
        """The supervisor meant to wait at most ``meant`` seconds; what it took beyond that it did not run."""
        if meant is not None and seconds - meant > _LATE:
            self._until = {name: until + seconds - meant for name, until in self._until.items()}

    def silent(self, now: float) -> dict[str, float]:
        """Who hangs, and for how many seconds nothing was heard of it."""
        return {name: self._said[name] for name, until in self._until.items() if until <= now}
