"""One request, from the command line: a prompt to text, or tensors to tensors."""

from __future__ import annotations

import os
import queue
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruvrun import client
from ruvrun.elements import Value, bits_of, carrier, element_of
from ruvrun.engine import Lost, Request
from ruvrun.errors import InputError, MachineError, UnreachableError
from ruvrun.frames import Sampling
from ruvrun.manifest import Manifest, Tensor
from ruvrun.npz import read_npz, write_npz
from ruvrun.pipeline.driver import Driver, Event
from ruvrun.signature import is_sequence, require_names, require_shape
from ruvrun.tokenizer import Tokenizer


@dataclass(frozen=True)
class Prompt:
    """What the user asked for; ``chat`` puts the text into the model's chat template as the user's turn."""

    text: str
    chat: bool
    max_tokens: int
    sampling: Sampling


def ask(
    driver: Driver, manifest: Manifest, tokenizer: Tokenizer, prompt: Prompt, show: Callable[[str], None]
) -> dict[str, Any]:
    """Run one prompt; ``show`` gets the text as it comes. Returns the JSON of ``ruvrun run --prompt``.

    Raises:
        InputError: the prompt is empty, or longer than the context.
        UnreachableError: a stage was lost on the way.
    """
    if prompt.chat:
        tokens = tokenizer.chat([{"role": "user", "content": prompt.text}])
    else:
        tokens = tokenizer.encode(prompt.text)
    eos = frozenset(manifest.program.eos)
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    request = Request(driver.next_id(), tuple(tokens), prompt.max_tokens, prompt.sampling, eos)
    driver.submit(request, events.put)
    decoder = tokenizer.decoder(() if prompt.chat else tokens)
    text, generated, finish = "", [], None
    while finish is None:
        event = events.get()
        if isinstance(event, Lost):
            raise UnreachableError("stage-lost", event.why, hint="run it again; see `ruvrun doctor`")
        generated.append(event.token)
        finish = event.finish
        piece = decoder.push([event.token]) if event.token not in eos else ""
        if finish is not None:
            piece += decoder.flush()
        if piece:
            show(piece)
        text += piece
    return {
        "text": text,
        "tokens": generated,
        "prompt_tokens": len(tokens),
        "completion_tokens": len(generated),
        "finish_reason": finish,
    }


def ask_over_http(url: str, prompt: Prompt, key: str | None, show: Callable[[str], None]) -> dict[str, Any]:
    """As ``ask``, by a running head. Token ids are not part of the answer: OpenAI's API has none."""
    body: dict[str, Any] = {
        "model": next(iter(client.models(url, key)), ""),
        "max_tokens": prompt.max_tokens,
        "temperature": prompt.sampling.temperature,
        "top_p": prompt.sampling.top_p,
        "seed": prompt.sampling.seed,
    }
    if prompt.chat:
        path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": prompt.text}]
    else:
        path, body["prompt"] = "/v1/completions", prompt.text
    text, finish = "", None
    usage: dict[str, Any] = {}
    for chunk in client.complete(url, path, body, key):
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices", []):
            piece = (choice.get("delta", {}).get("content") if prompt.chat else choice.get("text")) or ""
            finish = choice.get("finish_reason") or finish
            if piece:
                show(piece)
            text += piece
    if finish is None:
        raise UnreachableError("answer-cut", f"the head at {url} ended the answer early", hint="see `ruvrun status`")
    counts = {name: usage.get(name) for name in ("prompt_tokens", "completion_tokens")}
    return {"text": text, "tokens": None, **counts, "finish_reason": finish}


def run_over_http(url: str, values: Mapping[str, Value], key: str | None) -> dict[str, Value]:
    """Run a graph once, by a running head.

    Raises:
        RuvError: nobody answers, or the head refused; then with its own words.
    """
    return client.infer(url, client.graph(url, key), values, key)


