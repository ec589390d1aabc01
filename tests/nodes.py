"""Facts of nodes as templates get them: one with a stage, one with the head too, and a fleet of any targets."""

from __future__ import annotations

from dataclasses import replace

from ruvcompile.render import NodeFacts
from ruvcompile.targets import Target, load_target

TARGETS = ("host", "x86-64", "arm64", "pi5", "pi4", "intel-cpu", "intel-gpu", "intel-npu", "pi5-hailo10h")
"""All that come with the compiler."""

STAGE = NodeFacts(
    model="SmolLM2-135M",
    id="0123456789abcdef" * 4,
    node="pi5-1",
    stage=1,
    stages=4,
    head=False,
    head_node="pi5-0",
    address="pi5-1.local",
    port=7070,
    cpus=(2, 3),
    threads=2,
)
HEAD = replace(STAGE, node="pi5-0", stage=0, head=True, cpus=())


def fleet(*targets: str, model: str = STAGE.model) -> list[tuple[NodeFacts, Target]]:
    """A node of each of these targets; the first is the head's."""
    made = []
    for number, name in enumerate(targets):
        target = load_target(name)
        facts = replace(HEAD, model=model, node=f"pi5-{number}", stage=number, stages=len(targets), head=number == 0)
        made.append((replace(facts, address=f"pi5-{number}.local", cpus=(2, 3)), target.on(target.backend)))
    return made
