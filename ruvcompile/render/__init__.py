"""Text files out of templates: what a node needs to install itself (``node``), and what delivers a fleet (``fleet``).

``templates`` finds and renders them; a target overrides any of a node's by one of the same name in its own folder.
"""

from ruvcompile.render.fleet import DELIVER, render_fleet
from ruvcompile.render.node import FILES, NodeFacts, render_node
from ruvcompile.render.templates import SUFFIX, mode_of, render

__all__ = ["DELIVER", "FILES", "SUFFIX", "NodeFacts", "mode_of", "render", "render_fleet", "render_node"]
