"""Sampling through engine and workers: what the last stage is told, and log-probabilities on their way back."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ruvrun import frames
from ruvrun.engine import Engine, Request, Token
from ruvrun.engine.sampling import score, told
from ruvrun.errors import IntegrityError
from tests import strategies
from tests.runtime.fakes import LAYERS, VOCAB, fake_workers, logits_of, mix, plain_tokens

CONTEXT = 24
Scored = tuple[tuple[int, tuple[frames.Scores, ...]], ...]


@dataclass
class Pipeline:
    """Engine and workers, one message at a time; what comes out is kept whole."""

    stages: int
    streams: int
    sent: list[frames.Message] = field(default_factory=list)
    results: list[frames.Sampled] = field(default_factory=list)

    def run(self, requests: list[Request]) -> dict[int, list[Token]]:
        engine = Engine(stages=self.stages, context=CONTEXT, streams=self.streams, chunk=4)
        workers = fake_workers(self.stages, slots=self.streams, context=CONTEXT)
        answers: dict[int, list[Token]] = {request.id: [] for request in requests}
        for request in requests:
            engine.add(request)
        while not engine.idle:
            came: list[frames.Sampled] = []
            while (result := engine.step()) is not None:
                self.sent.append(result[0])
                for worker in workers:
                    if result is not None:
                        result = worker.handle(*result)  # type: ignore[assignment] # what one gives, the next one takes
                if result is not None:
                    assert isinstance(result[0], frames.Sampled)
                    came.append(result[0])
            for message in came:
                self.results.append(message)
                for token in engine.receive(message):
                    answers[token.id].append(token)
        return answers


@given(st.data())
@settings(deadline=None, max_examples=40)
def test_answers_and_scores_depend_on_neither_company_nor_stages(data: st.DataObject) -> None:
    many = data.draw(st.integers(1, 5))
    requests = [data.draw(strategies.requests(number, context=CONTEXT, vocab=VOCAB)) for number in range(many)]
    alone = {request.id: Pipeline(1, 1).run([request])[request.id] for request in requests}
    for stages in range(1, LAYERS + 1):
        order = data.draw(st.permutations(requests))
        assert Pipeline(stages, data.draw(st.integers(1, 5))).run(order) == alone
    for request in requests:
        assert [token.token for token in alone[request.id]] == plain_tokens(request, CONTEXT)
        for token in alone[request.id]:
            asked = request.sampling.logprobs
            assert (token.scores is not None) == (asked >= 0)
            assert token.scores is None or len(token.scores.top) == asked


def test_scores_are_of_the_raw_logits_whatever_is_done_to_them() -> None:
    bent = frames.Sampling(0.3, 0.5, 1, top_k=2, presence_penalty=2.0, logit_bias=((9, 100.0),), logprobs=3)
    (token, *_) = Pipeline(2, 1).run([Request(0, (5,), 2, bent, frozenset())])[0]
    state = 5
    for layer in range(LAYERS):
        state = mix(layer, 0, state, 1)
    assert token.token == 9
    assert token.scores == score(logits_of(state, 5), 9, 3)


def test_the_last_stage_is_told_the_prompt_where_a_penalty_needs_it() -> None:
    plain, penalised = (Pipeline(2, 1) for _ in range(2))
    plain.run([Request(0, (5, 9, 5), 2, frames.Sampling(0.0, 1.0, 0), frozenset())])
    assert plain.sent[0] == frames.Open(1, 0, 0, frames.Sampling(0.0, 1.0, 0))
    again = frames.Sampling(0.0, 1.0, 0, repetition_penalty=1.5)
    penalised.run([Request(0, (5, 9, 5), 2, again, frozenset())])
    assert penalised.sent[0] == frames.Open(1, 0, 0, again, *told(again, (5, 9), ()))


ONE = frames.Scores(-1.0)


@pytest.mark.parametrize(
    ("asked", "right", "wrong"),
    [
        (-1, (), ((7, (ONE,)),)),
        (0, ((7, (ONE,)),), ()),
        (0, ((7, (ONE,)),), ((8, (ONE,)),)),
        (0, ((7, (ONE,)),), ((7, (ONE, ONE)),)),
    ],
)
def test_a_result_with_other_scores_than_were_asked_for_is_a_fault(asked: int, right: Scored, wrong: Scored) -> None:
    engine = Engine(stages=1, context=CONTEXT, streams=1)
    engine.add(Request(7, (1,), 2, frames.Sampling(0.0, 1.0, 0, logprobs=asked), frozenset()))
    while engine.step() is not None:
        pass
    with pytest.raises(IntegrityError, match="does not fit"):
        engine.receive(frames.Sampled(1, 1, ((7, (3,)),), wrong))
    (token,) = engine.receive(frames.Sampled(1, 1, ((7, (3,)),), right))
    assert token == Token(7, 3, None, ONE if right else None)


def test_a_sequence_that_names_what_is_no_token_is_refused_by_the_last_stage_alone() -> None:
    first, last = fake_workers(2, slots=1, context=CONTEXT)
    wrong = frames.Open(1, 0, 0, frames.Sampling(0.0, 1.0, 0, logit_bias=((VOCAB, 1.0),)))
    assert first.handle(wrong, {}) == (wrong, {})
    with pytest.raises(IntegrityError):
        last.handle(wrong, {})


def test_a_step_that_comes_again_at_an_earlier_position_picks_the_same() -> None:
    (worker,) = fake_workers(1, slots=1, context=CONTEXT)
    sampling = frames.Sampling(1.0, 1.0, 3, repetition_penalty=1.9, frequency_penalty=1.5)
    worker.handle(frames.Open(1, 0, 0, sampling, *told(sampling, (4, 5), ())), {})

    def step(number: int, *tokens: int) -> int:
        seq = frames.SeqStep(0, 0, 0, len(tokens), 1)
        result = worker.handle(frames.Step(1, number, (seq,)), {"input_ids": np.array(tokens, np.int64)})
        assert result is not None
        assert isinstance(result[0], frames.Sampled)
        return result[0].tokens[0][1][0]

    assert len({step(number, 4, 5) for number in range(1, 9)}) == 1


def test_an_older_peer_says_less() -> None:
    """What it leaves out is off."""
    body = msgspec.msgpack.encode((("open", 1, 0, 7, (0.5, 0.9, 3)), ()))
    assert frames.decode([body])[0] == frames.Open(1, 0, 7, frames.Sampling(0.5, 0.9, 3))
    body = msgspec.msgpack.encode((("sampled", 1, 4, ((7, (9,)),)), ()))
    assert frames.decode([body])[0] == frames.Sampled(1, 4, ((7, (9,)),))
