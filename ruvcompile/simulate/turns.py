"""Which sequences form the next step: the rules of the runtime's engine, for one simulated pipeline.

They are the runtime's own (``ruvrun.engine``): those who decode in groups as equal as can be, neighbours by slot; no
more decode steps in the ring than groups; whole groups before parts of one, then the one that has waited longest;
prompts in chunks, the oldest request first, smaller ones and with a decode step between two while anybody decodes and
every stage has a step; and a window of twice as many steps as stages. Who lost what was computed has its prompt
computed again, and then, one by one, the tokens that it has. The engine itself handles tokens, messages and numbers
that a simulation has no use for. That both send the same steps at the same times is tested. (Where sequences share
their space there are more rules, and the engine is taken itself: ``shared``.)

Measured with 2,000 requests of about 128 tokens to 40 nodes, four stages in each pipeline and eight streams, which are
140,000 steps: with these rules a simulation takes 4.3 microseconds of a core for each step, with the engine's own
``Scheduler`` in their place 5.9, with the whole engine 11.9. A large fleet misses the caches more, and took 54 s for
100,000 requests with that ``Scheduler``.
"""

from __future__ import annotations

import heapq
import operator
from bisect import insort
from collections import deque

_NO_SLOT = -1


class Job:
    """A request on its way: ``prompt_left`` tokens not sent yet, ``left`` tokens of the answer not returned yet.

    ``again`` is how many tokens are to be sent that it has already, before the next one comes: none, but where what was
    computed was lost. ``since`` is when it last became ready, in results of its pipeline; ``due`` is set while a step
    of it is in the ring. Times are in ms; None where it has not come to that.
    """

    __slots__ = (
        "again",
        "answer",
        "arrived",
        "decoding",
        "done",
        "due",
        "first",
        "left",
        "number",
        "prompt",
        "prompt_left",
        "retries",
        "since",
        "slot",
        "times",
        "user",
    )

    def __init__(self, number: int, arrived: float, prompt: int, answer: int, user: int = -1) -> None:
        self.number = number
        self.arrived = arrived
        self.prompt = prompt
        self.answer = answer
        self.user = user
        self.retries = 0
        self.left = answer
        self.first: float | None = None
        self.done: float | None = None
        self.times: list[float] = []
        self.begin()

    def begin(self) -> None:
        """No stage holds anything of it: it is new, or what was computed was lost with a node."""
        self.slot = _NO_SLOT
        self.prompt_left = self.prompt
        self.again = self.answer - self.left
        self.due = False
        self.decoding = False
        self.since = 0


Step = tuple[list[Job], int, int]
"""The sequences it brings a token for; how many decode in it; how many tokens of a prompt it carries."""

_SLOT = operator.attrgetter("slot")
_NUMBER = operator.attrgetter("number")


