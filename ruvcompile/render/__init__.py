from ruvcompile.render.node import FILES, NodeFacts, render_node
from ruvcompile.render.templates import mode_of

__all__ = ["FILES", "NodeFacts", "mode_of", "render_node"]
