"""A manifest that holds a bit of everything."""

from __future__ import annotations

from ruvrun.manifest import (
    Head,
    KeyValue,
    Manifest,
    Node,
    Pipeline,
    Placed,
    Plan,
    Program,
    Space,
    Stage,
    Tensor,
    identify,
)


def example() -> Manifest:
    program = Program(name="m", kind="decoder", source="m.gguf", source_sha256="ab" * 32, vocab=10, context=64, eos=[2])
    hidden = Tensor(name="layers.0/mlp/add", dtype="float32", shape=["tokens", 64])
    kv = KeyValue(layers=1, heads=2, head_size=16, dtype="float32")
    same = {"backend": "onnxruntime", "target": "host", "weight_bytes": 5, "graph_nodes": 7, "kv": kv}
    stages = [
        Stage(index=0, sha256="aa" * 32, inputs=[], outputs=[hidden], forward=[hidden.name], **same),
        Stage(index=1, sha256="bb" * 32, inputs=[hidden], outputs=[], forward=[], **same),
    ]
    pipelines = [Pipeline(stages=[Placed(stage=0, node="a"), Placed(stage=1, node="b")])]
    return Manifest(
        id=identify(program, stages, pipelines),
        program=program,
        stage=stages,
        node=[Node(name=name, public_key=name * 40, target="host", threads=1) for name in "ab"],
        pipeline=pipelines,
        head=Head(node="a"),
        space=Space(context=64, streams=4),
        plan=Plan(cost_source="measured", bottleneck_ms=1.5, stage_ms=[1.5, 1.0], verdict="fine"),
    )
