from ruvcompile.render.fleet import DELIVER, render_fleet
from ruvcompile.render.node import FILES, NodeFacts, render_node
from ruvcompile.render.templates import SUFFIX, mode_of, render

__all__ = ["DELIVER", "FILES", "SUFFIX", "NodeFacts", "mode_of", "render", "render_fleet", "render_node"]
