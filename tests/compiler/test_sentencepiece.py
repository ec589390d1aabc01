"""SentencePiece tokenizers, out of their own file and out of a GGUF's lists, give the tokens of the original."""

from __future__ import annotations

import contextlib
import io
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from ruvcompile.load import load
from ruvcompile.load.gguf_file import GgufFile
from ruvcompile.load.gguf_tokenizer import read_tokenizer
from ruvcompile.load.sentencepiece import tokenizer_of
from ruvcompile.load.sentencepiece_model import read_pieces
from ruvrun.errors import InputError
from tests.checkpoints import CONFIGS, random_tensors, write_directory

LLAMA: dict[str, Any] = {
    "model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
    "remove_extra_whitespaces": False, "split_digits": True, "allow_whitespace_only_pieces": True,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "gemma": {**LLAMA, "add_dummy_prefix": False, "user_defined_symbols": ["▁▁", "▁▁▁▁", "\n\n", "<mask>"]},
    "bpe-nfkc": {"model_type": "bpe", "byte_fallback": True},
    "bpe-unknown": {"model_type": "bpe", "vocab_size": 450},
    "bpe-symbols": {"model_type": "bpe", "byte_fallback": True, "user_defined_symbols": ["<mask>", "ing"]},
    "unigram": {**LLAMA, "model_type": "unigram", "hard_vocab_limit": False},
    "unigram-nfkc": {"model_type": "unigram", "hard_vocab_limit": False, "user_defined_symbols": ["<mask>"]},
}

TEXT = st.text(
    st.one_of(
        st.sampled_from("the and of ing THE 0123 \n\t  ▁éü日本😀(){}[]<>/.,'\"ﬁＡ"),
        st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"),
    ),
    max_size=40,
)


def corpus() -> list[str]:
    root = Path(__file__).parents[2]
    text = "".join((root / name).read_text("utf-8") for name in ("ruvcompile/sample.txt", "LICENSE"))
    return [line for line in text.split("\n") if line.strip()] + ["naïve café 日本語", "x = [1, 2, 3]", "    return  a"]


@pytest.fixture(scope="module")
def trained() -> dict[str, bytes]:
    """A tokenizer of each kind, trained on a few hundred lines."""
    found = {}
    for name, options in KINDS.items():
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus()), model_writer=out, minloglevel=2, num_threads=1,
            **{"vocab_size": 600, **options},
        )  # fmt: skip
        found[name] = out.getvalue()
    return found


def reference(raw: bytes) -> Any:
    return sentencepiece.SentencePieceProcessor(model_proto=raw)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150)
@given(text=TEXT)
@example(text="")
@example(text=" ")
@example(text="  leading and  double   spaces \n\n")
@example(text="the▁and <mask>ing 12345")
@example(text="aaaaaaa eeeee ....... ------")
def test_tokens_are_those_of_sentencepiece(kind: str, trained: dict[str, bytes], text: str) -> None:
    theirs = reference(trained[kind])
    ours = made(trained[kind])
    ids = ours.encode(text, add_special_tokens=False).ids
    assert ids == theirs.encode(text)
    if KINDS[kind].get("byte_fallback"):  # else what is unknown is shown otherwise
        assert ours.decode(ids) == theirs.decode(ids)


def test_the_name_of_a_byte_is_text_like_any_other(trained: dict[str, bytes]) -> None:
    for kind in ("llama", "bpe-nfkc"):
        assert made(trained[kind]).encode("<0x41>").ids == reference(trained[kind]).encode("<0x41>")


_MADE: dict[bytes, Tokenizer] = {}


def made(raw: bytes) -> Tokenizer:
    """Read back from JSON, as the head does."""
    if raw not in _MADE:
        _MADE[raw] = Tokenizer.from_str(tokenizer_of(read_pieces(raw, "m")).to_str())
    return _MADE[raw]


def test_names_of_control_pieces_become_those_tokens(trained: dict[str, bytes]) -> None:
    ours = made(trained["llama"])
    ids = ours.encode("<s>the", add_special_tokens=False).ids
    assert ids == [1, *reference(trained["llama"]).encode("the")]
    assert ours.decode(ids) == "the"


def gguf_file(raw: bytes, **changes: Any) -> GgufFile:
    """The metadata that a converter makes of a SentencePiece model."""
    model = reference(raw)
    count = model.vocab_size()
    kinds = ((model.is_unknown, 2), (model.is_control, 3), (model.is_unused, 5), (model.is_byte, 6))
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(number) for number in range(count)],
        "tokenizer.ggml.scores": [model.get_score(number) for number in range(count)],
        "tokenizer.ggml.token_type": [next((n for test, n in kinds if test(i)), 1) for i in range(count)],
    } | {"tokenizer.ggml." + key: value for key, value in changes.items()}
    return GgufFile(Path("m.gguf"), "m.gguf", {k: v for k, v in metadata.items() if v is not None}, {})


@pytest.mark.parametrize("kind", ["llama", "gemma"])
@settings(max_examples=60)
@given(text=TEXT)
def test_a_gguf_of_it_gives_the_same_tokens(kind: str, trained: dict[str, bytes], text: str) -> None:
    raw = trained[kind]
    key = b"gguf" + raw
    if key not in _MADE:
        prefix = kind == "llama"
        # The user-defined pieces of a gemma are found by type; those of text alone are cut out of the raw text.
        types = [
            4 if reference(raw).id_to_piece(i) in KINDS["gemma"]["user_defined_symbols"] else None for i in range(600)
        ]
        file = gguf_file(raw, add_space_prefix=prefix)
        known = file.metadata["tokenizer.ggml.token_type"]
        file = gguf_file(raw, add_space_prefix=prefix, token_type=[a or b for a, b in zip(types, known, strict=True)])
        _MADE[key] = Tokenizer.from_str(read_tokenizer(file, 600).files["tokenizer.json"].decode())
    ids = _MADE[key].encode(text, add_special_tokens=False).ids
    assert ids == reference(raw).encode(text)


