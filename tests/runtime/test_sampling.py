"""From logits to tokens: how often each is drawn, in any company, and again when a step is replayed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ruvrun.engine.sampling import Sampler, pick, score, told
from ruvrun.engine.sampling.choice import keep
from ruvrun.engine.sampling.weights import ONE, choose, draw, philox, weigh
from ruvrun.errors import IntegrityError
from ruvrun.frames import Sampling
from tests import strategies
from tests.runtime.rows import rows, softmax, sorted_choice

GREEDY = Sampling(0.0, 1.0, 0)


def pick_all(logits: np.ndarray, samplings: list[Sampling], positions: list[int]) -> list[int]:
    """The tokens of rows that are the first of their sequences."""
    return pick(logits, [Sampler(sampling, logits.shape[1]) for sampling in samplings], positions)


def shaped(row: np.ndarray, sampling: Sampling, prompt: list[int], generated: list[int]) -> np.ndarray:
    """Bias and penalties as one would write them down, token by token."""
    found = [float(logit) for logit in row]
    for token, bias in sampling.logit_bias:
        found[token] = float(np.float32(found[token] + bias))
    for token in {*prompt, *generated}:
        logit, count = found[token], generated.count(token)
        again = sampling.repetition_penalty
        logit = logit / again if logit > 0 else logit * again
        found[token] = logit - sampling.frequency_penalty * count - sampling.presence_penalty * (count > 0)
    return np.array(found, np.float32)


# What chi-square exceeds once in 100,000, by degrees of freedom; the seeds fix the draws, so nothing fails by chance.
CHI_SQUARE = (0.0, 19.5, 23.0, 25.9, 28.5, 30.9, 33.1, 35.3)
DRAWN = [
    Sampling(1.0, 1.0, 0),
    Sampling(0.7, 0.9, 0),
    Sampling(2.0, 0.5, 0),
    Sampling(1.5, 1.0, 0, top_k=3),
    Sampling(1.0, 1.0, 0, min_p=0.2),
    Sampling(1.3, 0.8, 0, top_k=5, min_p=0.25),
    Sampling(1.0, 1.0, 0, logit_bias=((0, -100.0), (5, 6.5))),
]


@pytest.mark.parametrize("sampling", DRAWN)
def test_tokens_are_drawn_as_often_as_they_are_likely(sampling: Sampling) -> None:
    row = np.array([2.0, 0.5, -1.0, 2.0, 1.0, -6.0, 0.0, 1.5], np.float32)
    draws = 8_000
    wanted = shaped(row, sampling, [], [])
    kept = np.isin(
        np.arange(row.size), sorted_choice(weigh(wanted, wanted.max(), sampling.temperature).tolist(), sampling)
    )
    exact = np.where(kept, softmax(wanted, sampling.temperature), 0)
    exact /= exact.sum()
    logits = np.broadcast_to(row, (draws // 8, row.size))
    found = np.zeros(row.size)
    for seed in range(8):
        with_seed = Sampling(sampling.temperature, sampling.top_p, seed, *_rest(sampling))
        found += np.bincount(pick_all(logits, [with_seed] * len(logits), list(range(len(logits)))), minlength=row.size)
    assert (found[~kept] == 0).all()
    likely = exact * draws >= 5
    square = float(((found - draws * exact)[likely] ** 2 / (draws * exact[likely])).sum())
    assert square < CHI_SQUARE[int(likely.sum()) - 1]


def _rest(sampling: Sampling) -> list[object]:
    return [getattr(sampling, name) for name in Sampling.__struct_fields__[3:]]


def test_draws_of_neighbouring_seeds_and_positions_have_nothing_in_common() -> None:
    """Uniform in each direction: sixteen cells, chi-square with 15 degrees of freedom (44.3 is one in 10,000)."""
    for bits in (
        [draw(7, position) for position in range(4000)],
        [draw(seed, 7) for seed in range(4000)],
        [draw(at, at) ^ draw(at + 1, at) for at in range(4000)],
    ):
        cells = np.bincount([value >> 60 for value in bits], minlength=16)
        assert ((cells - 250) ** 2 / 250).sum() < 44.3


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0), 0, (0xCA00A0459843D731, 0x66C24222C9A845B5)),
        ((2**64 - 1, 2**64 - 1), 2**64 - 1, (0x65B021D60CD8310F, 0x4D02F3222F86DF20)),
        ((0x243F6A8885A308D3, 0x13198A2E03707344), 0xA4093822299F31D0, (0x0A5E742C2997341C, 0xB0F883D38000DE5D)),
    ],
)
def test_philox_gives_the_known_answers_of_its_authors(
    counter: tuple[int, int], key: int, words: tuple[int, int]
) -> None:
    assert philox(*counter, key) == words


def test_the_draw_is_philox_with_seed_and_position() -> None:
    assert draw(3, 5) == philox(5, 0, 3)[0]
    assert draw(-1, 5) == draw(2**64 - 1, 5)
    assert len({draw(seed, position) for seed in range(-20, 20) for position in range(40)}) == 1600


@given(st.lists(st.tuples(rows(), strategies.samplings(1), st.integers(0, 2**31)), min_size=1, max_size=6))
@settings(deadline=None, max_examples=40)
def test_a_token_does_not_depend_on_company(company: list[tuple[np.ndarray, Sampling, int]]) -> None:
    width = min(len(row) for row, _, _ in company)
    logits = np.array([row[:width] for row, _, _ in company])
    before = logits.copy()
    together = pick_all(logits, [sampling for _, sampling, _ in company], [position for _, _, position in company])
    backwards = pick_all(logits[::-1], [s for _, s, _ in company[::-1]], [position for _, _, position in company[::-1]])
    alone = [pick_all(row[None, :width].copy(), [sampling], [at])[0] for row, sampling, at in company]
    assert together == alone == backwards[::-1]
    assert (logits == before).all(), "the executor's logits stay as they are"


VOCAB = 12
_logits = st.lists(st.integers(-40, 40).map(lambda n: n / 8), min_size=VOCAB, max_size=VOCAB)


@given(
    strategies.samplings(VOCAB),
    st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=9),
    st.lists(_logits, min_size=1, max_size=80),
    st.data(),
)
@settings(deadline=None, max_examples=80)
def test_a_sequence_is_what_a_plain_loop_gives_and_a_replay_gives_it_again(
    sampling: Sampling, prompt: list[int], steps: list[list[float]], data: st.DataObject
) -> None:
    logits = np.array(steps, np.float32)
    wanted: list[int] = []
    for row in logits:
        bent = shaped(row, sampling, prompt, wanted)
        token = int(bent.argmax())
        if sampling.temperature:
            weights = weigh(bent, bent[token], sampling.temperature)
            ids = sorted_choice(weights.tolist(), sampling)
            token = ids[choose(weights[ids], draw(sampling.seed, len(prompt) + len(wanted)))]
        wanted.append(token)

    def answer(sampler: Sampler, at: int, end: int) -> list[int]:
        return [pick(logits[step : step + 1], [sampler], [len(prompt) + step])[0] for step in range(at, end)]

    sampler = Sampler(sampling, VOCAB, *told(sampling, prompt, []))
    assert answer(sampler, 0, len(steps)) == wanted
    back = data.draw(st.integers(0, len(steps)), "where the stage goes back to")
    assert answer(sampler, back, len(steps)) == wanted[back:]
    put_back = Sampler(sampling, VOCAB, *told(sampling, prompt, wanted[:back]))
    assert answer(put_back, back, len(steps)) == wanted[back:]


def test_penalties_and_bias_change_what_greedy_takes() -> None:
    row = np.array([[3.0, 2.9, 2.0, -1.0]], np.float32)
    cases = [
        (Sampling(0.0, 1.0, 0, logit_bias=((0, -100.0),)), [], [], 1),
        (Sampling(0.0, 1.0, 0, logit_bias=((3, 100.0),)), [], [], 3),
        (Sampling(0.0, 1.0, 0, repetition_penalty=1.1), [0], [], 1),
        (Sampling(0.0, 1.0, 0, repetition_penalty=1.1), [0, 0], [1, 1], 0),
        (Sampling(0.0, 1.0, 0, presence_penalty=0.2), [0, 0], [], 0),
        (Sampling(0.0, 1.0, 0, presence_penalty=0.2), [], [0], 1),
        (Sampling(0.0, 1.0, 0, presence_penalty=0.2), [], [0, 0, 0, 1], 0),
        (Sampling(0.0, 1.0, 0, frequency_penalty=0.2), [], [0, 1, 1], 0),
        (Sampling(0.0, 1.0, 0, frequency_penalty=0.2), [], [0, 0, 1], 1),
        (Sampling(0.0, 1.0, 0, frequency_penalty=-0.2), [], [2] * 6, 2),
    ]
    for sampling, prompt, generated, token in cases:
        assert pick(row, [Sampler(sampling, 4, *told(sampling, prompt, generated))], [9]) == [token]


def test_a_negative_logit_is_penalised_downwards() -> None:
    row = np.array([[-1.0, -1.05]], np.float32)
    sampling = Sampling(0.0, 1.0, 0, repetition_penalty=1.2)
    assert pick(row, [Sampler(sampling, 2, *told(sampling, [0], []))], [1]) == [1]


def test_only_what_a_penalty_needs_is_told() -> None:
    assert told(GREEDY, [1, 2], [3]) == (b"", ())
    assert told(Sampling(0.0, 1.0, 0, presence_penalty=1.0), [1, 2], [3, 3]) == (b"", ((3, 2),))
    assert told(Sampling(0.0, 1.0, 0, repetition_penalty=1.5), [8, 0, 8], []) == (b"\x80\x80", ())
    # However long a prompt is, it is a bit for each token of the vocabulary.
    assert len(told(Sampling(0.0, 1.0, 0, repetition_penalty=1.5), [262143] * 10**5, [])[0]) == 2**15


@pytest.mark.parametrize(
    ("sampling", "prompt", "generated"),
    [
        (Sampling(0.0, 1.0, 0, logit_bias=((4, 1.0),)), b"", ()),
        (Sampling(0.0, 1.0, 0, logit_bias=((1, math.nan),)), b"", ()),
        (Sampling(math.inf, 1.0, 0), b"", ()),
        (Sampling(1.0, 1.0, 0, frequency_penalty=math.nan), b"", ()),
        (Sampling(1.0, 1.0, 0, repetition_penalty=0.0), b"", ()),
        (Sampling(1.0, 1.0, 0, repetition_penalty=2.0), b"\x08", ()),
        (Sampling(1.0, 1.0, 0, repetition_penalty=2.0), b"", ((4, 1),)),
    ],
)
def test_what_no_request_can_ask_for_is_a_fault(
    sampling: Sampling, prompt: bytes, generated: tuple[tuple[int, int], ...]
) -> None:
    with pytest.raises(IntegrityError):
        Sampler(sampling, 4, prompt, generated)


def test_every_unit_of_weight_belongs_to_one_token() -> None:
    quarter = 2**62
    points = (0, quarter - 1, quarter, 3 * quarter - 1, 3 * quarter, 2**64 - 1)
    assert [choose(np.array([1, 2, 1], np.int32), bits) for bits in points] == [0, 0, 1, 1, 2, 2]


@given(rows(), st.floats(0.05, 4.0), st.integers(0, 2**64 - 1))
@settings(deadline=None, max_examples=60)
def test_a_draw_from_many_is_that_of_one_cumulative_sum(row: np.ndarray, temperature: float, bits: int) -> None:
    weights = weigh(row, row.max(), temperature)
    upto = weights.cumsum(dtype=np.int64)
    for point in (bits, 0, 2**64 - 1):
        at = choose(weights, point)
        assert weights[at] > 0
        assert upto[at] - weights[at] <= int(upto[-1]) * point // 2**64 < upto[at]


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = np.array([[1, 7, 7, 0], [-np.inf, -3, -3, -np.inf], [0, 0, 0, 0]], np.float32)
    assert pick_all(logits, [GREEDY] * 3, [0] * 3) == [1, 1, 0]
    assert pick_all(logits[:0], [], []) == []


@given(rows(), strategies.SEEDS, st.integers(0, 10**6))
@settings(deadline=None, max_examples=60)
def test_the_ends_of_all_ranges_are_greedy(row: np.ndarray, seed: int, position: int) -> None:
    for sampling in (Sampling(0.0, 0.3, seed), Sampling(1e-9, 1.0, seed)):
        assert pick_all(row[None], [sampling], [position]) == [int(row.argmax())]
    # Logits that differ in their last digits only may weigh the same; then the lower id counts as the better one.
    best = int(weigh(row, row.max(), 1.5).argmax())
    assert pick_all(row[None], [Sampling(1.5, 0.0, seed)], [position]) == [best]
    assert pick_all(row[None], [Sampling(1.5, 1.0, seed, top_k=1)], [position]) == [best]
    ids, weights = keep(weigh(row, row.max(), 1.5), Sampling(1.5, 1.0, seed, min_p=1.0))
    assert ids is not None
    assert ids[0] == best
    assert (weights == ONE).all()


def test_what_is_impossible_is_never_drawn() -> None:
    row = np.full((1, 5000), -np.inf, np.float32)
    row[0, [7, 4000]] = 3.0
    drawn = {pick_all(row, [Sampling(1.0, 1.0, 3)], [position])[0] for position in range(50)}
    assert drawn == {7, 4000}
    extreme = np.array([[3e38, -3e38, 3e38]], np.float32)
    assert {pick_all(extreme, [Sampling(0.5, 1.0, 3)], [position])[0] for position in range(50)} == {0, 2}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0, 0.9, 1), Sampling(0.0, 1.0, 0, presence_penalty=1.0)])
def test_logits_that_are_not_numbers_are_an_error(bad: float, sampling: Sampling) -> None:
    logits = np.zeros((2, 9), np.float32)
    logits[1, 4] = bad
    with pytest.raises(IntegrityError):
        pick_all(logits, [sampling] * 2, [0, 0])
    with pytest.raises(IntegrityError):
        pick_all(np.full((1, 9), -np.inf, np.float32), [sampling], [0])


@given(rows(), st.integers(0, 20), st.data())
@settings(deadline=None, max_examples=80)
def test_log_probabilities_are_log_softmax_of_the_raw_logits(row: np.ndarray, top: int, data: st.DataObject) -> None:
    token = data.draw(st.integers(0, row.size - 1))
    wide = row.astype(np.float64) - row.max()
    exact = wide - math.log(np.exp(wide).sum())
    found = score(row, token, top)
    assert found.picked == pytest.approx(exact[token], abs=2e-6, rel=2e-6)
    assert [one for one, _ in found.top] == np.argsort(-row, kind="stable")[:top].tolist()
    for one, probability in found.top:
        assert probability == pytest.approx(exact[one], abs=2e-6, rel=2e-6)
