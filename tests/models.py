"""Models for tests: tiny random decoders made on the spot, and the real ones in ``.cache/models``.

A tiny decoder is a complete GGUF file: llama architecture, a working byte-level tokenizer with ChatML specials, weights
quantised as asked. It knows nothing, but it computes like a large one, and its greedy output varies: the embedding is
small beside what the layers add (or a tied head would repeat its input for ever), and the special tokens are
all but impossible, so that an answer does not end by chance.
"""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

MODELS = Path(__file__).parents[1] / ".cache" / "models"
SMOLLM2 = MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"

CONTEXT = 256
ROPE_BASE = 10000.0
EPSILON = 1e-5
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_WORDS = (
    "the and of to in is you that it for was on are with as his they at be this from have or by one had not but what"
)


def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct in Q4_1; the test fails, and says how to get it, when it is not there."""
    if not SMOLLM2.is_file():
        pytest.fail(f"no {SMOLLM2}: run ./tests/run.sh once, it fetches the models that the tests need", pytrace=False)
    return SMOLLM2


def byte_tokens() -> list[str]:
    """How byte-level BPE writes each byte: itself where it is printable, else a letter from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    other = (chr(0x100 + number) for number in range(256))
    return [chr(byte) if byte in plain else next(other) for byte in range(256)]


def tiny_vocabulary(vocab: int) -> tuple[list[str], list[str]]:
    """Tokens (specials, bytes, then merged pieces of common words) and the merges that make them."""
    tokens, merges = [*SPECIALS, *byte_tokens()], list[str]()
    for word in _WORDS.split():
        left = "Ġ"
        for letter in word:
            if left + letter not in tokens and len(tokens) < vocab:
                merges.append(f"{left} {letter}")
                tokens.append(left + letter)
            left += letter
    assert len(tokens) == vocab, f"a tiny vocabulary has {len(SPECIALS) + 256} to {len(tokens)} tokens"
    return tokens, merges


def write_tiny_gguf(
    path: Path,
    *,
    layers: int = 3,
    hidden: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    ffn: int = 96,
    vocab: int = 300,
    quant: str = "Q4_1",
    tied: bool = True,
    seed: int = 0,
    context: int = CONTEXT,
    architecture: str = "llama",
) -> Path:
    """Write a random decoder to ``path`` and return it. The same arguments give the same bytes.

    ``hidden`` and ``ffn`` are multiples of 32. With a quantised ``quant`` the embedding is Q8_0, as llama.cpp does it.
    """
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"tiny {layers} {seed}")
    writer.add_block_count(layers)
    writer.add_context_length(context)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(ffn)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_rope_dimension_count(hidden // heads)
    writer.add_vocab_size(vocab)
    add_tokenizer(writer, vocab)

    def add(name: str, shape: tuple[int, ...], scale: float, kind: str = quant) -> None:
        values = (random.standard_normal(shape) * scale).astype(np.float32)
        if name in ("token_embd.weight", "output.weight"):
            values[: len(SPECIALS)] *= 0.05
        type_ = GGMLQuantizationType[kind]
        writer.add_tensor(name, quants.quantize(values, type_), raw_dtype=type_)

    def add_norm(name: str) -> None:
        values = (1 + 0.1 * random.standard_normal(hidden)).astype(np.float32)
        writer.add_tensor(name, values)

    table = "F32" if quant == "F32" else "Q8_0"
    kv_width = hidden // heads * kv_heads
    add("token_embd.weight", (vocab, hidden), 0.3, table)
    for layer in range(layers):
        at = f"blk.{layer}."
        add_norm(at + "attn_norm.weight")
        add(at + "attn_q.weight", (hidden, hidden), 2 * hidden**-0.5)
        add(at + "attn_k.weight", (kv_width, hidden), 2 * hidden**-0.5)
        add(at + "attn_v.weight", (kv_width, hidden), 2 * hidden**-0.5)
        add(at + "attn_output.weight", (hidden, hidden), 2 * hidden**-0.5)
        add_norm(at + "ffn_norm.weight")
        add(at + "ffn_gate.weight", (ffn, hidden), 2 * hidden**-0.5)
        add(at + "ffn_up.weight", (ffn, hidden), 2 * hidden**-0.5)
        add(at + "ffn_down.weight", (hidden, ffn), 2 * ffn**-0.5)
    add_norm("output_norm.weight")
    if not tied:
        add("output.weight", (vocab, hidden), 0.3, table)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokenizer(writer: gguf.GGUFWriter, vocab: int) -> None:
    """The metadata of a byte-level tokenizer of ``vocab`` tokens."""
    tokens, merges = tiny_vocabulary(vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIALS) + [1] * (vocab - len(SPECIALS)))
    writer.add_token_merges(merges)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