def test_what_a_gguf_leaves_out_is_what_is_usual(trained: dict[str, bytes]) -> None:
    head = read_tokenizer(gguf_file(trained["llama"]), 600)
    chat = json.loads(head.files["chat.json"])
    assert (chat["bos_token"], chat["eos_token"], chat["add_bos"]) == ("<s>", "</s>", True)
    tokenizer = Tokenizer.from_str(head.files["tokenizer.json"].decode())
    assert tokenizer.encode("the", add_special_tokens=False).ids == reference(trained["llama"]).encode("the")
    chat = json.loads(read_tokenizer(gguf_file(trained["llama"], add_bos_token=False), 600).files["chat.json"])
    assert chat["add_bos"] is False


@pytest.mark.parametrize("scores", [None, [0.0], [float("nan")] * 600, ["0"] * 600])
def test_a_gguf_without_sound_scores_is_refused(scores: Any, trained: dict[str, bytes]) -> None:
    with pytest.raises(InputError, match="score"):
        read_tokenizer(gguf_file(trained["llama"], scores=scores), 600)


# A directory with nothing but tokenizer.model


def directory(tmp_path: Path, raw: bytes, **said: Any) -> Path:
    config = {**CONFIGS["llama"], "vocab_size": 612}
    path = write_directory(tmp_path / "tiny", config, random_tensors(config), tokenizer=False)
    (path / "tokenizer.model").write_bytes(raw)
    (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>", **said}))
    return path


def token(content: str, *, special: bool) -> dict[str, Any]:
    return {"content": content, "special": special, "normalized": False}


def test_tokens_beside_the_model_are_added_where_they_belong(tmp_path: Path, trained: dict[str, bytes]) -> None:
    added = {
        "0": token("<unk>", special=True),
        "1": {**token("<s>", special=True), "content": "<s>"},
        "600": token("<|user|>", special=True),
        "603": token("<tool>", special=False),
        "700": token("<image>", special=True),  # beyond what this model has
    }
    program = load(str(directory(tmp_path, trained["llama"], added_tokens_decoder=added)))
    ours = Tokenizer.from_str(program.head_files["tokenizer.json"].decode())
    theirs = reference(trained["llama"])
    assert ours.encode("<|user|>the<tool>and", add_special_tokens=False).ids == [
        600, *theirs.encode("the"), 603, *theirs.encode("and"),
    ]  # fmt: skip
    assert ours.token_to_id("<image>") is None
    assert ours.decode([600, *theirs.encode("the"), 603]) == "the<tool>"
    chat = json.loads(program.head_files["chat.json"])
    assert (chat["bos_token"], chat["eos_token"], chat["add_bos"]) == ("<s>", "</s>", True)
    assert program.decoder is not None
    assert program.decoder.eos == (2,)


def test_a_space_goes_before_every_part_or_only_before_the_text(tmp_path: Path, trained: dict[str, bytes]) -> None:
    theirs = reference(trained["llama"])
    bare = theirs.encode("▁the")  # with a space before the space that stands for it
    for said, after_special in (({}, True), ({"legacy": True}, True), ({"legacy": False}, False)):
        program = load(str(directory(tmp_path, trained["llama"], **said)))
        ours = Tokenizer.from_str(program.head_files["tokenizer.json"].decode())
        assert ours.encode("the", add_special_tokens=False).ids == theirs.encode("the")
        found = ours.encode("<s>the", add_special_tokens=False).tokens
        assert found[1].startswith("▁") is after_special
    assert bare
    program = load(str(directory(tmp_path, trained["llama"], add_prefix_space=False)))
    ours = Tokenizer.from_str(program.head_files["tokenizer.json"].decode())
    assert not ours.encode("the", add_special_tokens=False).tokens[0].startswith("▁")


@pytest.mark.parametrize(
    ("raw", "ref"),
    [
        (b"", "tokenizer-invalid"),
        (b"not a model", "tokenizer-invalid"),
        (b"\x0a\xff\xff\xff\xff\x0f", "tokenizer-invalid"),
        (b"\x0a\x80", "tokenizer-invalid"),
        (b"\x0a" + b"\xff" * 12, "tokenizer-invalid"),
        (b"\x0a\x03\x0a\x01\xff", "tokenizer-invalid"),  # text that is no text
        (b"\x0a\x08\x0a\x01a\x15" + struct.pack("<f", float("nan")), "tokenizer-invalid"),
        (b"\x0a\x03\x0a\x01a" * 2, "tokenizer-wrong"),  # twice
        (b"\x0a\x03\x0a\x01a\x12\x02\x18\x03", "tokenizer-unsupported"),  # whole words
    ],
)
def test_a_file_that_is_no_model_is_refused(raw: bytes, ref: str, tmp_path: Path, trained: dict[str, bytes]) -> None:
    with pytest.raises(InputError) as caught:
        load(str(directory(tmp_path, raw)))
    assert caught.value.ref == ref
    assert "tokenizer.model" in caught.value.message
    assert caught.value.hint


def test_a_model_cut_anywhere_is_refused_or_read(tmp_path: Path, trained: dict[str, bytes]) -> None:
    raw = trained["bpe-nfkc"]
    for length in range(0, len(raw), 997):
        with contextlib.suppress(InputError):
            tokenizer_of(read_pieces(raw[:length], "m"))
