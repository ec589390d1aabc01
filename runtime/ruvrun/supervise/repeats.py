"""What several processes say of one event, said once.

The head and the stage before a node both notice when it is gone, and both wait for one that does not answer. Whoever
keeps these processes passes on what the first of them says:

1. ``lost: ...`` and ``refused: ...``: not the very same line of another process within ``SAME`` seconds.
2. ``waiting: NODE, ...``: not of another process, as long as the one that spoke of this node does so now and then
   (``TENURE`` seconds). Their clocks did not start together, so their lines need not be the same.

A process may always repeat itself; it knows why. What a process that has ended has said does not count.
"""

from __future__ import annotations

SAME = 5.0
TENURE = 150.0


class Repeats:
    """Who said what of whom, and when."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[str, float]] = {}

    def is_new(self, process: str, line: str, now: float) -> bool:
        """Whether to pass on a line of ``process``; ``now`` is in seconds, monotonic."""
        kind, _, rest = line.partition(": ")
        if kind not in ("lost", "refused", "waiting"):
            return True
        waiting = kind == "waiting"
        about = f"waiting: {rest.partition(',')[0]}" if waiting else line
        teller, when = self._told.get(about, (process, now))
        if teller != process and now - when < (TENURE if waiting else SAME):
            return False
        self._told[about] = (process, now)
        return True

    def forget(self, process: str) -> None:
        """A process has ended."""
        self._told = {about: told for about, told in self._told.items() if told[0] != process}
