"""What becomes of a case: passed, not supported by ONNX Runtime itself, or failed, which is a bug of ours.

A case that ONNX Runtime refuses must be refused here as well, with a reason; one that it gets wrong must come out as
wrong, since a pipeline computes what the whole model would. Neither makes a case pass.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from ruvcompile.load import load
from ruvcompile.passes import run as run_passes
from ruvcompile.passes.chance import left_to_chance
from ruvrun.errors import RuvError
from tests.foreign import staged
from tests.foreign.agree import different, differs
from tests.foreign.cases import Case
from tests.foreign.plain import RefusedError, run_plainly

PASSED = "passed"
REFUSED = "not supported by onnxruntime itself: refused"
WRONG = "not supported by onnxruntime itself: wrong"


@dataclass(frozen=True)
class Verdict:
    """``what`` is one of the three above, or says what failed; ``cuts`` is at how many cuts the case ran."""

    name: str
    what: str
    cuts: int = 0

    @property
    def failed(self) -> bool:
        """Whether there is a bug of ours."""
        return self.what not in (PASSED, REFUSED, WRONG)


ALL = 10**6
"""More cuts than any case has."""


def judge(case: Case, most: int = ALL) -> Verdict:
    """Take ``case`` through everything, cut at ``most`` places at most."""
    with tempfile.TemporaryDirectory(prefix="foreign-") as directory:
        folder = Path(directory)
        try:
            plain = run_plainly(case)
        except RefusedError as refused:
            return Verdict(case.name, _refused_too(case, folder, refused))
        right = not differs(case, plain)
        cuts = 0
        try:
            found = staged.run(staged.build(case, folder), case.inputs)
            model = run_passes(load(str(folder / staged.MODEL))).model
            if not right and not left_to_chance(model).isdisjoint(case.wanted):
                return Verdict(case.name, WRONG)  # no two runs agree
            # What was right must be right; what was wrong must be as wrong.
            wanted = case.wanted if right else plain
            if why := different(found, wanted, case.rtol, case.atol):
                return Verdict(case.name, f"one stage: {why}")
            for cut, outputs in staged.run_at_cuts(case, folder, most):
                if why := different(outputs, wanted, case.rtol, case.atol):
                    return Verdict(case.name, f"cut {cut}: {why}")
                cuts += 1
            if cuts:
                found = staged.run(staged.build(case, folder, nodes=2), case.inputs)
                if why := different(found, wanted, case.rtol, case.atol):
                    return Verdict(case.name, f"two stages: {why}")
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the verdict
            return Verdict(case.name, f"{type(error).__name__}: {error}")
        return Verdict(case.name, PASSED if right else WRONG, cuts)


def _refused_too(case: Case, folder: Path, plain: RefusedError) -> str:
    try:
        staged.run(staged.build(case, folder), case.inputs)
    except RuvError:
        return REFUSED
    except Exception as error:  # noqa: BLE001 - as above
        return f"onnxruntime says {plain}, but we {type(error).__name__}: {error}"
    return f"onnxruntime says {plain}, but here it ran"
