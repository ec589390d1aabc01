"""What transformers itself answers: a tiny random model of every family, written down for the tests to compare with.

    python transformers_reference.py DIRECTORY

runs in an environment of its own (``setup.sh``), not in that of the project, and writes a directory per case:
``config.json`` and ``model.safetensors`` as transformers saves them, and ``reference.npz`` with the prompt, the 64
tokens that follow it greedily, and the logits of every position.

The models know nothing, but they compute like large ones: weights are drawn so that answers vary, windows are
shorter than the prompt, and a seed whose answer hangs by a thread (two best logits nearly equal) is passed over,
since rounding might decide it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from transformers import PreTrainedModel

PROMPT, ANSWER, WINDOW, CONTEXT = 40, 64, 16, 256
GAP = 1e-3
SHAPE = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LINEAR = {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 64, "rope_theta": 500.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 1000.0}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.5, 1.8, 2.1], "long_factor": [2.0] * 8}
PARTIAL = {"hidden_size": 128, "partial_rotary_factor": 0.5, "original_max_position_embeddings": 128}
ENCODER = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
ENCODER |= {"image_size": 28, "patch_size": 14}


def of_gemma(**keys: object) -> dict[str, object]:
    """Heads whose sizes do not add up to the width, and a scale that is not the heads' own."""
    return SHAPE | {"head_dim": 32, "query_pre_attn_scalar": 24, "sliding_window": WINDOW} | keys


IMAGES = {"text_config": of_gemma(num_hidden_layers=6), "vision_config": ENCODER, "mm_tokens_per_image": 1}
CASES: dict[str, tuple[str, dict[str, object]]] = {
    "llama": ("Llama", SHAPE),
    "llama-tied": ("Llama", SHAPE | {"tie_word_embeddings": True, "head_dim": 32}),
    "llama-biased": ("Llama", SHAPE | {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": ("Llama", SHAPE | {"rope_parameters": LINEAR}),
    "llama-llama3": ("Llama", SHAPE | {"rope_parameters": LLAMA3}),
    "llama-yarn": ("Llama", SHAPE | {"rope_parameters": YARN}),
    "mistral": ("Mistral", SHAPE | {"sliding_window": WINDOW}),
    "qwen2": ("Qwen2", SHAPE),
    "qwen2-windows": ("Qwen2", SHAPE | {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2}),
    "qwen3": ("Qwen3", SHAPE | {"head_dim": 32}),
    "phi3": ("Phi3", SHAPE | {"sliding_window": WINDOW, "num_key_value_heads": 4}),
    "phi3-long": ("Phi3", SHAPE | PARTIAL | {"rope_parameters": LONG}),
    "gemma": ("Gemma", SHAPE | {"head_dim": 32, "num_key_value_heads": 1, "hidden_act": "gelu"}),
    "gemma2": ("Gemma2", of_gemma(attn_logit_softcapping=3.0, final_logit_softcapping=8.0)),
    "gemma3": ("Gemma3Text", of_gemma(num_hidden_layers=7, num_key_value_heads=1)),
    "gemma3-images": ("Gemma3", IMAGES),
    "smollm3": ("SmolLM3", SHAPE),
}
"""Family and configuration of each case."""


def draw(model: PreTrainedModel, seed: int) -> None:
    """Give every parameter of ``model`` a random value of the size that keeps activations near one."""
    random = torch.Generator().manual_seed(seed)
    gemma = "Gemma" in type(model).__name__
    for name, weight in model.named_parameters():
        values = torch.randn(weight.shape, generator=random)
        if name.endswith("norm.weight"):
            weight.data = weight.data + 0.2 * values + (9 if gemma and name.endswith("model.norm.weight") else 0)
        elif "embed_tokens" in name or "lm_head" in name:
            # Small beside what the layers add, or a tied head would repeat its input for ever.
            weight.data = (0.02 if gemma else 0.3) * values
        elif weight.dim() == 2:
            weight.data = 1.3 * weight.shape[1] ** -0.5 * values
        else:
            weight.data = 0.3 * values


def answer(model: PreTrainedModel, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Prompt, answer and the logits of all their positions but the last."""
    prompt = torch.randint(3, int(SHAPE["vocab_size"]), (1, PROMPT), generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        whole = model.generate(prompt, max_new_tokens=ANSWER, do_sample=False, eos_token_id=None, use_cache=True)
        logits = model(whole, use_cache=False).logits[0, :-1]
    assert whole.shape[1] == PROMPT + ANSWER
    return prompt[0].numpy(), whole[0, PROMPT:].numpy(), logits.float().numpy()


def firm(tokens: np.ndarray, logits: np.ndarray) -> bool:
    """Whether no token of the answer is a matter of rounding, and the answer says something."""
    chosen = np.sort(logits[PROMPT - 1 :], -1)
    sure = bool((chosen[:, -1] - chosen[:, -2] > GAP).all()) and bool((logits[PROMPT - 1 :].argmax(-1) == tokens).all())
    return sure and len(set(tokens.tolist())) > 12


def write(name: str, directory: Path) -> None:
    """Write one case."""
    family, keys = CASES[name]
    config = getattr(transformers, f"{family}Config")(**keys)
    kind = "Gemma3ForConditionalGeneration" if family == "Gemma3" else f"{family.removesuffix('Text')}ForCausalLM"
    for seed in range(50):
        # The same arithmetic as written in the paper of each model: no fused kernels.
        model = (
            getattr(transformers, kind)._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
        )
        draw(model, seed)
        prompt, tokens, logits = answer(model, seed)
        if firm(tokens, logits):
            break
    else:
        raise SystemExit(f"no seed gives {name} a firm answer")
    model.save_pretrained(directory)
    np.savez(directory / "reference.npz", prompt=prompt, tokens=tokens, logits=logits)
    print(
        f"{name}: seed {seed}, {len(set(tokens.tolist()))} different tokens, largest logit {np.abs(logits).max():.1f}"
    )


def main() -> None:
    """Write all cases, or those that are named after the directory."""
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    root, names = Path(sys.argv[1]), sys.argv[2:] or list(CASES)
    for name in names:
        write(name, root / name)


if __name__ == "__main__":
    main()
