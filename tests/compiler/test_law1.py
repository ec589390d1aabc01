"""Law 1: greedy answers are the uncut model's, token by token, for every legal cut, alone and in company.

The pipelines are ``LocalPipeline``s: the real engine, workers and executors, without links.
"""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path

import jinja2
import msgspec
import numpy as np
import pytest
from tokenizers import Tokenizer

from ruvcompile import passes
from ruvcompile.load import load
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.cuts import boundaries
from ruvcompile.passes.pieces import program_units
from ruvcompile.passes.quantise import quantise
from ruvcompile.program import Program
from ruvcompile.verify import sample_tokens
from ruvrun.pipeline import Request, Sampling
from tests.decoders import ask, family_program, open_pipeline, tiny_program, write_stages
from tests.models import smollm2_path

LAYERS = 3
UNITS = 2 * LAYERS + 2
ANSWER = 64
CONTEXT = 112
CUTS = [*combinations(range(1, UNITS), 1), *combinations(range(1, UNITS), 2)]

Answers = dict[int, list[int]]


class Model:
    """A quantised program whose stages share one store, and the answers of its uncut form, each request alone."""

    def __init__(self, program: Program, folder: Path, prompts: list[list[int]]) -> None:
        self.program, self.folder, self.store = program, folder, WeightStore(folder / "store")
        self.requests = [ask(number, prompt, ANSWER) for number, prompt in enumerate(prompts)]
        whole = open_pipeline(write_stages(program, (), folder / "whole", self.store), context=CONTEXT, streams=1)
        self.whole = whole
        self.uncut: Answers = {request.id: whole.generate([request])[request.id] for request in self.requests}

    def answers(self, cuts: tuple[int, ...], requests: list[Request], *, streams: int = 4, chunk: int = 256) -> Answers:
        folder = self.folder / "-".join(map(str, cuts))
        stages = write_stages(self.program, cuts, folder, self.store)
        assert len(stages) == len(cuts) + 1
        return open_pipeline(stages, context=CONTEXT, streams=streams, chunk=chunk).generate(requests)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Model:
    folder = tmp_path_factory.mktemp("law1")
    random = np.random.default_rng(3)
    prompts = [random.integers(3, 300, length).tolist() for length in (11, 1, 40, 2)]
    return Model(tiny_program(folder, layers=LAYERS), folder, prompts)


def test_the_answers_are_worth_comparing(tiny) -> None:
    assert all(len(answer) == ANSWER for answer in tiny.uncut.values())
    assert len({tuple(answer) for answer in tiny.uncut.values()}) == len(tiny.uncut)
    assert all(len(set(answer)) > 10 for answer in tiny.uncut.values())


def test_every_border_between_parts_of_layers_is_a_legal_cut(tiny) -> None:
    units = program_units(tiny.program)
    assert len(units) == UNITS
    assert [number for number, edge in enumerate(boundaries(units), 1) if edge.legal] == list(range(1, UNITS))


@pytest.mark.parametrize("cuts", CUTS, ids=lambda cuts: "-".join(map(str, cuts)))
def test_every_cut_gives_the_tokens_of_the_uncut_model(tiny, cuts) -> None:
    """Alone, then in the company of three others whose prompts are of other lengths and come in small chunks."""
    for request in tiny.requests[:2]:
        assert tiny.answers(cuts, [request], streams=1)[request.id] == tiny.uncut[request.id]
    assert tiny.answers(cuts, tiny.requests, chunk=8) == tiny.uncut


FORMS: dict[str, dict[str, object]] = {
    **{name: {} for name in ("gemma2", "mistral", "qwen2", "qwen3")},
    "gemma3": {"num_hidden_layers": LAYERS, "sliding_window_pattern": 2},
    "smollm3": {"num_hidden_layers": LAYERS, "no_rope_layer_interval": 2},
}
"""Windows shorter than prompts, norms behind the parts and by head, caps, biases, layers that rotate by another table
or not at all: what a plain llama has not.
"""


@pytest.fixture(scope="module", params=FORMS)
def form(request: pytest.FixtureRequest, tmp_path_factory) -> Model:
    folder, random = tmp_path_factory.mktemp(request.param), np.random.default_rng(3)
    prompts = [random.integers(3, 300, length).tolist() for length in (19, 1, 40, 2)]
    return Model(family_program(request.param, "int4", **FORMS[request.param]), folder, prompts)


