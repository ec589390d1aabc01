"""Any other model of Hugging Face's, by way of torch: the extra ``huggingface``.

A checkpoint whose family is described here (``families``) is read without torch, tensor by tensor. For every other one
transformers has the code, and torch's exporter makes an ONNX graph of it. That needs both, and the whole model in
memory as float32, once; they are imported when they are needed.

What the model is for, its configuration says by the name of its class:

* text generation: the decoder is exported with its key/value state, and goes the way of every decoder that is ONNX
  (``decoder_onnx``);
* anything else (features, classification of texts, tokens and images, ...): its tensors in, its tensors out, a plain
  graph, with batch and text length left open.

Nothing is fetched: what is not in the directory is not looked for. Code that comes with a checkpoint is not run, and
weights are read from safetensors only, since the older files are programs too.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import logging
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ruvcompile.errors import InputError
from ruvcompile.load.decoder_onnx import as_decoder
from ruvcompile.load.directory import directory_name, fingerprint
from ruvcompile.load.families import FAMILIES
from ruvcompile.load.shards import open_shards
from ruvcompile.program import Program, Source
from ruvcompile.quantities import show_bytes

NEEDED = ("torch", "transformers", "onnxscript")
OPSET = 23
_GENERATES = ("ForCausalLM", "LMHeadModel")
_JUDGES = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
_BATCH, _SEQUENCE, _PAST = 2, 3, 5
_IMAGE = 224


def is_foreign(config: Mapping[str, Any]) -> bool:
    """Whether a configuration is that of a model that only transformers has code for."""
    inner = config.get("text_config")
    text = inner if isinstance(inner, dict) else config
    kind, names = text.get("model_type"), config.get("architectures")
    if not isinstance(kind, str) or any("expert" in key and value for key, value in text.items()):
        return False  # what is wrong with it is told where families are read
    judges = isinstance(names, list) and bool(names) and str(names[0]).endswith(_JUDGES)
    return kind not in FAMILIES or judges


def missing() -> list[str]:
    """The packages of the extra that are not installed here: without them the family readers say what to install."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def load_huggingface(path: Path, named_as: str, config: Mapping[str, Any]) -> Program:
    """Export the model in the directory at ``path``.

    Args:
        path: of the directory.
        named_as: how the user called it.
        config: its ``config.json``.

    Raises:
        InputError: the model cannot be loaded or exported.
    """
    _refuse(named_as, config)
    shards = open_shards(path, named_as)
    source = Source(named_as, fingerprint(path, shards))
    with _quiet():
        model, exported = _export(path, named_as, config)
    bytes_loaded = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    note = f"torch loaded the whole model, {show_bytes(bytes_loaded)} as float32: memory grows with its size"
    program = Program(directory_name(path), exported, source, None, notes=(note,))
    return as_decoder(program, path / "model.onnx") if _generates(config) else program


def _generates(config: Mapping[str, Any]) -> bool:
    names = config.get("architectures")
    return not isinstance(names, list) or not names or str(names[0]).endswith(_GENERATES)


def _refuse(named_as: str, config: Mapping[str, Any]) -> None:
    what = ""
    if config.get("auto_map"):
        what = "comes with code of its own, which is not run"
    elif config.get("is_encoder_decoder"):
        what = "is an encoder with a decoder, which is not divided yet"
    elif config.get("quantization_config"):
        what = "is quantised in a form that only its own library reads"
    if what:
        raise InputError("model-unsupported", f"{named_as} {what}", hint="use another checkpoint of the model")