def read_inputs(paths: Sequence[Path], manifest: Manifest) -> dict[str, Value]:
    """The values of one or several ``.npz`` files, checked against the program's inputs; what is optional and left out
    is None.

    Raises:
        InputError: a file is missing or no npz, a name is unknown, missing or given twice, or an array has
            another type or shape than the program takes.
    """
    wanted = manifest.program.inputs
    found = read_values(paths, [tensor.name for tensor in wanted])
    require_names(found, wanted, where="names in the npz file are those of the ONNX file")
    sizes: dict[str, int] = {}
    return {tensor.name: _checked(tensor, found.get(tensor.name), sizes) for tensor in wanted}


def read_values(paths: Sequence[Path], names: Collection[str] = ()) -> dict[str, Value]:
    """The values of one or several ``.npz`` files; ``names`` are those that are expected (``npz``).

    Raises:
        InputError: a file is missing or no npz, or a name is given twice.
    """
    found: dict[str, Value] = {}
    for path in paths:
        for name, value in _read_file(path, names).items():
            if name in found:
                raise InputError("input-twice", f"{name!r} is in more than one file", hint="leave one of them out")
            found[name] = value
    return found


def write_outputs(path: Path, values: Mapping[str, Value]) -> None:
    """Write an ``.npz`` file that appears whole or not at all. A link stays one: what it leads to is written.

    Raises:
        InputError: an output has no place in such a file (a map).
        MachineError: no permission, no space, or what is there is no file and must not be replaced by one.
    """
    try:
        path = Path(os.path.realpath(path))
        if path.exists() and not path.is_file():
            what = f"cannot write {path}: it is no regular file"
            raise MachineError("output-unwritable", what, hint="name a file: --output out.npz")
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".npz")
    except OSError as error:
        raise _cannot_write(path, error) from None
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            write_npz(stream, values)
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.rename(path)
    except TypeError as error:
        raise InputError(
            "output-type", str(error), hint="export the graph with tensors in the place of that output"
        ) from None
    except OSError as error:
        raise _cannot_write(path, error) from None
    finally:
        with suppress(OSError):
            temporary.unlink()


def sizes_of(values: Mapping[str, Value]) -> dict[str, Any]:
    """The shape of every output, for people: of a sequence those of its tensors, of what is absent None."""
    return {name: _size(value) for name, value in values.items()}


def _size(value: Value) -> Any:
    return (
        [_size(each) for each in value] if isinstance(value, list) else list(value.shape) if value is not None else None
    )


def _read_file(path: Path, names: Collection[str]) -> dict[str, Value]:
    try:
        return read_npz(path, names)
    except FileNotFoundError:
        raise InputError("file-missing", f"no input at {path}", hint="check the path") from None
    except (OSError, ValueError) as error:
        raise InputError(
            "inputs-invalid", f"{path} is not an npz file", context=[str(error)], hint="write it with numpy.savez"
        ) from None


def _checked(tensor: Tensor, value: Value, sizes: dict[str, int]) -> Value:
    """The value as the links carry it, once its kind, type and shape are those that the program takes."""
    if value is None:
        return None
    if isinstance(value, list) != is_sequence(tensor):
        what = "a sequence" if isinstance(value, list) else "an array"
        raise InputError(
            "input-type-wrong",
            f"{tensor.name!r} is {what}, the model takes {tensor.dtype}",
            hint=f"a sequence is the arrays {tensor.name}[0], {tensor.name}[1] and so on",
        )
    element = element_of(tensor.dtype)
    items = [bits_of(each, element) for each in (value if isinstance(value, list) else [value])]
    for each in items:
        if each.dtype != carrier(element):
            raise InputError(
                "input-type-wrong",
                f"{tensor.name!r} is {each.dtype}, the model takes {tensor.dtype}",
                hint=f"convert it with .astype({element!r})",
            )
    if isinstance(value, list):
        return items
    if element != tensor.dtype:  # an optional, of whose shape nothing is written
        return items[0]
    require_shape(tensor, value.shape, sizes)
    return items[0]


def _cannot_write(path: Path, error: OSError) -> MachineError:
    return MachineError(
        "output-unwritable", f"cannot write {path}: {error.strerror}", hint="check permissions and space"
    )
