"""What must hold of an engine between any two calls."""

from __future__ import annotations

from ruvrun.engine import Engine
from ruvrun.engine.sequence import NO_SLOT


def check(engine: Engine) -> None:
    """Nothing is lost, held twice, awaited by nobody or sent too far."""
    engine._slots.check()
    assert len({sequence.slot for sequence in engine._running.values()}) == engine._slots.held_count == engine.running
    assert all(engine._slots.holder(sequence.slot) == name for name, sequence in engine._running.items())
    assert all(sequence.slot == NO_SLOT for sequence in engine._waiting.values())
    assert not engine._waiting or not engine._slots.can_allocate(), "one waits although a slot is free"
    assert len(engine._flights) <= engine.window, "more steps in the ring than the window allows"
    assert sum(flight.decode for flight in engine._flights) <= engine._stages
    numbers = [flight.step for flight in engine._flights]
    assert numbers == sorted(set(numbers))
    assert all(number < engine._numbered for number in numbers)
    asked = [sequence for flight in engine._flights for sequence in flight.due]
    awaited = asked + [sequence for flight in engine._flights for sequence in flight.known]
    for sequence in engine._running.values():
        assert awaited.count(sequence) == int(sequence.due), "a step is due that nobody sent, or twice"
        assert sequence.sent <= engine.context
        if sequence.decoding:
            assert sequence.prompt_left == 0
            assert sequence.sent <= len(sequence.tokens) - 1 + sequence.due
            assert sequence not in asked or sequence.sent == len(sequence.tokens)
        else:
            assert sequence.due == (sequence.prompt_left == 0), "a prompt that was sent awaits its token"
