"""From a piece of the program to what a back end loads.

``stage`` is the way in, the same for all: it cuts the piece out, hands a ``Draft`` to the lowering of the back end and
writes ``bundle.toml`` around what comes back (``draft`` has the nouns). The lowerings are ``onnxruntime``, ``openvino``
with its three forms, and ``reference``. They share moves: ``projections`` and ``rows`` rewrite what several of them
want rewritten, ``halves`` keeps half floats from being rounded at a cut, ``edit`` has the steps of any rule. ``files``
and ``weights`` write the graph and its weights by content, ``sheet`` notes which nodes of it belong to which unit.
"""
