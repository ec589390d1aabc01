"""The node cases of the onnx package: whatever ONNX Runtime gets right, the pipeline gets right.

A fixed tenth, cut at a few places, always; all of them, cut everywhere, with ``./tests/run.sh --system``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pytest

from tests.foreign.agree import different
from tests.foreign.beyond import is_beyond
from tests.foreign.cases import Case, collect, stored, tenth
from tests.foreign.judging import judge_all
from tests.foreign.table import dump, read, versions
from tests.foreign.verdict import PASSED, REFUSED, WRONG, Verdict


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return collect()


def require(verdicts: Sequence[Verdict], undefined: Collection[str] = ()) -> None:
    """No case failed, and what the table says has passed still passes, where ONNX says what must come out.

    The other way round does not hold: what ONNX Runtime supports also depends on the machine (locales, kernels).
    """
    failed = [f"{each.name}: {each.what}" for each in verdicts if each.failed]
    assert not failed, "\n".join(failed)
    for_versions, told = read()
    if for_versions == versions():
        lost = [
            f"{each.name}: {each.what}"
            for each in verdicts
            if told[each.name] == PASSED != each.what and not (each.what == WRONG and each.name in undefined)
        ]
        assert not lost, "run `python -m tests.foreign` and look at the difference:\n" + "\n".join(lost)


def undefined_among(cases: Sequence[Case]) -> set[str]:
    return {case.name for case in cases if is_beyond(case)}


def test_a_tenth_of_the_cases(cases) -> None:
    require(judge_all(tenth(cases), most=4), undefined_among(cases))


def test_the_table_is_of_all_cases_and_adds_up(cases) -> None:
    for_versions, told = read()
    if for_versions != versions():
        pytest.skip(f"the table is for {for_versions}")
    assert list(told) == [case.name for case in cases]
    assert set(told.values()) == {PASSED, REFUSED, WRONG}


def test_only_casts_to_integers_that_do_not_hold_the_number_are_undefined(cases) -> None:
    small = {f"{given}_to_{to}" for given in ("FLOAT", "FLOAT16") for to in ("INT4", "UINT4", "INT2", "UINT2")}
    names = {f"test_{name}" for each in small for name in (f"cast_{each}", f"castlike_{each}")}
    assert undefined_among(cases) == names | {f"{name}_expanded" for name in names if "castlike" in name}


def test_what_passed_once_and_is_wrong_now_is_told_unless_it_is_undefined(cases) -> None:
    known = [Verdict("test_abs", WRONG), Verdict("test_cast_FLOAT_to_INT4", WRONG)]
    if read()[0] != versions():
        pytest.skip("the table is for other versions")
    with pytest.raises(AssertionError, match="test_abs") as told:
        require(known, undefined_among(cases))
    assert "INT4" not in str(told.value)
    with pytest.raises(AssertionError, match="INT4"):
        require([Verdict("test_cast_FLOAT_to_INT4", REFUSED)], undefined_among(cases))


@pytest.mark.system
def test_all_of_them(cases) -> None:
    require(judge_all(cases), undefined_among(cases))


@pytest.mark.system
def test_models_of_other_tools_and_of_old_operator_sets() -> None:
    verdicts = judge_all(stored())
    assert not [f"{each.name}: {each.what}" for each in verdicts if each.failed]
    assert {each.what for each in verdicts} >= {PASSED}
    assert len({each.name.partition("/")[0] for each in verdicts if each.what == PASSED}) == 3


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (np.float32([1, 2]), np.float32([1, 2.1])),
        (np.float32([1, 2]), np.float64([1, 2])),
        (np.float32([1]), np.float32([[1]])),
        (np.float32([np.nan]), np.float32([1])),
        ([np.float32([1])], [np.float32([1]), np.float32([1])]),
        ([np.float32([1])], [np.float32([2])]),
        (np.array(["a"], object), np.array(["b"], object)),
        (None, np.float32([1])),
        (np.float32([1]), None),
    ],
)
def test_what_is_not_the_same_is_told(found, wanted) -> None:
    assert different({"y": found}, {"y": wanted}, 1e-3, 1e-7)
    assert different({"z": wanted}, {"y": wanted}, 1e-3, 1e-7)
    assert not different({"y": wanted}, {"y": wanted}, 1e-3, 1e-7)


def test_a_table_has_no_place_for_a_failure() -> None:
    with pytest.raises(ValueError, match="test_add: broken"):
        dump([Verdict("test_abs", PASSED), Verdict("test_add", "broken")])
