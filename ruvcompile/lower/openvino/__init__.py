"""Lower a stage for OpenVINO: the canonical decoder form, nearly as it is, to OpenVINO's intermediate representation.

OpenVINO's reader of ONNX takes the canonical form: ``Attention`` becomes ``ScaledDotProductAttention``, ``MatMulNBits``
compressed weights and a product, the same numbers as on every other node. What is left to do is to bring the graph
into the shape that its paged attention is made of (``states``), and only the executor makes it paged: the paged
operator is not one that a file can hold.

1. On the last stage only the rows that will be sampled are gathered before the final norm (``lower/rows``).
2. What enters a stage that is not the first is called ``inputs_embeds``, the one name besides ``input_ids`` that
   becomes a flat axis of tokens.
3. Past and present become variables with a beginning and an order of beams.
4. Key/value heads that several query heads share are repeated by a ``Broadcast``.
5. It is made paged once, and what that gives is counted: a layer that was not recognised would silently keep a state
   of its own and compute something else.
6. Names are made a matter of the graph alone, and constants become files by content (``names``, ``parts``).

How it will be computed is no machine's default but stands in the stage's ``options``.
"""
