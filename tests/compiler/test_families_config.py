"""What a configuration says of a decoder, in all its ways of writing, and which of them make no sense."""

from __future__ import annotations

import importlib
import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruvcompile.errors import InputError
from ruvcompile.load import families
from ruvcompile.load.checkpoint import build_decoder
from ruvcompile.load.families import FAMILIES, family_of
from ruvcompile.load.stored import Checkpoint
from tests.checkpoints import CONFIGS
from tests.compiler.families import CHECKPOINTS, WINDOWS, describe
from tests.decoders import family_checkpoint

SAID = ("layer_types", "no_rope_layers", "head_dim", "rope_parameters", "partial_rotary_factor", "attention_bias")
STRETCHED = ("rope_type", "attention_factor", "beta_fast", "truncate", "original_max_position_embeddings", "mscale")
VALUES = st.one_of(
    st.none() | st.booleans() | st.integers(-2, 300) | st.floats() | st.text(max_size=3),
    st.sampled_from([10**12, 10**400, "yarn", "llama3", "longrope", [1.0] * 8, ["a"] * 8, [[1]] * 3, {}, {"a": 1}]),
)


def test_every_family_is_registered_under_all_its_names() -> None:
    folder = Path(families.__file__).parent
    named = {path.stem for path in folder.glob("*.py")} - {"__init__", "config", "plain", "rotary"}
    modules = [importlib.import_module(f"{families.__name__}.{name}") for name in named]
    assert {kind: module.__name__ for module in modules for kind in module.MODEL_TYPES} == FAMILIES


def test_an_unknown_architecture_is_told_those_that_are_known() -> None:
    with pytest.raises(InputError) as error:
        family_of(Checkpoint("model", "mamba", {}, {}))
    assert error.value.ref == "model-unsupported"
    assert all(kind in " ".join(error.value.context) for kind in FAMILIES)
    assert "huggingface" in error.value.hint


@pytest.mark.parametrize(
    ("kind", "config"),
    [("mixtral", {"num_local_experts": 8}), ("qwen3_moe", {}), ("llama", {"num_local_experts": 4}), ("gpt_oss", {})],
)
def test_mixtures_of_experts_are_refused_by_name(kind: str, config: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="mixture of") as error:
        family_of(Checkpoint("model", kind, config, {}))
    assert kind in error.value.message


def test_weights_of_a_foreign_quantisation_are_refused() -> None:
    with pytest.raises(InputError, match="quantised"):
        describe("llama", quantization_config={"quant_method": "gptq"})


@pytest.mark.parametrize(
    ("name", "flat", "nested"),
    [
        ("llama", {"rope_theta": 500.0}, {"rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}),
        (
            "llama-llama3",
            {},
            {"rope_parameters": {**CONFIGS["llama-llama3"]["rope_scaling"], "rope_theta": 500000.0}},
        ),
        ("llama-linear", {}, {"rope_parameters": {"type": "linear", "factor": 4.0, "rope_theta": 10000.0}}),
        (
            "gemma3",
            {},
            {
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                },
                "rope_local_base_freq": ...,
            },
        ),
    ],
)
def test_old_and_new_writing_of_the_rotary_embedding_mean_the_same(
    name: str, flat: dict[str, Any], nested: dict[str, Any]
) -> None:
    assert describe(name, **flat) == describe(name, rope_theta=..., rope_scaling=..., **nested)


@pytest.mark.parametrize(
    ("name", "keys", "says"),
    [
        ("llama", {"rope_parameters": {"rope_theta": 5e5}}, "rope_theta is 500000.0 in rope_parameters, and 10000.0"),
        ("llama-linear", {"rope_parameters": {"rope_type": "linear", "factor": 8.0}}, "factor is 8.0"),
        ("gemma3", {"rope_parameters": {"full_attention": {"rope_theta": 5e5}}}, "rope_theta is 500000.0"),
    ],
)
def test_two_ways_of_writing_that_contradict_each_other_are_refused(name: str, keys: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)):
        describe(name, **keys)
    assert describe("llama", rope_parameters={"rope_theta": 10000, "rope_type": "default"}) == describe("llama")


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("spelling", ["type", "rope_type"])
def test_what_longrope_was_called_at_first_is_still_longrope(spelling: str, place: str) -> None:
    factors = {key: value for key, value in CONFIGS["phi3-long"]["rope_scaling"].items() if key != "rope_type"}
    said = {"rope_scaling": ..., place: {**factors, spelling: "su"}}
    assert describe("phi3-long", **said) == describe("phi3-long")


