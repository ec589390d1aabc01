"""What is no decoder that can be run, or nearly one, and what a person is told of it."""

from __future__ import annotations

import json
import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ruvcompile.errors import InputError
from ruvcompile.load import load
from tests.compiler.exports import EXPORTS, copied


def test_a_merged_decoder_is_refused_by_name(tmp_path: Path) -> None:
    path, model = copied("optimum-llama", tmp_path)
    model.graph.input.append(onnx.helper.make_tensor_value_info("use_cache_branch", onnx.TensorProto.BOOL, [1]))
    onnx.save(model, path)
    with pytest.raises(InputError) as caught:
        load(str(path))
    assert caught.value.ref == "decoder-merged" and "use_cache_branch" in caught.value.message


def test_a_decoder_without_its_configuration_is_refused(tmp_path: Path) -> None:
    path, _ = copied("optimum-llama", tmp_path)
    (path.parent / "config.json").unlink()
    with pytest.raises(InputError) as caught:
        load(str(path))
    assert caught.value.ref == "decoder-config-missing" and "config.json" in caught.value.hint


def changed(directory: Path, name: str, file: str, change: Any) -> Path:
    """An export with something else in its configuration."""
    place = directory / "export"
    shutil.copytree(EXPORTS / name, place)
    content = json.loads((place / file).read_text("utf-8"))
    change(content)
    (place / file).write_text(json.dumps(content), "utf-8")
    return place / "model.onnx"


@pytest.mark.parametrize("name", ["optimum-llama", "optimum-gpt_neox"])
def test_a_limit_that_is_none_does_not_make_tables_of_its_size(name: str, tmp_path: Path) -> None:
    """Two tables of a thousand million rows would be the end of the machine before they are the end of the build."""
    path = changed(tmp_path, name, "config.json", lambda config: config.update(max_position_embeddings=10**9))
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text("utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (8 << 30), hard))
    try:
        decoder = load(str(path)).decoder
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert decoder is not None
    assert decoder.context == 1 << 20


def test_the_configuration_of_another_model_is_told_as_such(tmp_path: Path) -> None:
    sizes = {"num_attention_heads": 9, "num_key_value_heads": 1, "head_size": 4}
    path = changed(
        tmp_path, "genai-llama-fp32", "genai_config.json", lambda config: config["model"]["decoder"].update(sizes)
    )
    with pytest.raises(InputError) as caught:
        load(str(path))
    assert caught.value.ref == "decoder-does-not-run"
    assert "another model" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("lost", "extra", "said"),
    [
        ("present.1.value", None, "the value of layer 1 goes in and does not come out"),
        ("past_key_values.0.key", None, "the key of layer 0 goes out only"),
        ("logits", None, "it has no output logits"),
        (None, "hidden_states", "its output hidden_states is neither logits nor state"),
    ],
)
def test_what_is_nearly_a_decoder_is_told_why_it_is_none(lost: str, extra: str, said: str, tmp_path: Path) -> None:
    model = onnx.load(EXPORTS / "optimum-llama" / "model.onnx")
    for values in (model.graph.input, model.graph.output):
        kept = [value for value in values if value.name != lost]
        del values[:]
        values.extend(kept)
    if extra is not None:
        model.graph.node.append(onnx.helper.make_node("Identity", ["logits"], [extra]))
        model.graph.output.append(onnx.helper.make_tensor_value_info(extra, onnx.TensorProto.FLOAT, None))
    if lost is not None and lost.startswith("past"):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((1, 2, 0, 16), np.float32), lost))
    onnx.save(model, tmp_path / "model.onnx")
    program = load(str(tmp_path / "model.onnx"))
    assert program.decoder is None
    assert program.notes == (f"no decoder, though it has state: {said}",)


def test_an_input_that_nobody_can_fill_makes_it_any_other_graph(tmp_path: Path) -> None:
    path, model = copied("optimum-llama", tmp_path)
    model.graph.input.append(
        onnx.helper.make_tensor_value_info("encoder_hidden_states", onnx.TensorProto.FLOAT, [1, 4])
    )
    onnx.save(model, path)
    assert load(str(path)).decoder is None
