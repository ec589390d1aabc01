"""Make what a plan says, in the workspace of a build: its stages, lowered and checked, and the build around them.

More than once: a plan is settled by running what it gives, and a link type by looking at the answers.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ruvcompile.contract import Contents
from ruvcompile.disk import check_copies
from ruvcompile.emit import write_build
from ruvcompile.front import Front
from ruvcompile.lower.sheet import Keyed
from ruvcompile.lower.weights import WeightStore
from ruvcompile.options import Options
from ruvcompile.plan import Facts, Plan
from ruvcompile.progress import Progress
from ruvcompile.settle import Settled, settle
from ruvcompile.stages import Lowered, check_stages, divide, lower_stages
from ruvrun.bundle import BUNDLES
from ruvrun.costs import CostTable
from ruvrun.manifest import MANIFEST, Manifest


@dataclass(frozen=True)
class Maker:
    """Makes builds of one model in one place, each in that of the one before.

    Attributes:
        front: the model.
        options: of the build.
        work: where it is made.
        store: its weights, shared by all that is made.
    """

    front: Front
    options: Options
    work: Path
    store: WeightStore
    progress: Progress

    def settled(self, facts: Facts) -> tuple[Settled, Lowered]:
        """A plan and its stages.

        What a user measured elsewhere is believed; what was measured now, by unit, is held against reality.
        """
        make = None if self.options.costs else partial(self._tried, costs=facts.costs)
        settled = settle(facts, self.front.samples, make, self.progress)
        return settled, settled.lowered or self.lower(settled.plan)

    def lower(self, plan: Plan) -> Lowered:
        """Every stage in its first node's bundle, with its golden check.

        Raises:
            MachineError: the disk has no room for all bundles.
        """
        check_copies(self.work, self.front.program, plan)
        shutil.rmtree(self.work / BUNDLES, ignore_errors=True)
        keyed = Keyed(plan.units, plan.keys)
        with self.progress.step("lower", total=len(divide(plan).stages)) as bar:
            lowered = lower_stages(
                self.front.program, keyed, self.front.types, plan, self.work, self.store, bar.advance
            )
        with self.progress.step("golden"):
            return check_stages(lowered, self.front.samples)

    def write(self, plan: Plan, lowered: Lowered, costs: CostTable, loss: Mapping[str, float]) -> Manifest:
        """Everything around the stages but the report; ``loss`` is the distance from the source, where it is known."""
        front, options = self.front, self.options
        quant = options.quant if front.program.decoder is not None else "none"
        contents = Contents(front.program, plan, lowered, costs, quant, loss, front.choices, options.activations)
        return write_build(self.work, contents, options)

    def _tried(self, plan: Plan, costs: CostTable) -> tuple[Lowered, Path]:
        """A build that can be run; its stages, and its manifest."""
        lowered = self.lower(plan)
        self.write(plan, lowered, costs, {})
        return lowered, self.work / MANIFEST
