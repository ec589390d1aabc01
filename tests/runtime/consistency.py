"""What must hold of an engine between any two calls."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from ruvrun.engine import Engine
from ruvrun.engine.blocks import BlockTable
from ruvrun.engine.line import PASSES
from ruvrun.engine.sequence import NO_SLOT, Sequence


def check(engine: Engine) -> None:
    """Nothing is lost, held twice, awaited by nobody or sent too far."""
    roster = engine._roster
    roster.table.check({sequence.slot: name for name, sequence in roster.running.items()})
    assert list(roster.running) == sorted(roster.running), "not in the order in which they came"
    assert all(sequence.slot == NO_SLOT and sequence.passed <= PASSES for sequence in roster.line)
    for first in islice(roster.line, 1):
        assert not roster._fits(first), "one waits although there is space"
    assert roster.running or not roster.line, "somebody waits for nobody"
    if isinstance(roster.table, BlockTable):
        _check_blocks(roster.table, roster.running.values())
    assert len(engine._flights) <= engine.window, "more steps in the ring than the window allows"
    assert sum(flight.decode for flight in engine._flights) <= max(engine._scheduler._groups)
    numbers = [flight.step for flight in engine._flights]
    assert numbers == sorted(set(numbers))
    assert all(number < engine._numbered for number in numbers)
    asked = [sequence for flight in engine._flights for sequence in flight.due]
    awaited = asked + [sequence for flight in engine._flights for sequence in flight.known]
    for sequence in roster.running.values():
        assert awaited.count(sequence) == int(sequence.due), "a step is due that nobody sent, or twice"
        assert sequence.sent <= engine.context
        if sequence.decoding:
            assert sequence.prompt_left == 0
            assert sequence.sent <= len(sequence.tokens) - 1 + sequence.due
            assert sequence not in asked or sequence.sent == len(sequence.tokens)
        else:
            assert sequence.due == (sequence.prompt_left == 0), "a prompt that was sent awaits its token"


def _check_blocks(table: BlockTable, running: Iterable[Sequence]) -> None:
    """Nobody has more than its tokens need, or less than was sent."""
    size = table._pool.size
    for sequence in running:
        assert sequence.room == table.room(sequence.slot)
        assert sequence.sent <= sequence.room < len(sequence.tokens) + size
        assert not sequence.blocks, "stages were not told of a block"
