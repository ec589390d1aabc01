"""Whole kinds of graphs that the node cases of the onnx package have few of: the same way, the same rule.

The wanted outputs are ONNX Runtime's own for the very model; the number of cuts says that the graph was really cut.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx
import pytest
from onnx import helper

from ruvcompile.errors import InputError
from ruvcompile.load import load
from tests.foreign import staged
from tests.foreign.cases import Case
from tests.foreign.kinds import (
    I64,
    F,
    Model,
    a_scan,
    a_sequence_of_texts_comes_out,
    an_optional_goes_in,
    branches_with_captures,
    contrib,
    functions,
    half_floats,
    loops_that_name_alike,
    many_texts,
    n,
    nothing_in_them,
    odd_names,
    old,
    optionals_inside,
    outputs_that_are_no_results,
    quantised,
    rare_weights,
    sequences_inside,
    small_floats,
    sparse,
    texts,
    trees,
    weights_in_branches,
)
from tests.foreign.plain import run_plainly
from tests.foreign.verdict import PASSED, judge
from tests.graphs import make_model, tensor


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    staged.be_quick(monkeypatch)


@pytest.mark.parametrize(
    ("make", "cuts"),
    [
        (branches_with_captures, 5),
        (loops_that_name_alike, 4),
        (a_scan, 4),
        (functions, 4),
        (texts, 4),
        (sequences_inside, 2),
        (optionals_inside, 3),
        (outputs_that_are_no_results, 3),
        (contrib, 3),
        (quantised, 3),
        (small_floats, 5),
        (old, 6),
        (nothing_in_them, 5),
        (trees, 3),
        (half_floats, 15),
        (sparse, 2),
        (many_texts, 3),
        (rare_weights, 2),
        (odd_names, 2),
        (weights_in_branches, 4),
        (a_sequence_of_texts_comes_out, 1),
        (an_optional_goes_in, 2),
    ],
    ids=lambda each: getattr(each, "__name__", str(each)),
)
def test_as_the_whole_at_every_cut(make: Callable[[], Model], cuts: int) -> None:
    model, inputs = make()
    # Half floats are the whole's to the last bit: what one rounding makes of them is more than any tolerance here.
    tolerance = (0.0, 0.0) if make is half_floats else (1e-4, 1e-5)
    case = Case(make.__name__, model, dict(inputs), {}, *tolerance)
    wanted = run_plainly(case)
    verdict = judge(Case(case.name, model, case.inputs, wanted, case.rtol, case.atol))
    assert verdict.what == PASSED
    assert verdict.cuts >= cuts


def test_what_gives_maps_is_refused_with_the_node(tmp_path) -> None:
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(I64, helper.make_tensor_type_proto(F, [])))
    model = make_model(
        [
            n("Softmax", "x", "p"),
            n("ZipMap", "p", "y", name="zip", domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2, 3]),
        ],
        [tensor("x", [3, 4])],
        [helper.make_value_info("y", kind)],
        domains={"ai.onnx.ml": 1},
    )
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(InputError) as refused:
        load(str(tmp_path / "net.onnx"))
    assert refused.value.ref == "port-is-map"
    assert refused.value.context == ("it is made by ZipMap (zip)",)
    assert "zipmap" in refused.value.hint
