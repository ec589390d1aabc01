"""Lower a stage for OpenVINO: the canonical decoder form, nearly as it is, to OpenVINO's intermediate representation.

OpenVINO's reader of ONNX takes the canonical form: ``Attention`` becomes ``ScaledDotProductAttention``, ``MatMulNBits``
compressed weights and a product, the same numbers as on every other node. What is left to do is to bring the graph
into the shape that its paged attention is made of, and to do at once what every start would do again.

1. Products of one input become one, whose output is divided: queries, keys and values; gate and up
   (``lower/projections``). Each quantises what comes in, and costs something besides the weights it reads.
2. On the last stage only the rows that will be sampled are gathered before the final norm (``lower/rows``).
3. What enters a stage that is not the first is called ``inputs_embeds``, the one name besides ``input_ids`` that
   becomes a flat axis of tokens.
4. Past and present become variables with a beginning and an order of beams (``states``).
5. Key/value heads that several query heads share are repeated by a ``Broadcast``.
6. It is made paged, and what that gives is counted: a layer that was not recognised would silently keep a state of its
   own and compute something else. The paged operators, which no file can hold, are taken out again; the executor puts
   them back (``ruvrun.executors.openvino.cpu.attention``).
7. What OpenVINO works out of any graph before it looks at a machine is worked out here, and equal shapes and axes
   become one: of the 7,000 nodes of a decoder of 30 layers a good third is left, and compiling takes two thirds of the
   time.
8. Names are made a matter of the graph alone, and constants become files by content (``names``, ``constants``).

How it will be computed is no machine's default but stands in the stage's ``options``.

Stages for a GPU (``gpu``) and an NPU (``npu``) take other forms of the same.
"""
