"""A machine with an accelerator that only its vendor's compiler can build for: the graph is cut for the two.

Such a target says in its data what the accelerator takes (``[accelerator]``): operators, the newest opset, and the
commands of the vendor's compiler. From that

1. ``frozen`` gives every tensor its size, as the vendor's parser wants it: what follows from the sizes alone becomes a
   weight;
2. ``able`` tells of every node whether the accelerator could take it, and else why not;
3. ``divided`` cuts the graph into the fewest parts that are wholly the one's or the other's;
4. ``parts`` writes them as static ONNX, with a script of the vendor's commands and the first run's values;
5. ``vendor`` runs these commands where the compiler is installed.

What comes out is no build: ``ruvrun`` has no executor for what the vendor's compiler makes, since nothing of it could
be run, or tested, without the device. The parts for the CPU are plain ONNX, and the vendor's runtime runs the others.
Whether the accelerator really takes a part is its parser's word; the data here are what its documentation says.
"""

from __future__ import annotations

from ruvcompile.accelerator.build import build_parts, plan_parts, target_of

__all__ = ["build_parts", "plan_parts", "target_of"]
