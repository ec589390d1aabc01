"""One stage of a ring without its links: a message and its tensors in, a message and its tensors out.

::

    message            any stage but the last          the last stage
    Open, Close        noted, passed on                noted, ends here
    Step + tensors     Step + the cut's tensors        Sampled: a token for each row asked for
    Run + tensors      Run + the cut's tensors         Run + the program's outputs

What leaves a stage are the tensors that its spec's ``forward`` names: its own outputs, and those that it
received and only relays because a later stage wants them.

Messages carry (epoch, step). Within an epoch every stage sees every step number exactly once, in order; a gap
means that something was lost on a link, and nothing computed after it would be right. A higher epoch starts
from nothing: all sequences are forgotten (the executor needs no telling, as a sequence starts at position 0 and
overwrites). A lower one is left over from before a loss, and dropped. Once a step has failed, for whatever
reason, the rest of its epoch is dropped too: the key/value space is not what the head thinks it is.

A step passes here with its caches cold: the weights that were just read have driven everything else out, and then it is
not the instructions that cost but every function and object that is touched. So the way of a step is a few functions
with plain loops, and what there is to do for its sequences is done before the back end runs, where some of it is still
warm: behind it, where everything is cold, come the logits alone.

Where space is in blocks, a sequence has those that the messages brought, and no others are read or written for it.

The peers are ours and hold keys, but a wrong build, a bug or a flipped bit must end in an error and never in
a wrong token, so what a step says is checked against what is known of its sequences.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from ruvrun import frames
from ruvrun.bundle import StageSpec
from ruvrun.elements import Arrays
from ruvrun.engine.sampling import Room, Sampler
from ruvrun.errors import InputError, IntegrityError
from ruvrun.executors import Array, CopyingExecutor, DecoderExecutor, GraphExecutor, Span
from ruvrun.pipeline.asked import Asked
from ruvrun.pipeline.calls import too_large
from ruvrun.pipeline.granted import Granted, fault
from ruvrun.pipeline.halves import is_wide, narrowed, widened
from ruvrun.pipeline.meter import Meter

Result = tuple[frames.Message, dict[str, Array]]
LOGITS = "logits"
_MOST_SAID = 1000


@dataclass(slots=True)
class _Opened:
    """An open sequence: how the last stage samples, its slot once known, how many positions were computed, and its
    blocks where it was given any.
    """

    sampler: Sampler | None
    slot: int | None = None
    reached: int = 0
    blocks: list[int] = field(default_factory=list)


class Worker:
    """Runs one stage; ``granted`` is what it knows of the blocks of its sequences.

    Args:
        executor: the loaded stage, of the kind that ``spec`` says.
        spec: its bundle's ``bundle.toml``.
        clock: seconds, for the counters in ``meter``.
        largest: bytes of the largest tensor that a link carries.
    """

    def __init__(
        self,
        executor: DecoderExecutor | GraphExecutor,
        spec: StageSpec,
        clock: Callable[[], float] = time.perf_counter,
        *,
        largest: int = sys.maxsize,
    ) -> None:
        self._largest = largest
        self.spec = spec
        self.meter = Meter(clock)
        self._executor = executor
        self.granted = Granted(executor)
        self._wide = [tensor for tensor in spec.inputs if tensor.wire]
        self._narrow = [tensor for tensor in spec.outputs if tensor.wire]
        packed = spec.inputs if spec.kind == "decoder" else ()  # a graph's may be of types that numpy has no name for
        self._packed = [(each, np.dtype(each.wire or each.dtype), tuple(each.shape[1:])) for each in packed]
        self._room = Room()
        self._open: dict[int, _Opened] = {}
        # How many positions of a slot were computed for a sequence that is closed.
        self._left: dict[int, int] = {}
        self._epoch = 0
        self._next = 0
        self._failed = False

    def handle(self, message: frames.Message, tensors: Arrays) -> Result | None:
        """Take the next message; what it returns goes to the next stage, or from the last one to the head.

        The arrays it returns are the caller's until the next call.

        Raises:
            IntegrityError: the message does not fit what came before, or what this stage is.
            Exception: whatever the executor raises. After any of these the rest of the epoch is dropped.
        """
        if not isinstance(message, frames.Step) and not isinstance(message, frames.Ring):
            raise fault(f"a {type(message).__name__} is no ring message")
        if message.epoch != self._epoch:
            if message.epoch < self._epoch:
                return None
            self._begin(message.epoch)
        if self._failed:
            return None
        try:
            if message.step != self._next:
                raise fault(f"step {message.step} of epoch {message.epoch} came where {self._next} was due")
            self._next += 1
            if isinstance(message, frames.Step):
                start = self.meter.start()
                result = self._step(message, tensors)
            elif isinstance(message, frames.Run):
                start = self.meter.start()
                result = self._run(message, tensors)
            else:
                return self._note(message)
            self.meter.done(start)
            return result
        except Exception:
            self._failed = True
            raise

    def _begin(self, epoch: int) -> None:
        """A higher epoch than before starts from nothing."""
        self._epoch, self._next, self._failed = epoch, 0, False
        self._open.clear()
        self._left.clear()
        self.granted.clear()

    def _note(self, message: frames.Open | frames.Close) -> Result | None:
        match message:
            case frames.Open() if self.spec.kind == "decoder":
                if message.id in self._open:
                    raise fault(f"sequence {message.id} is opened twice")
                if len(self._open) >= (self.granted.sequences if message.blocks else self._decoder.slots):
                    raise fault(f"sequence {message.id} is opened, and every slot has one that is not closed")
                opened = _Opened(self._sampler(message) if self.spec.last else None)
                if message.blocks or message.count:
                    self._begin_with(message, opened)
                self._open[message.id] = opened
            case frames.Close() if self.spec.kind == "decoder":
                closed = self._open.pop(message.id, None)
                if closed is None:
                    raise fault(f"sequence {message.id} is closed but was not open")
                if closed.slot is not None:
                    self._left[closed.slot] = closed.reached
            case _:
                raise self._misplaced(message)
        return None if self.spec.last else (message, {})

    def _step(self, message: frames.Step, tensors: Arrays) -> Result:
        spec = self.spec
        if spec.kind != "decoder":
            raise self._misplaced(message)
        spans, asked = self._take(message, tensors)
        given = tensors
        if self._wide:
            given = {**tensors, **{each.name: widened(each, tensors[each.name]) for each in self._wide}}
        outputs = self._executor.step(spans, given)  # type: ignore[union-attr]  # of the kind the spec says
        if not spec.last:
            return message, self._forward(outputs, tensors)
        if not asked.ids:
            return frames.Sampled(message.epoch, message.step, ()), {}
        return asked.answer(message, outputs[LOGITS], self._room), {}

    def _run(self, message: frames.Run, tensors: Arrays) -> Result:
        if self.spec.kind != "graph":
            raise self._misplaced(message)
        if message.refused:
            return message, {}
        executor = cast(GraphExecutor, self._executor)
        if missing := [tensor.name for tensor in self.spec.inputs if tensor.name not in tensors]:
            raise fault(f"run {message.id} came without {', '.join(missing)}")
        try:
            outputs = executor.run({tensor.name: tensors[tensor.name] for tensor in self.spec.inputs})
        except InputError as error:  # a graph keeps no state: the call ends, and those behind it are none the worse
            why = " ".join(error.context)[:_MOST_SAID] or error.message
            return frames.Run(message.epoch, message.step, message.id, why), {}
        forward = self._forward(outputs, tensors)
        if why := too_large(forward, self._largest):
            return frames.Run(message.epoch, message.step, message.id, why), {}
        return message, forward

    @property
    def _decoder(self) -> DecoderExecutor:
        return self._executor  # type: ignore[return-value]  # of the kind the spec says

    def _begin_with(self, message: frames.Open, opened: _Opened) -> None:
        """Begin a sequence with blocks, or with what another one, open or closed, has in its slot."""
        held = {each.slot: each.reached for each in self._open.values() if each.slot is not None}
        if message.slot in held:
            raise fault(f"sequence {message.id} shall begin where another one is")
        if message.blocks:
            opened.blocks = self.granted.begin(message)
        else:
            self._copy(message, held.get(message.source, self._left.get(message.source, 0)))
        opened.slot, opened.reached = message.slot, message.count

    def _copy(self, message: frames.Open, reached: int) -> None:
        executor = self._executor
        if not isinstance(executor, CopyingExecutor):
            raise fault(f"sequence {message.id} shall begin with a copy, which {self.spec.backend} does not make")
        if not (0 <= message.slot < executor.slots and 0 < message.count <= reached):
            raise fault(f"sequence {message.id} shall begin with what is not there")
        executor.copy(message.source, message.slot, message.count)

    def _sampler(self, message: frames.Open) -> Sampler:
        return Sampler(message.sampling, self.spec.vocab or sys.maxsize, message.prompt, message.generated)

    def _misplaced(self, message: frames.Ring) -> IntegrityError:
        return fault(f"a {type(message).__name__} came to a stage of a {self.spec.kind}")

    def _forward(self, outputs: Arrays, received: Arrays) -> dict[str, Array]:
        """What leaves this stage: its own outputs, and what it received for a later one."""
        forward = {}
        for name in self.spec.forward:
            array = outputs.get(name, received.get(name))
            if array is None:
                raise fault(f"there is no {name} to pass on")
            forward[name] = array
        for tensor in self._narrow:
            forward[tensor.name] = narrowed(tensor, forward[tensor.name])
        return forward

    def _take(self, message: frames.Step, tensors: Arrays) -> tuple[list[Span], Asked]:
        """The spans of a step, in its order, and who is asked for a token behind them; their sequences are as far then
        as they are when it is computed. A step that cannot be right is a fault.
        """
        spans: list[Span] = []
        asked = Asked([], [], [])
        known, executor = self._open, self._executor
        tokens, last_slot = 0, -1
        slots, context = executor.slots, executor.context  # type: ignore[union-attr]  # of the kind the spec says
        for seq in message.seqs:
            state = known.get(seq.id)
            if state is None:
                raise fault(f"step {message.step} is for sequence {seq.id}, which is not open")
            slot, position, count, rows, room = seq.slot, seq.position, seq.count, seq.rows, context
            if state.blocks:
                if seq.blocks:
                    self.granted.add(state.blocks, slot, seq.blocks)
                slots, room = self.granted.sequences, min(room, self.granted.room(state.blocks))
            elif seq.blocks:
                raise fault(f"sequence {seq.id} is given blocks, and has a slot: {seq}")
            reached = position + count
            if not (0 <= position <= state.reached and count >= 1 and 0 <= rows <= 1 and reached <= room):
                raise fault(f"sequence {seq.id} is at position {state.reached} of {room}; this is {seq}")
            if not last_slot < slot < slots or state.slot not in (None, slot):
                raise fault(f"sequence {seq.id} is in slot {state.slot} of {slots}; this is {seq}")
            spans.append(Span(slot, position, count, rows))
            tokens += count
            state.slot, state.reached, last_slot = slot, reached, slot
            if state.blocks:
                self.granted.fill(state.blocks, position, reached)
            sampler = state.sampler
            if rows and sampler is not None:
                asked.ids.append(seq.id)
                asked.samplers.append(sampler)
                asked.positions.append(reached)
                asked.plain = asked.plain and sampler.plain
        if not spans:
            raise fault(f"step {message.step} is empty")
        for tensor, dtype, rest in self._packed:
            array = tensors.get(tensor.name)
            fits = array is not None and (array.dtype == dtype or is_wide(tensor, array))
            if array is None or not fits or array.shape != (tokens, *rest):
                found = "none" if array is None else f"{array.dtype} {list(array.shape)}"
                raise fault(f"{tensor.name} must be {dtype} {[tokens, *rest]}; came: {found}")
        return spans, asked