class Turns:
    """The head's view of one pipeline of ``stages`` stages with ``streams`` slots.

    Prompts go in ``chunk`` tokens, while groups of 1, 2, ... rows decode in ``beside``; and 1, 2, ... sequences that
    decode form as many ``groups``.
    """

    put_backs = waiting = 0

    def __init__(
        self, stages: int, streams: int, chunk: int, groups: tuple[int, ...], beside: tuple[int, ...] = ()
    ) -> None:
        self._stages, self._counts = stages, groups
        self._window = 2 * stages
        self._streams = streams
        self._chunk = self._size = chunk
        self._beside = beside
        self._running: dict[Job, None] = {}
        self.clear()

    @property
    def load(self) -> tuple[int, int]:
        """What it holds: sequences, and prompt tokens that were not sent yet."""
        return len(self._running), sum(job.prompt_left for job in self._prompts)

    @property
    def has_room(self) -> bool:
        """Whether a slot is free."""
        return bool(self._free)

    def clear(self) -> list[Job]:
        """Nothing runs any more: what ran, the oldest first."""
        gone = list(self._running)
        self._running.clear()
        self._free = list(range(self._streams))
        self._prompts: deque[Job] = deque()
        self._decoding: list[Job] = []
        self._groups: list[list[Job]] = []
        self._stale = False
        self._after_chunk = False
        self._in_ring = 0
        self._decode_steps = 0
        self._results = 0
        return gone

    def add(self, job: Job) -> None:
        """Give a request the lowest free slot; there is one."""
        job.slot = heapq.heappop(self._free)
        self._running[job] = None
        insort(self._prompts, job, key=_NUMBER)

    def next(self) -> Step | None:
        """The next step to send, None where none may go now; it counts as sent."""
        if self._in_ring >= self._window:
            return None
        if self._decoding:
            if self._stale:
                self._regroup()
            if self._decode_steps < len(self._groups) and (chosen := self._group()):
                for job in chosen:
                    job.due = True
                self._after_chunk = False
                self._in_ring += 1
                self._decode_steps += 1
                return chosen, len(chosen), 0
            if self._after_chunk and self._in_ring >= self._stages:
                return None
        if not self._prompts:
            return None
        self._after_chunk = True
        self._in_ring += 1
        job = self._prompts[0]
        left, size = job.prompt_left, self._size if self._decoding else self._chunk
        if left > size + 1:  # a rest of one token joins the chunk before it
            job.prompt_left = left - size
            return [], 0, size
        self._prompts.popleft()
        job.prompt_left = 0
        if job.again:
            self._decodes(job)
            return [], 0, left
        job.due = True
        return [job], 0, left

    def returned(self, jobs: list[Job], decode: bool, now: float, /) -> tuple[list[Job], list[Job]]:
        """The oldest step in the ring is back with a token for each of ``jobs``: whose tokens came, and who is done."""
        self._in_ring -= 1
        if decode:
            self._decode_steps -= 1
        self._results += 1
        done = []
        came = jobs
        for job in jobs:
            job.due = False
            job.since = self._results
            if job.again:
                job.again -= 1
                if job.again:  # the next one is known, too
                    came = [each for each in came if each is not job]
                    continue
            job.left -= 1
            if not job.decoding:
                job.first = now
                self._decodes(job)
            if not job.left:
                job.done = now
                done.append(job)
        for job in done:
            del self._running[job]
            self._decoding.remove(job)
            self._stale = True
            heapq.heappush(self._free, job.slot)
        return came, done

    def _decodes(self, job: Job) -> None:
        """From now on it goes one token at a time."""
        job.decoding, job.since = True, self._results
        insort(self._decoding, job, key=_SLOT)
        self._stale = True

    def _group(self) -> list[Job]:
        """The ready members of the group whose turn it is; empty where nobody is ready."""
        chosen: list[Job] = []
        whole, oldest = False, 0
        for members in self._groups:
            ready = [job for job in members if not job.due]
            if not ready:
                continue
            complete = len(ready) == len(members)
            if whole and not complete:
                continue
            since = min([job.since for job in ready]) if len(ready) > 1 else ready[0].since
            if not chosen or complete > whole or since < oldest:
                chosen, whole, oldest = ready, complete, since
        return chosen

    def _regroup(self) -> None:
        decoding, self._groups = self._decoding, []
        groups = self._counts[len(decoding) - 1] if decoding else 0
        end = 0
        for number in range(groups):
            start, end = end, end + len(decoding) // groups + (number < len(decoding) % groups)
            self._groups.append(decoding[start:end])
        if groups and self._beside:
            self._size = self._beside[min(-(-len(decoding) // groups), len(self._beside)) - 1]
        self._stale = False


class Calls:
    """The same for a graph, whose calls keep no state: as many as the window allows are in the ring."""

    put_backs = waiting = 0

    def __init__(self, stages: int) -> None:
        self._window = 2 * stages
        self._held: dict[Job, None] = {}
        self._new: deque[Job] = deque()

    @property
    def load(self) -> tuple[int, int]:
        """How many calls it holds; no prompts."""
        return len(self._held), 0

    @property
    def has_room(self) -> bool:
        """Whether the window lets another one in."""
        return len(self._held) < self._window

    def clear(self) -> list[Job]:
        """Nothing runs any more: what ran, the oldest first."""
        gone = list(self._held)
        self._held.clear()
        self._new.clear()
        return gone

    def add(self, job: Job) -> None:
        """Take a call; there is room."""
        self._held[job] = None
        self._new.append(job)

    def next(self) -> Step | None:
        """The next call to send, None where none may go now; it counts as sent."""
        return ([self._new.popleft()], 1, 0) if self._new else None

    def returned(self, jobs: list[Job], _decode: bool, now: float, /) -> tuple[list[Job], list[Job]]:
        """A call is back, and done."""
        for job in jobs:
            job.left = 0
            job.first = job.done = now
            del self._held[job]
        return jobs, jobs
