"""The tokenizer out of a GGUF file gives the tokens that the model was trained on, and gives the text back."""

from __future__ import annotations

import json
from typing import Any

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from ruvcompile.load.gguf import load_gguf
from ruvcompile.load.gguf_file import GgufFile, open_gguf
from ruvcompile.load.gguf_tokenizer import read_tokenizer
from ruvcompile.load.head import HeadFiles
from ruvrun.errors import InputError
from tests.models import smollm2_path, write_tiny_gguf

# Text to the ids that llama.cpp gives with the vocabulary of SmolLM2, by the name of the splitting rule.
EXPECTED = {
    "smollm": {
        "The capital of France is": [504, 3575, 282, 4649, 314],
        " leading and  double   spaces \n\n new\r\nlines\t\ttabs   ":
            [2899, 284, 216, 5561, 256, 5600, 38028, 725, 201, 198, 5110, 197, 197, 100, 7366, 333],
        "a 123 4567 3.14159 and 1,000":
            [81, 216, 33, 34, 35, 216, 36, 37, 38, 39, 216, 35, 30, 33, 36, 33, 37, 41, 284, 216, 33, 28, 32, 32, 32],
        "I'll don't WE'LL they'Ve it's": [57, 3060, 1326, 982, 26587, 23, 16421, 502, 23, 25917, 357, 506],
        "emoji 😀👩\u200d👩\u200d👧 ok":
            [391, 33777, 40303, 218, 10813, 235, 119, 321, 231, 10813, 235, 119, 321, 231, 10813, 235, 117, 10907],
        "naïve café résumé e\u0301": [3546, 46494, 37366, 412, 2756, 5422, 2756, 297, 151, 219],
        "def f(x):\n    return x**2 + y[0]  # comment\n\n\n\n":
            [1604, 275, 24, 104, 727, 472, 1003, 1792, 828, 34, 1232, 329, 75, 32, 77, 216, 907, 5189, 22342],
        "<|im_start|>user\nHi<|im_end|>\n": [1, 4093, 198, 26843, 2, 198],
    },
    "qwen2": {
        "def f(x):\n    return x**2 + y[0]  # comment\n\n\n\n":
            [1604, 275, 24, 104, 727, 198, 333, 1003, 1792, 828, 34, 1232, 329, 75, 32, 77, 216, 907, 5189, 22342],
    },
    "llama-bpe": {
        "def f(x):\n    return x**2 + y[0]  # comment\n\n\n\n":
            [1604, 275, 24, 104, 727, 198, 333, 1003, 1792, 828, 34, 1232, 329, 75, 32, 77, 216, 907, 5189, 22342],
    },
    "gpt-2": {
        "!!! ??? ... $5.00 a+b=c <tag> ^_^ ~~ |x|":
            [29646, 9148, 16693, 4563, 1885, 37, 30, 32, 32, 253, 27, 82, 45, 83, 2067, 9204, 46, 13481, 79, 78, 216,
             9493, 2504, 104, 108],
    },
    "default": {
        "!!! ??? ... $5.00 a+b=c <tag> ^_^ ~~ |x|":
            [29646, 216, 16693, 47, 216, 2026, 216, 20, 37, 30, 32, 32, 253, 27, 82, 45, 83, 216, 44, 9204, 46, 216, 78,
             79, 78, 216, 9493, 216, 108, 104, 108],
        "I'll don't WE'LL they'Ve it's": [57, 23, 764, 1326, 23, 100, 26587, 23, 16421, 502, 23, 25917, 357, 23, 99],
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def real() -> GgufFile:
    return open_gguf(smollm2_path(), "smollm2")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> GgufFile:
    return open_gguf(write_tiny_gguf(tmp_path_factory.mktemp("tokenizer") / "tiny.gguf", layers=1), "tiny.gguf")


def head(file: GgufFile, **changes: Any) -> HeadFiles:
    """The head's files for ``file`` with ``tokenizer.*`` keys changed (``__`` for a dot), or left out where None."""
    metadata = {**file.metadata, **{"tokenizer." + key.replace("__", "."): value for key, value in changes.items()}}
    changed = GgufFile(file.path, file.named_as, {k: v for k, v in metadata.items() if v is not None}, file.tensors)
    return read_tokenizer(changed, len(file.metadata["tokenizer.ggml.tokens"]))


def made(file: GgufFile, **changes: Any) -> Tokenizer:
    return Tokenizer.from_str(head(file, **changes).files["tokenizer.json"].decode())


def chat(file: GgufFile, **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(head(file, **changes).files["chat.json"])
    return found


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    return [text[start:end] for _, (start, end) in tokenizer.pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.model
@pytest.mark.parametrize("rule", EXPECTED)
def test_ids_are_those_of_llama_cpp(rule: str, real: GgufFile) -> None:
    tokenizer = made(real, ggml__pre=rule)
    for text, ids in EXPECTED[rule].items():
        assert tokenizer.encode(text).ids == ids, text
        assert tokenizer.decode(ids, skip_special_tokens=False) == text or rule == "qwen2"


@pytest.mark.model
def test_every_single_token_of_the_real_vocabulary_decodes_and_text_comes_back(real: GgufFile) -> None:
    tokenizer = made(real)
    assert tokenizer.decode([7042]) == " Paris"
    tokens = real.metadata["tokenizer.ggml.tokens"]
    assert tokenizer.get_vocab_size() == len(tokens)
    assert all(tokenizer.token_to_id(token) == number for number, token in enumerate(tokens))
    assert all(tokenizer.decode([number], skip_special_tokens=False) for number in range(len(tokens)))
    assert tokenizer.encode("").ids == []


@settings(max_examples=80, deadline=None)
@given(text=st.text(max_size=60))
def test_text_round_trips_whatever_it_is(tiny: GgufFile, text: str) -> None:
    tokenizer = made(tiny)
    ids = tokenizer.encode(text).ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert all(0 <= number < 300 for number in ids)


def test_special_tokens_are_one_token_and_leave_no_text(tiny: GgufFile) -> None:
    tokenizer = made(tiny)
    ids = tokenizer.encode("<|im_start|>the<|im_end|>").ids
    assert (ids[0], ids[-1]) == (1, 2)
    assert tokenizer.decode(ids) == "the"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_start|>the<|im_end|>"


def test_user_defined_tokens_are_one_token_and_text(tiny: GgufFile) -> None:
    tokens = [*tiny.metadata["tokenizer.ggml.tokens"]]
    types = [*tiny.metadata["tokenizer.ggml.token_type"]]
    merges = tiny.metadata["tokenizer.ggml.merges"][:-1]
    tokens[-1], types[-1] = "<tool call>", 4
    tokenizer = made(tiny, ggml__tokens=tokens, ggml__token_type=types, ggml__merges=merges)
    ids = tokenizer.encode("a<tool call>b").ids
    assert len(ids) == 3
    assert ids[1] == 299
    assert tokenizer.decode(ids) == "a<tool call>b"


@pytest.mark.parametrize(
    ("rule", "split"),
    [
        ("smollm", ["it", "'s", " ", "1", "2", "3", "4", " DON", "'", "T", "\n", "\n", "x"]),
        ("gpt-2", ["it", "'s", " 1234", " DON", "'", "T", "\n", "\n", "x"]),
        ("qwen2", ["it", "'s", " ", "1", "2", "3", "4", " DON", "'T", "\n\n", "x"]),
        ("llama-bpe", ["it", "'s", " ", "123", "4", " DON", "'T", "\n\n", "x"]),
        ("gpt-4o", ["it's", " ", "123", "4", " DON'T", "\n\n", "x"]),
        ("tekken", ["it", "'s", " ", "1", "2", "3", "4", " DON", "'T", "\n\n", "x"]),
        ("default", ["it", "'", "s", " ", "123", "4", " DON", "'", "T", "\n", "\n", "x"]),
        ("llama3", ["it", "'s", " ", "123", "4", " DON", "'T", "\n\n", "x"]),
        ("deepseek-r1-qwen", ["it", "'s", " ", "1", "2", "3", "4", " DON", "'T", "\n\n", "x"]),
    ],
)
def test_each_rule_splits_as_its_models_were_trained(rule: str, split: list[str], tiny: GgufFile) -> None:
    assert pieces(made(tiny, ggml__pre=rule), "it's 1234 DON'T\n\nx") == split


@pytest.mark.parametrize("rule", ["gpt-4o", "tekken"])
def test_words_begin_anew_at_a_capital(rule: str, tiny: GgufFile) -> None:
    assert pieces(made(tiny, ggml__pre=rule), "camelCase HTTPServer ÉcoleÉtéx./path") == [
        "camel", "Case", " HTTPServer", " École", "Étéx", "./", "path",
    ]  # fmt: skip
    assert pieces(made(tiny, ggml__pre="llama-bpe"), "camelCase") == ["camelCase"]


def test_llama_takes_a_word_that_is_a_token_before_any_merge(tiny: GgufFile) -> None:
    tokens = [*tiny.metadata["tokenizer.ggml.tokens"][:-1], "xyz"]
    merges = tiny.metadata["tokenizer.ggml.merges"][:-1]
    assert made(tiny, ggml__tokens=tokens, ggml__merges=merges, ggml__pre="llama-bpe").encode("xyz").ids == [299]
    assert len(made(tiny, ggml__tokens=tokens, ggml__merges=merges, ggml__pre="gpt-2").encode("xyz").ids) == 3


def test_the_tokens_that_end_an_answer(tiny: GgufFile) -> None:
    assert head(tiny).eos == (0, 2)
    assert head(tiny, ggml__eot_token_id=7).eos == (0, 2, 7)
    assert head(tiny, ggml__eos_token_id=None).eos == (0, 2)
    assert head(tiny, ggml__token_type=[1] * 300).eos == (2,)


@pytest.mark.model
def test_the_chat_template_of_the_real_model_is_used(real: GgufFile) -> None:
    about = chat(real)
    assert (about["bos_token"], about["eos_token"], about["add_bos"]) == ("<|im_start|>", "<|im_end|>", False)
    message = {"role": "user", "content": "Hello"}
    text = jinja2.Template(about["template"]).render(messages=[message], add_generation_prompt=True)
    assert "named SmolLM" in text
    assert text.endswith("<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n")


def test_without_a_template_chatml_where_its_tokens_are_else_a_plain_one(tiny: GgufFile) -> None:
    def render(**changes: Any) -> str:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
        template = jinja2.Template(chat(tiny, chat_template=None, **changes)["template"])
        return str(template.render(messages=messages, add_generation_prompt=True))

    turn = "<|im_start|>{}\n{}<|im_end|>\n"
    assert render() == turn.format("system", "Be brief.") + turn.format("user", "Hi") + "<|im_start|>assistant\n"
    plain = ["<|endoftext|>", "<s1>", "<s2>", *tiny.metadata["tokenizer.ggml.tokens"][3:]]
    assert render(ggml__tokens=plain) == "system: Be brief.\nuser: Hi\nassistant:"


def test_a_start_token_is_put_before_where_the_file_or_the_family_says_so(tiny: GgufFile) -> None:
    assert chat(tiny, ggml__add_bos_token=True)["add_bos"] is True
    assert chat(tiny, ggml__add_bos_token=None)["add_bos"] is False
    assert chat(tiny, ggml__add_bos_token=None, ggml__pre="llama-bpe")["add_bos"] is True


def test_the_same_file_gives_the_same_bytes(tiny: GgufFile) -> None:
    assert head(tiny).files == head(tiny).files == dict(load_gguf(tiny.path, "tiny.gguf").head_files)


@pytest.mark.parametrize(
    ("changes", "ref", "says"),
    [
        ({"ggml__model": "bert"}, "tokenizer-unsupported", "'bert'"),
        ({"ggml__model": "llama"}, "tokenizer-wrong", "score"),
        ({"ggml__pre": "smolm"}, "tokenizer-unsupported", "'smolm'"),
        ({"ggml__pre": 7}, "tokenizer-unsupported", "7"),
        ({"ggml__pre": ["smollm"]}, "tokenizer-unsupported", "['smollm']"),
        ({"ggml__tokens": ["a", "b"]}, "tokenizer-wrong", "2 tokens"),
        ({"ggml__tokens": [1] * 300}, "gguf-key-missing", "tokenizer.ggml.tokens"),
        ({"ggml__tokens": ["a"] * 300}, "tokenizer-wrong", "twice"),
        ({"ggml__token_type": [1, 1]}, "tokenizer-wrong", "token types"),
        ({"ggml__merges": ["x y"]}, "tokenizer-wrong", "'x y'"),
        ({"ggml__merges": ["xyz"]}, "tokenizer-wrong", "'xyz'"),
        ({"ggml__bos_token_id": 300}, "tokenizer-wrong", "bos"),
        ({"ggml__eos_token_id": [2]}, "tokenizer-wrong", "eos"),
    ],
)
def test_a_tokenizer_that_is_not_understood_is_refused(
    changes: dict[str, Any], ref: str, says: str, tiny: GgufFile
) -> None:
    with pytest.raises(InputError) as caught:
        head(tiny, **changes)
    assert caught.value.ref == ref
    assert says in caught.value.message
    assert caught.value.hint


def test_a_misspelt_rule_gets_the_nearest_known_one(tiny: GgufFile) -> None:
    with pytest.raises(InputError) as caught:
        head(tiny, ggml__pre="smolm")
    assert caught.value.hint == "did you mean 'smollm'?"
