"""A running head against the record of the build: one question, of which it is known what it has to answer.

The stages' golden checks lie in their bundles, and one's outputs are the next one's inputs; so from the inputs of the
first to the outputs of the last they are one question to the whole pipeline, asked here as a client asks. Each stage
may be off by its bound, a share of its largest value; along a pipeline such shares add up as independent errors do, by
their squares. Tokens are compared only where the best is further ahead of the others than that, log-probabilities
always.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ruvrun import client
from ruvrun.bundle import HEAD, StageSpec, load_spec, require_bundles
from ruvrun.elements import STRING, Value, element_of, is_float, largest_difference, values_of
from ruvrun.errors import InputError, IntegrityError, UnreachableError
from ruvrun.executors import Array
from ruvrun.manifest import Manifest, load_manifest
from ruvrun.npz import read_npz
from ruvrun.openai.scores import shown
from ruvrun.pipeline.selfcheck import largest_of
from ruvrun.placement import manifest_path

TOP = 5
_MOST = 20


@dataclass(frozen=True)
class Record:
    """What the build asked of its stages in a row, ``inputs``, and what came out at their ends, ``outputs``.

    ``share`` is how far a float may be from the record, of the largest absolute value of its output.
    """

    manifest: Manifest
    directory: Path
    inputs: Mapping[str, Value]
    outputs: Mapping[str, Value]
    share: float


def read_record(path: Path) -> Record:
    """The record of a whole build: ``path`` is its manifest, with all bundles beside it.

    Raises:
        InputError: bundles are missing, or one of them has no golden check.
    """
    path = manifest_path(path)
    manifest = load_manifest(path)
    bundles = require_bundles(path, manifest, [placed.node for placed in manifest.pipeline[0].stages])
    inputs: dict[str, Value] = {}
    outputs: dict[str, Value] = {}
    last: dict[str, Value] = {}
    shares: list[float] = []
    for placed in manifest.pipeline[0].stages:
        spec = load_spec(bundles[placed.node])
        stored = _stored(bundles[placed.node], spec)
        last = {name.removeprefix("out."): value for name, value in stored.items() if name.startswith("out.")}
        inputs = {name.removeprefix("in."): value for name, value in stored.items() if name.startswith("in.")} | inputs
        outputs |= last
        assert spec.golden is not None
        shares.append(spec.golden.bound / largest_of(spec, last))
    if manifest.program.kind == "graph":
        wanted = {tensor.name for tensor in manifest.program.inputs}
        inputs = {name: value for name, value in inputs.items() if name in wanted}
    else:
        inputs = {"input_ids": inputs["input_ids"]}
        outputs = last
    head = bundles.get(manifest.head.node, path.parent)
    return Record(manifest, head / HEAD, inputs, outputs, math.hypot(*shares))


def check_answer(url: str, record: Record, key: str | None) -> dict[str, Any]:
    """Ask the head at ``url`` what the build was asked; how near its answer is, as JSON.

    Raises:
        IntegrityError: the answer is another than the record's.
        UnreachableError: nobody answers there, or it serves another build.
    """
    body = client.health(url)
    if body.get("id") != record.manifest.id:
        raise UnreachableError(
            "other-build",
            f"the head at {url} serves another build",
            context=[f"it serves {str(body.get('id'))[:12]}, the record is of {record.manifest.id[:12]}"],
            hint="deliver this build, or give the manifest of the other",
        )
    found = _decoder(url, record, key) if record.manifest.program.kind == "decoder" else _graph(url, record, key)
    return {"id": record.manifest.id, "share": record.share, **found}


def _stored(bundle: Path, spec: StageSpec) -> Mapping[str, Value]:
    if spec.golden is None:
        raise InputError("record-missing", f"{bundle} has no golden check", hint="build it again")
    names = {f"{kind}.{port.name}" for kind in ("in", "out", "like") for port in (*spec.inputs, *spec.outputs)}
    try:
        return read_npz(bundle / spec.golden.file, names)
    except (OSError, ValueError) as error:
        raise InputError("record-missing", f"{bundle / spec.golden.file}: {error}", hint="build it again") from None


def _decoder(url: str, record: Record, key: str | None) -> dict[str, Any]:
    """One token after the record's prompt: is it the best, and are the best as probable as they were."""
    from ruvrun.tokenizer import Tokenizer

    tokenizer = Tokenizer(record.directory)
    (prompt,) = record.inputs.values()
    logits = _last_row(record.outputs)
    ends = list(record.manifest.program.eos)
    body = {
        "model": next(iter(client.models(url, key)), ""),
        "prompt": [int(token) for token in np.ravel(prompt)],
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": _MOST,
        "logit_bias": dict.fromkeys(map(str, ends), -100),  # an end has no text, and would not be told
    }
    told = [
        choice["logprobs"]
        for chunk in client.complete(url, "/v1/completions", body, key)
        for choice in chunk["choices"]
    ]
    scores = next((each for each in told if each and each["tokens"]), None)
    if scores is None:
        raise UnreachableError("answer-cut", f"{url} answered with no token", hint="see `ruvrun status`")
    bound = record.share * float(np.abs(logits).max())
    expected = logits - _logsumexp(logits)
    best = np.argsort(-expected)
    seen, lowest = scores["top_logprobs"][0], min(scores["top_logprobs"][0].values())
    largest = 0.0
    for token in best[:TOP]:
        text, wanted = shown(tokenizer.spell(int(token))), float(expected[token])
        if text in seen:
            largest = max(largest, abs(seen[text] - wanted))
        elif wanted > lowest + bound:
            raise _differs(f"{text!r} had log-probability {wanted:.3f}, and is not among the best {_MOST} now")
    if largest > bound:
        raise _differs(f"log-probabilities differ by {largest:.3g}, the bound is {bound:.3g}")
    allowed = np.delete(expected, ends)
    near = [int(token) for token in best if expected[token] >= allowed.max() - bound and token not in ends]
    if scores["tokens"][0] not in {shown(tokenizer.spell(token)) for token in near}:
        raise _differs(f"the next token was {shown(tokenizer.spell(near[0]))!r}, and is {scores['tokens'][0]!r} now")
    return {
        "largest_difference": largest,
        "bound": bound,
        "compared": "token" if len(near) == 1 else "log-probabilities",
    }