@contextmanager
def _quiet() -> Iterator[None]:
    """No network, no progress bars, no advice on standard output and error."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    theirs: Any = importlib.import_module("transformers.utils.logging")
    theirs.set_verbosity_error()
    theirs.disable_progress_bar()
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _export(path: Path, named_as: str, config: Mapping[str, Any]) -> tuple[Any, ir.Model]:
    """The model as torch has it, and as a graph."""
    torch: Any = importlib.import_module("torch")
    try:
        model = _class_of(config).from_pretrained(
            path, dtype=torch.float32, local_files_only=True, use_safetensors=True
        )
    except Exception as error:  # noqa: BLE001 - whatever transformers and torch raise for a file they cannot read
        raise _cannot(named_as, "transformers cannot load it", error) from None
    model.eval()
    try:
        with torch.no_grad():
            wrapped, inputs, names, results, shapes = (_decoder if _generates(config) else _graph)(torch, model)
            program = torch.onnx.export(
                wrapped,
                inputs,
                input_names=names,
                output_names=results,
                dynamic_shapes=shapes,
                dynamo=True,
                opset_version=OPSET,
                verbose=False,
            )
    except InputError:
        raise
    except Exception as error:  # noqa: BLE001 - the exporter raises whatever the model's code makes it trip over
        raise _cannot(named_as, "torch cannot export it", error) from None
    exported: ir.Model = program.model
    return model, exported


def _class_of(config: Mapping[str, Any]) -> Any:
    """The class that the configuration names, else the one that transformers takes for it."""
    transformers: Any = importlib.import_module("transformers")
    names = config.get("architectures")
    found = getattr(transformers, str(names[0]), None) if isinstance(names, list) and names else None
    if found is not None and isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
        return found
    return transformers.AutoModelForCausalLM if _generates(config) else transformers.AutoModel


def _decoder(torch: Any, model: Any) -> tuple[Any, ...]:
    """A decoder with its state as plain tensors, sample inputs, names and open sizes."""
    transformers: Any = importlib.import_module("transformers")
    vocab = model.config.get_text_config().vocab_size
    tokens = torch.arange(_BATCH * _SEQUENCE).reshape(_BATCH, _SEQUENCE) % vocab
    cache = model(input_ids=tokens, use_cache=True).past_key_values
    layers = getattr(cache, "layers", None)
    if not layers or any(getattr(layer, "keys", None) is None or layer.keys.dim() != 4 for layer in layers):
        raise InputError(
            "model-unsupported",
            f"a {model.config.model_type} keeps another state than keys and values",
            hint="use a decoder with attention in every layer",
        )
    sizes = [(layer.keys.shape[1], layer.keys.shape[3]) for layer in layers]
    positioned = "position_ids" in _arguments(model)

    class WithState(torch.nn.Module):  # type: ignore[misc]  # of no known type
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, position_ids: Any, past: Any) -> Any:
            cache = transformers.DynamicCache()
            for number, (key, value) in enumerate(past):
                cache.update(key, value, number)
            more = {"position_ids": position_ids} if positioned else {}
            made = self.model(input_ids=input_ids, past_key_values=cache, use_cache=True, **more)
            return made.logits, [(layer.keys, layer.values) for layer in made.past_key_values.layers]

    past = [tuple(torch.randn(_BATCH, heads, _PAST, size) for _ in range(2)) for heads, size in sizes]
    positions = torch.arange(_PAST, _PAST + _SEQUENCE)[None].repeat(_BATCH, 1)
    batch, sequence, seen = (torch.export.Dim(name) for name in ("batch", "sequence", "past"))
    names = ["input_ids", "position_ids", *(f"past_{h}.{n}" for n in range(len(sizes)) for h in ("key", "value"))]
    results = ["logits", *(f"present_{h}.{n}" for n in range(len(sizes)) for h in ("key", "value"))]
    text, state = {0: batch, 1: sequence}, {0: batch, 2: seen}
    shapes = (text, text, [(state, state) for _ in sizes])
    return WithState(), (tokens, positions, past), names, results, shapes


def _graph(torch: Any, model: Any) -> tuple[Any, ...]:
    """A model of tensors to tensors, sample inputs, names and open sizes."""
    inputs, shapes = _samples(torch, model)
    known = set(_arguments(model))
    fixed = {name: value for name, value in (("use_cache", False), ("return_dict", True)) if name in known}
    made = model(**inputs, **fixed)
    results = [name for name, value in made.items() if isinstance(value, torch.Tensor)]

    class Plain(torch.nn.Module):  # type: ignore[misc]  # of no known type
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *values: Any) -> Any:
            found = self.model(**dict(zip(inputs, values, strict=True)), **fixed)
            return tuple(found[name] for name in results)

    return Plain(), tuple(inputs.values()), list(inputs), results, (tuple(shapes[name] for name in inputs),)


def _samples(torch: Any, model: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Inputs by name, by what the model's main input is, and which of their sizes are open."""
    config, main = model.config, model.main_input_name
    batch, sequence = torch.export.Dim("batch"), torch.export.Dim("sequence")
    if main == "input_ids":
        tokens = torch.arange(_BATCH * _SEQUENCE).reshape(_BATCH, _SEQUENCE) % config.vocab_size
        inputs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        if "token_type_ids" in _arguments(model) and getattr(config, "type_vocab_size", None):
            inputs["token_type_ids"] = torch.zeros_like(tokens)
        return inputs, {name: {0: batch, 1: sequence} for name in inputs}
    if main == "pixel_values":
        size = getattr(config, "image_size", None) or _IMAGE
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        image = torch.linspace(-1, 1, _BATCH * config.num_channels * height * width)
        return {main: image.reshape(_BATCH, config.num_channels, height, width)}, {main: {0: batch}}
    raise InputError(
        "model-unsupported",
        f"a {config.model_type} takes {main}, for which no sample is known",
        hint="export it to ONNX with samples of your own, and name that file",
    )


def _arguments(model: Any) -> list[str]:
    return list(inspect.signature(model.forward).parameters)


def _cannot(named_as: str, what: str, error: Exception) -> InputError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return InputError(
        "export-failed",
        f"{named_as}: {what}",
        context=[f"{type(error).__name__}: {lines[0][:300] if lines else 'no more is said'}"],
        hint="export it to ONNX by other means, and name that file",
    )