def test_a_long_context_of_short_factors_ends_where_they_do() -> None:
    assert CONFIGS["phi3-long"]["max_position_embeddings"] == 1024
    assert describe("phi3-long").context == 256


def test_yarn_reaches_as_far_as_it_was_stretched() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    assert describe("llama", rope_scaling=scaling).context == 1024
    assert describe("llama", rope_scaling=scaling, max_position_embeddings=2048).context == 2048


@pytest.mark.parametrize(
    ("share", "whole", "gain"),
    [(None, None, 0.1 * np.log(4) + 1), (1.0, 1.0, 1.0), (2.0, 1.0, (0.2 * np.log(4) + 1) / (0.1 * np.log(4) + 1))],
)
def test_the_gain_of_yarn_follows_its_two_shares(share: float | None, whole: float | None, gain: float) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "mscale": share}
    form = describe("llama", rope_scaling={**scaling, "mscale_all_dim": whole})
    assert form.rotaries["rotary"].gain == pytest.approx(gain)
    fixed = describe("llama", rope_scaling={**scaling, "attention_factor": 1.25})
    assert fixed.rotaries["rotary"].gain == 1.25


@pytest.mark.parametrize("kind", ["dynamic", "mrope"])
def test_a_rotary_embedding_of_another_kind_is_refused_by_name(kind: str) -> None:
    with pytest.raises(InputError, match=kind):
        describe("llama", rope_scaling={"rope_type": kind, "factor": 2.0})


def test_several_rotary_tables_where_the_family_has_one_are_refused() -> None:
    with pytest.raises(InputError, match="full_attention"):
        describe("llama", rope_parameters={"full_attention": {"rope_theta": 1e6}})


def test_keys_that_are_not_there_mean_what_the_family_means() -> None:
    """The configurations of the larger Gemma 3 say hardly more than this."""
    said = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34}
    said |= {"sliding_window": 1024, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}
    norm = family_checkpoint("gemma3").tensors["model.norm.weight"]
    table = replace(norm, shape=(262208, 2560))
    tensors = {"model.embed_tokens.weight": table, **{str(number): norm for number in range(600)}}
    checkpoint = Checkpoint("model", "gemma3_text", said, tensors)
    form = family_of(checkpoint).describe(checkpoint)
    assert (form.heads, form.kv_heads, form.head_size, form.vocab, form.context) == (8, 4, 256, 262208, 131072)
    assert [layer.window for layer in form.layers] == ([1024] * 5 + [0]) * 5 + [1024] * 4
    assert [layer.rotary for layer in form.layers[4:6]] == ["rotary_local", "rotary"]
    assert form.rotaries["rotary"].frequencies[1] == pytest.approx(1e6 ** (-2 / 256) / 8)
    assert form.rotaries["rotary_local"].frequencies[1] == pytest.approx(1e4 ** (-2 / 256))
    assert (form.tied, form.activation, form.scale, form.embedding_scale) == (True, "gelu_tanh", 1 / 16, 2560**0.5)
    assert (form.attention_cap, form.logit_cap, form.qk_norm, form.post_norms) == (0, 0, True, True)


@pytest.mark.parametrize(
    ("name", "keys", "windows"),
    [
        ("mistral", {"sliding_window": None}, [0, 0, 0]),
        ("mistral", {"sliding_window": ..., "max_position_embeddings": 8192}, [4096] * 3),
        ("mistral", {"sliding_window": 256}, [0, 0, 0]),
        ("mistral", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, [0, 16, 0]),
        ("qwen2", {**WINDOWS, "use_sliding_window": False}, [0, 0, 0]),
        ("qwen2", {**WINDOWS, "max_window_layers": 0}, [16, 16, 16]),
        ("qwen3", WINDOWS, [0, 16, 16]),
        ("gemma2", {}, [16, 0, 16]),
        ("gemma3", {"num_hidden_layers": 7}, [16] * 5 + [0, 16]),
        ("smollm3", {"use_sliding_window": True, "sliding_window": 8}, [0, 0, 0, 8, 0]),
        ("phi3", {}, [16] * 3),
        ("phi3", {"layer_types": ["full_attention"] * 3}, [16] * 3),
        ("llama", {"sliding_window": 16}, [0, 0, 0]),
    ],
)
def test_windows_are_where_the_family_has_them(name: str, keys: dict[str, Any], windows: list[int]) -> None:
    assert [layer.window for layer in describe(name, **keys).layers] == windows