def _graph(url: str, record: Record, key: str | None) -> dict[str, Any]:
    """The outputs for the record's inputs; those left to chance are not compared."""
    served = client.graph(url, key)
    answer = client.infer(url, served, record.inputs, key)
    types = {tensor.name: element_of(tensor.dtype) for tensor in record.manifest.program.outputs}
    largest, compared = 0.0, []
    for name in sorted(types.keys() & record.outputs.keys()):
        wanted, found = record.outputs[name], answer.get(name)
        if not isinstance(wanted, np.ndarray):
            continue
        if not isinstance(found, np.ndarray) or found.shape != wanted.shape:
            raise _differs(f"{name} should be {wanted.dtype} {list(wanted.shape)}")
        compared.append(name)
        if types[name] == STRING:
            if (wanted != found).any():
                raise _differs(f"{name} holds other texts")
            continue
        difference = largest_difference(wanted, found, types[name])
        bound = record.share * _largest(wanted, types[name]) if is_float(types[name]) else 0.0
        if not difference <= bound:
            raise _differs(f"{name} differs by {difference:.3g}, the bound is {bound:.3g}")
        largest = max(largest, difference)
    return {"largest_difference": largest, "bound": record.share, "compared": ", ".join(compared)}


def _largest(value: Array, dtype: str) -> float:
    """The largest finite absolute value."""
    values = np.abs(values_of(value, dtype))
    return float(values.max(initial=0.0, where=np.isfinite(values)))


def _last_row(outputs: Mapping[str, Value]) -> Array:
    (logits,) = outputs.values()
    assert isinstance(logits, np.ndarray)
    row: Array = logits.reshape(-1, logits.shape[-1])[-1].astype(np.float64)
    return row


def _logsumexp(values: Array) -> float:
    top = float(values.max())
    return top + float(np.log(np.exp(values - top).sum()))


def _differs(what: str) -> IntegrityError:
    return IntegrityError(
        "answer-differs",
        "the fleet does not answer what the build answered",
        context=[what],
        hint="`ruvrun doctor --self-check` on each node says which of them computes something else",
    )
