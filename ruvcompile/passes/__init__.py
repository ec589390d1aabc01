"""The passes over the graph: one list, in order. Each takes a program and returns a new one.

A pass is a verb without options and without memory; what it may take for granted is what the passes before it
have established, which their docstrings state as numbered rules.

What has options is called by whoever knows them: ``quantise`` (``front``), ``extract`` (``lower``), ``reduced``
(``measure``). What is left answers questions about a graph that several of them ask: ``scope`` what a node reads,
``infer`` what a value is, ``state`` whether this is a decoder, ``groups`` and ``units`` what is moved as a whole,
``cuts`` and ``pieces`` where that may be cut and what the pieces are, ``copies`` what is an input again, ``chance``
what is left to chance.
"""

from __future__ import annotations

from collections.abc import Callable

from ruvcompile.errors import RuvError
from ruvcompile.passes.canonicalise import canonicalise
from ruvcompile.passes.turnable import turnable
from ruvcompile.passes.unsigned import unsigned
from ruvcompile.program import Program

PASSES: tuple[Callable[[Program], Program], ...] = (canonicalise, unsigned, turnable)


def run(program: Program) -> Program:
    """``program`` after all passes; a failure names the pass and those that ran before it."""
    done: list[str] = []
    for step in PASSES:
        try:
            program = step(program)
        except RuvError:
            raise
        except Exception as error:
            error.add_note(f"in pass {step.__name__}, after {', '.join(done) or 'none'}, on {program.source.path}")
            raise
        done.append(step.__name__)
    return program


__all__ = ["PASSES", "run"]