@pytest.mark.parametrize("cuts", [*combinations(range(1, UNITS), 1), (2, 5), (1, 4, 6)], ids=str)
def test_every_cut_of_other_forms_gives_the_tokens_of_the_uncut_model(form, cuts) -> None:
    assert len({tuple(answer) for answer in form.uncut.values()}) == len(form.uncut)
    assert all(len(set(answer)) > 8 for answer in form.uncut.values())
    assert form.answers(cuts, form.requests, chunk=8) == form.uncut


SAMPLED = [
    Sampling(0.9, 0.9, 7, 40, 0.02, 1.15, 0.3, 0.4, ((11, -100.0), (28, 2.0)), 5),
    Sampling(0.0, 1.0, 0, frequency_penalty=1.0, presence_penalty=0.5),
    Sampling(1.3, 1.0, 5),
    Sampling(1.0, 0.95, 2**60, repetition_penalty=1.3),
]


@pytest.mark.parametrize("cuts", [(3,), (2, 5)], ids=str)
def test_what_is_drawn_depends_on_neither_cut_nor_company(tiny, cuts) -> None:
    requests = [
        msgspec.structs.replace(one, sampling=sampling) for one, sampling in zip(tiny.requests, SAMPLED, strict=True)
    ]
    alone = {one.id: tiny.whole.generate([one])[one.id] for one in requests}
    assert all(alone[number] != tiny.uncut[number] for number in alone)
    assert tiny.answers(cuts, requests, chunk=8) == alone
    assert tiny.answers(cuts, requests[::-1], streams=3) == alone


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_waiting_for_a_slot_changes_no_token(tiny, streams) -> None:
    assert tiny.answers((3, 5), tiny.requests, streams=streams, chunk=5) == tiny.uncut


def test_an_answer_ends_where_the_context_does(tiny) -> None:
    prompt = list(tiny.requests[0].prompt)
    long = ask(0, prompt, 1000)
    (alone,) = tiny.whole.generate([long]).values()
    assert tiny.answers((4,), [long])[0] == alone
    assert len(prompt) + len(alone) == CONTEXT


def test_an_answer_ends_with_its_eos_token(tiny) -> None:
    eos = tiny.uncut[0][9]
    stop = tiny.uncut[0].index(eos)
    found = tiny.answers((2,), [ask(0, tiny.requests[0].prompt, ANSWER, [eos]), *tiny.requests[1:]])
    assert found == {**tiny.uncut, 0: tiny.uncut[0][: stop + 1]}


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory) -> Model:
    program = quantise(passes.run(load(str(smollm2_path()))), "auto")
    text = sample_tokens(program).tolist()
    prompts = [text[:24], text[24:31], text[40:41], text[60:93]]
    return Model(program, tmp_path_factory.mktemp("smollm2"), prompts)


@pytest.mark.model
@pytest.mark.parametrize("cuts", [(36,), (21, 42)], ids=["two stages", "three stages"])
def test_smollm2_gives_the_tokens_of_the_uncut_model(smollm2, cuts) -> None:
    first = smollm2.requests[0]
    assert len(smollm2.uncut[0]) == ANSWER
    assert smollm2.answers(cuts, [first])[0] == smollm2.uncut[0]
    assert smollm2.answers(cuts, smollm2.requests) == smollm2.uncut


@pytest.mark.model
def test_the_capital_of_france(smollm2) -> None:
    files = smollm2.program.head_files
    chat = json.loads(files["chat.json"])
    tokenizer = Tokenizer.from_str(files["tokenizer.json"].decode())
    text = (
        jinja2.Environment()
        .from_string(chat["template"])
        .render(
            messages=[{"role": "user", "content": "What is the capital of France?"}],
            add_generation_prompt=True,
            bos_token=chat["bos_token"],
            eos_token=chat["eos_token"],
        )
    )
    prompt = tokenizer.encode(text, add_special_tokens=False).ids
    assert smollm2.program.decoder is not None
    request = ask(0, prompt, 32, smollm2.program.decoder.eos)
    (answer,) = smollm2.answers((36,), [request]).values()
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1] in smollm2.program.decoder.eos
