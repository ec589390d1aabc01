"""A stage that is run as it was exported keeps its state: by slot, rewound by a smaller position, in any company."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ruvrun.executors import Array, Span, load_decoder
from tests.compiler.exports import EXPORTS, PROMPTS, program_of, stages


@pytest.fixture
def stateful(tmp_path: Path) -> Any:
    program = program_of(EXPORTS / "optimum-gpt_neox" / "model.onnx")
    assert program.decoder is not None and program.decoder.exported
    ((directory, spec),) = stages(program, (), tmp_path)
    assert [pair.past for pair in spec.state] == ["past_key.0", "past_value.0", "past_key.1", "past_value.1"]
    return lambda: load_decoder(directory, spec, context=64, slots=3, threads=1)


def logits(executor: Any, slot: int, position: int, tokens: list[int]) -> Array:
    span = Span(slot, position, len(tokens), len(tokens))
    found: Array = executor.step([span], {"input_ids": np.array(tokens, np.int64)})["logits"]
    return found


def test_state_that_is_kept_in_a_stage_is_rewound_by_a_smaller_position(stateful: Any) -> None:
    executor, fresh = stateful(), stateful()
    first, other = PROMPTS[2], [9, 8, 7]
    logits(executor, 1, 0, first)
    logits(executor, 1, len(first), [50, 51])
    rewound = logits(executor, 1, 6, other)
    logits(fresh, 0, 0, first[:6])
    np.testing.assert_array_equal(rewound, logits(fresh, 0, 6, other))
    # And to the start: the slot goes to another sequence.
    np.testing.assert_array_equal(logits(executor, 1, 0, first), logits(stateful(), 2, 0, first))


def test_company_does_not_change_what_a_stateful_stage_computes(stateful: Any) -> None:
    executor, alone = stateful(), stateful()
    for slot, prompt in enumerate(PROMPTS[1:]):
        logits(executor, slot, 0, prompt[:10])
    lengths = [len(prompt[:10]) for prompt in PROMPTS[1:]]
    spans = [Span(slot, length, 1, 1) for slot, length in enumerate(lengths)]
    together = executor.step(spans, {"input_ids": np.array([11, 12, 13], np.int64)})["logits"]
    for slot, (prompt, token) in enumerate(zip(PROMPTS[1:], (11, 12, 13), strict=True)):
        logits(alone, 0, 0, prompt[:10])
        np.testing.assert_array_equal(together[slot : slot + 1], logits(alone, 0, lengths[slot], [token]))
