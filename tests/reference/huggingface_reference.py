"""Tiny random models that no family here describes, as transformers saves them, and what transformers makes of them.

    python huggingface_reference.py DIRECTORY

runs in the environment that ``huggingface.sh`` makes. ``reference.npz`` holds, for decoders, the prompt and the tokens
that follow it greedily; for the others, inputs and outputs by name, of other sizes than the export is shown.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

PROMPT, ANSWER, DISTINCT = 25, 40, 5
TEXT = {"vocab_size": 98, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
TEXT |= {"intermediate_size": 64, "max_position_embeddings": 128, "initializer_range": 0.3}
ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
DECODERS = {
    "gpt_neox": (hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig(**TEXT, **ENDS, rotary_pct=1.0)),
    "opt": (hf.OPTForCausalLM, hf.OPTConfig(**TEXT, **ENDS, ffn_dim=64, word_embed_proj_dim=32, init_std=0.3)),
    "bloom": (hf.BloomForCausalLM, hf.BloomConfig(**TEXT, **ENDS, n_layer=2, n_head=2, seq_length=128)),
}
IMAGES = {"num_labels": 5, "initializer_range": 0.3}
OTHERS = {
    "features": (hf.BertModel, hf.BertConfig(**TEXT)),
    "text-classes": (hf.BertForSequenceClassification, hf.BertConfig(**TEXT, num_labels=3)),
    "token-classes": (
        hf.DistilBertForTokenClassification,
        hf.DistilBertConfig(
            vocab_size=98, dim=32, n_layers=2, n_heads=2, hidden_dim=64, num_labels=4, initializer_range=0.3
        ),
    ),
    "vit": (
        hf.ViTForImageClassification,
        hf.ViTConfig(
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            image_size=32,
            patch_size=8,
            **IMAGES,
        ),
    ),
    "resnet": (
        hf.ResNetForImageClassification,
        hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], num_labels=5),
    ),
}


def main(directory: Path) -> None:
    """Write every model below ``directory``."""
    for name, (kind, config) in (DECODERS | OTHERS).items():
        # A seed whose answer goes round in a small circle would not show a wrong state.
        for seed in range(100):
            model = random_model(kind, config, seed)
            made = answer(model) if name in DECODERS else outputs(model)
            if name not in DECODERS or len(set(made["tokens"].tolist())) > DISTINCT:
                break
        model.save_pretrained(directory / name)
        if name in DECODERS:
            characters().save(str(directory / name / "tokenizer.json"))
        np.savez(directory / name / "reference.npz", **made)


def random_model(kind: Any, config: Any, seed: int) -> Any:
    """A model whose biases are random too."""
    torch.manual_seed(seed)
    model = kind(config).eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if "bias" in key:
                weight.normal_(0, 0.1)
    return model


def answer(model: Any) -> dict[str, Any]:
    """What follows a prompt, greedily, and never ended."""
    prompt = torch.arange(PROMPT)[None] * 37 % 95 + 3
    made = model.generate(prompt, max_new_tokens=ANSWER, min_new_tokens=ANSWER, do_sample=False)
    return {"prompt": prompt[0].numpy(), "tokens": made[0, PROMPT:].numpy()}


def outputs(model: Any) -> dict[str, Any]:
    """Inputs and outputs of one call: three texts of nine tokens, two of them shorter, or three images."""
    if model.main_input_name == "pixel_values":
        size = getattr(model.config, "image_size", 224)
        inputs = {"pixel_values": torch.randn(3, 3, size, size)}
    else:
        inputs = {"input_ids": torch.randint(3, 98, (3, 9)), "attention_mask": torch.ones(3, 9, dtype=torch.int64)}
        inputs["attention_mask"][0, 5:] = 0
        inputs["attention_mask"][2, 7:] = 0
        if model.config.model_type == "bert":
            inputs["token_type_ids"] = torch.randint(0, 2, (3, 9))
    with torch.no_grad():
        made = model(**inputs)
    return {f"in.{name}": value.numpy() for name, value in inputs.items()} | {
        f"out.{name}": value.numpy() for name, value in made.items()
    }


def characters() -> Tokenizer:
    """Three special tokens, then one for every visible character and the blank."""
    words = ["<pad>", "<bos>", "<eos>", *map(chr, range(33, 127)), "\u0120"]
    made = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


if __name__ == "__main__":
    main(Path(sys.argv[1]))
