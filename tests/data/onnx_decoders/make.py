"""Make the exported decoders in this folder again: tiny models with random weights, written by the exporters.

They are kept as files because no one environment has all the exporters. Each command wants its own:

    python make.py checkpoints DIR           # transformers 4.57, torch 2.13
    python make.py optimum DIR               # with optimum 2.1, optimum-onnx 0.1
    python make.py genai DIR                 # onnxruntime-genai 0.18

DIR holds the checkpoints, of two layers each, between the commands; the results are written beside this script.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
COMMON = {"vocab_size": 98, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "initializer_range": 0.3}
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 128}
OPTIMUM = ("llama", "gpt2", "gpt_neox")
GENAI = (("llama", "fp32"), ("qwen2", "int4"), ("qwen3", "int4"))


def checkpoints(directory: Path) -> None:
    """Tiny checkpoints with a tokenizer of single characters."""
    import torch
    import transformers as hf

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    models = {
        "llama": (hf.LlamaForCausalLM, hf.LlamaConfig(**SIZES, **heads, **COMMON, tie_word_embeddings=False)),
        "qwen2": (
            hf.Qwen2ForCausalLM,
            hf.Qwen2Config(**SIZES, **COMMON, num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True),
        ),
        "qwen3": (hf.Qwen3ForCausalLM, hf.Qwen3Config(**SIZES, **heads, **COMMON, tie_word_embeddings=True)),
        "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config(n_embd=32, n_layer=2, n_head=2, n_positions=128, **COMMON)),
        # A quarter of 16 channels is rotated, which no fused kernel takes: this one is run as it is.
        "gpt_neox": (
            hf.GPTNeoXForCausalLM,
            hf.GPTNeoXConfig(**SIZES, **COMMON, num_attention_heads=2, rotary_pct=0.25),
        ),
    }
    for name, (kind, config) in models.items():
        torch.manual_seed(7)
        model = kind(config).eval()
        with torch.no_grad():
            for key, weight in model.named_parameters():
                if "bias" in key:
                    weight.normal_(0, 0.2)
                elif "norm" in key:
                    weight.uniform_(0.7, 1.3)
        model.save_pretrained(directory / name)
        tokenizer().save_pretrained(directory / name)


def tokenizer() -> object:
    """Three special tokens, then one for every visible character and the blank."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["<pad>", "<bos>", "<eos>", *map(chr, range(33, 127)), "\u0120"]
    made = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>")


def optimum(directory: Path) -> None:
    """Exports with decomposed attention."""
    for name in OPTIMUM:
        target = HERE / f"optimum-{name}"
        shutil.rmtree(target, ignore_errors=True)
        command = [Path(sys.executable).with_name("optimum-cli"), "export", "onnx", "--model", directory / name]
        subprocess.run([*command, "--task", "text-generation-with-past", target], check=True)
        (target / "special_tokens_map.json").unlink()


def genai(directory: Path) -> None:
    """Exports with ``GroupQueryAttention``, quantised ones with ``MatMulNBits``."""
    import onnx

    for name, precision in GENAI:
        target = HERE / f"genai-{name}-{precision}"
        shutil.rmtree(target, ignore_errors=True)
        command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", directory / name, "-o", target]
        subprocess.run([*command, "-p", precision, "-e", "cpu", "-c", directory / "cache"], check=True)
        model = onnx.load(target / "model.onnx")  # the data goes into the file: one less to keep
        (target / "model.onnx.data").unlink()
        onnx.save(model, target / "model.onnx")


if __name__ == "__main__":
    {"checkpoints": checkpoints, "optimum": optimum, "genai": genai}[sys.argv[1]](Path(sys.argv[2]))