def test_layers_that_rotate_nothing_are_counted_or_listed() -> None:
    assert [layer.rotary is None for layer in describe("smollm3").layers] == [False, False, False, True, False]
    listed = describe("smollm3", no_rope_layers=[0, 1, 1, 0, 1]).layers
    assert [layer.rotary is None for layer in listed] == [True, False, False, True, False]


def test_gemma3_computes_no_cap_on_scores_whatever_its_configuration_says() -> None:
    form = describe("gemma3", attn_logit_softcapping=20.0, final_logit_softcapping=10.0)
    assert (form.attention_cap, form.logit_cap) == (0, 10.0)
    assert describe("gemma2", attn_logit_softcapping=20.0).attention_cap == 20.0


def test_a_head_of_its_own_is_used_whatever_the_configuration_says() -> None:
    tensors = family_checkpoint("llama").tensors
    own = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}
    assert describe("llama").tied
    assert not describe("llama", own).tied
    assert describe("gemma2", tie_word_embeddings=...).tied


@pytest.mark.parametrize(
    ("name", "keys", "says"),
    [
        ("llama", {"num_hidden_layers": ...}, "num_hidden_layers is missing"),
        ("llama", {"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ("llama", {"num_hidden_layers": 3.0}, "3.0"),
        ("llama", {"num_hidden_layers": 10**9}, "layers"),
        ("llama", {"num_attention_heads": True}, "True"),
        ("llama", {"num_attention_heads": 3}, "multiple"),
        ("llama", {"num_key_value_heads": 3}, "3 key/value heads"),
        ("llama", {"head_dim": 15}, "15"),
        ("llama", {"rms_norm_eps": "small"}, "'small'"),
        ("llama", {"max_position_embeddings": 1}, "1 position"),
        ("llama", {"rms_norm_eps": float("nan")}, "nan"),
        ("llama", {"rms_norm_eps": 10**400}, "rms_norm_eps is 1000"),
        ("llama", {"rope_theta": 1e308}, "rope_theta is 1e+308"),
        ("gemma2", {"final_logit_softcapping": 1e308}, "final_logit_softcapping is 1e+308"),
        ("llama", {"hidden_act": "relu2"}, "relu2"),
        ("llama", {"tie_word_embeddings": "yes"}, "'yes'"),
        ("llama", {"rope_scaling": [1]}, "rope_scaling"),
        ("llama", {"rope_scaling": {"rope_type": "linear"}}, "factor is missing"),
        ("llama", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor is missing"),
        (
            "llama-llama3",
            {"rope_scaling": {**CONFIGS["llama-llama3"]["rope_scaling"], "low_freq_factor": 4.0}},
            "below",
        ),
        ("phi3-long", {"rope_scaling": {"type": "longrope", "short_factor": [1.0]}}, "short_factor"),
        ("phi3", {"partial_rotary_factor": 0.7}, "11 of the 16"),
        ("llama", {"partial_rotary_factor": 0.5}, "only 0.5 of each head"),
        ("qwen3", {"rope_parameters": {"partial_rotary_factor": 0.25}}, "only 0.25 of each head"),
        ("mistral", {"layer_types": ["full_attention"]}, "layer_types"),
        ("mistral", {"layer_types": ["chunked_attention"] * 3}, "chunked_attention"),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers"),
        ("gemma3", {"use_bidirectional_attention": True}, "encoder"),
        ("qwen2", {"is_causal": False}, "encoder"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(name: str, keys: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=re.escape(says)) as error:
        describe(name, **keys)
    assert error.value.exit_code == 3
    assert error.value.hint


@given(st.data())
def test_no_configuration_is_worse_than_refused(data: st.DataObject) -> None:
    """Any value under any key, of the rotary embedding's own too: a graph, or one error of ours."""
    checkpoint = CHECKPOINTS[data.draw(st.sampled_from(sorted(CHECKPOINTS)))]
    stretch = checkpoint.config.get("rope_scaling") or {"rope_type": "linear", "factor": 2.0}
    if data.draw(st.booleans()):
        changed = {**checkpoint.config, data.draw(st.sampled_from([*checkpoint.config, *SAID])): data.draw(VALUES)}
    else:
        key = data.draw(st.sampled_from([*stretch, *STRETCHED]))
        changed = {**checkpoint.config, "rope_scaling": {**stretch, key: data.draw(VALUES)}}
    checkpoint = replace(checkpoint, config=changed)
    with suppress(InputError):
        family = family_of(checkpoint)
        form = family.describe(checkpoint)
        build_decoder(form, family.weights(checkpoint, form), "model")
