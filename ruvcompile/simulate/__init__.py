"""What a planned fleet would do for its users: a discrete-event simulation from the plan's forecast."""

from ruvcompile.simulate.load import Lengths, Load
from ruvcompile.simulate.ring import HEAD, Span
from ruvcompile.simulate.service import Absence, Outcome, simulate
from ruvcompile.simulate.timeline import timeline

__all__ = ["HEAD", "Absence", "Lengths", "Load", "Outcome", "Span", "simulate", "timeline"]
