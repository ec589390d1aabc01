"""What a process has loaded stays as long as it does, so Python need not look through it for garbage again and again.

Every now and then Python's collector goes through all objects there are, and everything else in the process waits: with
the modules of a back end that was 17 to 27 ms, in a stage and in the head, every few seconds, which is the time of two
tokens for all who decode (SmolLM2-135M in two stages). What comes and goes with steps and requests is little beside
it, and is still looked through.
"""

from __future__ import annotations

import gc


def leave_be() -> None:
    """All that is there now is no garbage; to be said once a process has loaded what it will."""
    gc.collect()
    gc.freeze()
