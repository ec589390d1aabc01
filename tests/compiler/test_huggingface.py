"""Which models go to torch, and what is refused before it is asked. The exports themselves: ``tests/reference``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ruvcompile.errors import InputError
from ruvcompile.load import huggingface, load
from ruvcompile.load.huggingface import is_foreign, load_huggingface


@pytest.mark.parametrize(
    ("config", "foreign"),
    [
        ({"model_type": "llama", "architectures": ["LlamaForCausalLM"]}, False),
        ({"model_type": "llama"}, False),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, False),
        ({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]}, True),
        ({"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"]}, True),
        ({"model_type": "bert", "architectures": ["BertModel"]}, True),
        ({"model_type": "mixtral", "num_local_experts": 8}, False),
        ({"architectures": ["BertModel"]}, False),
    ],
)
def test_what_only_transformers_has_code_for(config: dict[str, Any], foreign: bool) -> None:
    assert is_foreign(config) is foreign


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("auto_map", {"AutoModel": "theirs.Model"}, "code of its own"),
        ("is_encoder_decoder", True, "an encoder with a decoder"),
        ("quantization_config", {"quant_method": "awq"}, "quantised"),
    ],
)
def test_what_is_refused_before_torch_is_imported(key: str, value: object, why: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=why) as caught:
        load_huggingface(tmp_path, "there", {"model_type": "other", key: value})
    assert caught.value.ref == "model-unsupported"


def test_without_the_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface, "NEEDED", ("torch_that_is_not_here",))
    assert huggingface.missing() == ["torch_that_is_not_here"]
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertModel"]}))
    header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(InputError) as caught:
        load(str(tmp_path))
    assert caught.value.ref == "model-unsupported" and "'bert'" in caught.value.message
    assert "ruvcompile[huggingface]" in caught.value.hint
