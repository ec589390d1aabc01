"""One request from the command line: what goes in is checked, what comes out appears whole."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from click.testing import CliRunner

from ruvrun import client, status
from ruvrun.cli import cli
from ruvrun.errors import InputError, MachineError, UnreachableError, UsageError
from ruvrun.frames import Sampling, State
from ruvrun.manifest import Manifest, Tensor
from ruvrun.run import Prompt, ask, ask_over_http, read_inputs, run_over_http, sizes_of, write_outputs
from ruvrun.server import build_app
from ruvrun.tokenizer import Tokenizer
from tests.runtime.builds import write_build
from tests.runtime.driving import driving
from tests.runtime.fake_ring import WAIT, fake_manifest
from tests.runtime.fronts import ScriptedDriver, manifest_of, served
from tests.runtime.graph_heads import serving
from tests.runtime.heads import byte_level, write_head


def graph(*inputs: tuple[str, str, list[int | str]]) -> Manifest:
    manifest = fake_manifest(["a"], "graph")
    tensors = [Tensor(name=name, dtype=dtype, shape=shape) for name, dtype, shape in inputs]
    return msgspec.structs.replace(manifest, program=msgspec.structs.replace(manifest.program, inputs=tensors))


MODEL = graph(("x", "float32", ["n", 3]), ("y", "int64", ["n"]))
X, Y = np.zeros((4, 3), np.float32), np.zeros(4, np.int64)


def save(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_inputs_may_lie_in_several_files(tmp_path: Path) -> None:
    found = read_inputs([save(tmp_path / "x.npz", x=X), save(tmp_path / "y.npz", y=Y)], MODEL)
    assert sorted(found) == ["x", "y"]


@pytest.mark.parametrize(
    ("arrays", "ref"),
    [
        ({"x": X}, "input-missing"),
        ({"x": X, "y": Y, "xx": X}, "input-unknown"),
        ({"x": X.astype(np.float64), "y": Y}, "input-type-wrong"),
        ({"x": X[:, :2], "y": Y}, "input-shape-wrong"),
        ({"x": X[0], "y": Y}, "input-shape-wrong"),
        ({"x": X[:2], "y": Y}, "input-shape-wrong"),
    ],
)
def test_what_the_model_does_not_take_is_refused(tmp_path: Path, arrays: dict[str, Any], ref: str) -> None:
    with pytest.raises(InputError) as caught:
        read_inputs([save(tmp_path / "in.npz", **arrays)], MODEL)
    assert caught.value.ref == ref
    assert caught.value.hint


def test_the_same_name_twice_is_refused(tmp_path: Path) -> None:
    paths = [save(tmp_path / "1.npz", x=X, y=Y), save(tmp_path / "2.npz", x=X)]
    with pytest.raises(InputError, match="more than one"):
        read_inputs(paths, MODEL)


def test_what_is_no_npz_is_refused(tmp_path: Path) -> None:
    text, single, pickled = tmp_path / "a.npz", tmp_path / "b.npy", tmp_path / "c.npz"
    text.write_text("hello")
    np.save(single, X)
    np.savez(pickled, x=np.array([{}], dtype=object))
    cut = tmp_path / "d.npz"
    cut.write_bytes(save(tmp_path / "whole.npz", x=X).read_bytes()[:100])
    for path in (text, single, pickled, cut):
        with pytest.raises(InputError):
            read_inputs([path], MODEL)
    with pytest.raises(InputError) as caught:
        read_inputs([tmp_path / "none.npz"], MODEL)
    assert caught.value.ref == "file-missing"


def test_what_numpy_has_no_type_for_is_read_by_the_same_rules(tmp_path: Path) -> None:
    model = graph(
        ("t", "string", ["n"]), ("b", "bfloat16", [2]), ("s", "seq(int64)", []), ("o", "optional(float32)", [])
    )
    bits = np.array([0x3F80, 0x4000], np.uint16)
    sequence = {"s[0]": Y, "s[1]": Y[:1]}
    found = read_inputs([save(tmp_path / "in.npz", t=np.array(["a", "ü"]), b=bits, **sequence)], model)
    assert found["t"].tolist() == ["a", "ü"]
    assert found["b"].tolist() == bits.tolist()
    assert [each.shape for each in found["s"]] == [(4,), (1,)]
    assert found["o"] is None
    write_outputs(tmp_path / "out.npz", found)
    assert sizes_of(found) == {"t": [2], "b": [2], "s": [[4], [1]], "o": None}
    good = {"t": np.array(["a"]), "b": bits, **sequence}
    for wrong in ({"t": X}, {"b": X[0, :2]}, {"s": Y}, {"t[0]": Y}, {"o": Y}):
        given = {name: array for name, array in good.items() if name[0] != next(iter(wrong))[0]} | wrong
        with pytest.raises(InputError) as caught:
            read_inputs([save(tmp_path / "wrong.npz", **given)], model)
        assert caught.value.ref == "input-type-wrong"


def test_outputs_appear_whole_and_leave_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out.npz"
    path.write_bytes(b"old")
    write_outputs(path, {"/model/x": X, "file": Y})
    with np.load(path) as found:
        assert found["file"].dtype == np.int64
        assert sorted(found.files) == ["/model/x", "file"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.npz"]


def test_outputs_that_cannot_be_written_are_the_machines_refusal(tmp_path: Path) -> None:
    with pytest.raises(MachineError):
        write_outputs(tmp_path / "none" / "out.npz", {"x": X})
    (tmp_path / "dir").mkdir()
    with pytest.raises(MachineError):
        write_outputs(tmp_path / "dir", {"x": X})
    assert [entry.name for entry in tmp_path.iterdir()] == ["dir"]


def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path) -> None:
    """As root, that would be the end of /dev/null."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(MachineError, match="no regular file"):
            write_outputs(tmp_path / name, {"x": X})
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()
    with pytest.raises(MachineError):
        write_outputs(tmp_path / ("n" * 300), {"x": X})


def test_outputs_go_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.npz").symlink_to("folder/out.npz")
    write_outputs(tmp_path / "link.npz", {"x": X})
    assert (tmp_path / "link.npz").is_symlink()
    with np.load(tmp_path / "folder" / "out.npz") as found:
        np.testing.assert_array_equal(found["x"], X)


GREEDY = Sampling(0.0, 1.0, 0)


def test_a_prompt_is_answered_piece_by_piece(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write_head(tmp_path, byte_level()))
    manifest = fake_manifest(["a", "b"])
    pieces: list[str] = []
    with driving() as (driver, ring):
        ring.ready()
        assert driver.wait_ready(WAIT)
        # The fake model has 61 tokens, so only bytes up to 57 of the alphabet can stand in a prompt.
        found = ask(driver, manifest, tokenizer, Prompt("!#%", False, 12, GREEDY), pieces.append)
    assert found["prompt_tokens"] == 3
    assert found["completion_tokens"] == len(found["tokens"])
    assert found["finish_reason"] == ("stop" if found["tokens"][-1] == 2 else "length")
    assert "".join(pieces) == found["text"] == tokenizer.decode(found["tokens"])


def test_a_lost_stage_ends_the_answer(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write_head(tmp_path, byte_level()))
    with driving() as (driver, ring):
        ring.ready()
        assert driver.wait_ready(WAIT)
        ring.hold = True
        ring.on_step = lambda: ring.inject(State("b", "lost", "gone"))
        with pytest.raises(UnreachableError, match="gone"):
            ask(driver, fake_manifest(["a", "b"]), tokenizer, Prompt("!", False, 3, GREEDY), print)


def chunks(*texts: str) -> Sequence[dict[str, Any]]:
    said = [{"choices": [{"delta": {"content": text}, "finish_reason": None}]} for text in texts]
    end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    return [*said, end, {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}]


def test_over_http_it_is_a_fold_over_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def complete(url: str, path: str, body: dict[str, Any], key: str | None) -> Sequence[dict[str, Any]]:
        asked.append({"url": url, "path": path, "key": key, **body})
        return chunks("Pa", "ris")

    monkeypatch.setattr(client, "models", lambda *_: ["model"])
    monkeypatch.setattr(client, "complete", complete)
    pieces: list[str] = []
    found = ask_over_http("http://h:1", Prompt("Capital?", True, 9, GREEDY), "secret", pieces.append)
    assert pieces == ["Pa", "ris"]
    assert json.loads(json.dumps(found)) == {
        "text": "Paris", "tokens": None, "prompt_tokens": 3, "completion_tokens": 2, "finish_reason": "stop",
    }  # fmt: skip
    assert asked[0]["path"] == "/v1/chat/completions"
    assert asked[0]["key"] == "secret"
    assert asked[0]["model"] == "model"


def test_an_answer_that_stops_early_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "models", lambda *_: ["model"])
    monkeypatch.setattr(client, "complete", lambda *_: chunks("Pa")[:1])
    with pytest.raises(UnreachableError):
        ask_over_http("http://h:1", Prompt("Capital?", True, 9, GREEDY), None, print)


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "localhost:abc", "http://:8000", "http://[::1", "ftp://a"])
def test_an_address_that_is_none_is_wrong_usage(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        client.base_url(url)
    assert caught.value.ref == "url-wrong"


@pytest.mark.parametrize("url", ["localhost", "pi-0.local:8000", "http://[::1]:8000/v1/", "https://a/health"])
def test_an_address_keeps_its_host_and_port(url: str) -> None:
    host = url.removeprefix("http://").removeprefix("https://").split("/")[0]
    assert client.base_url(url).split("://")[1] == host


def test_a_graph_is_run_by_a_running_head(tmp_path: Path) -> None:
    out = tmp_path / "out.npz"
    with serving({"alice": "secret"}) as (url, _, _):
        words = ["run", "--url", url, "--api-key", "secret", "--output", str(out), "--json", "--input"]
        found = CliRunner().invoke(cli, [*words, str(save(tmp_path / "in.npz", x=np.array([1, 2])))])
        assert json.loads(found.stdout) == {"output": str(out), "tensors": {"x": [2]}}
        with np.load(out) as arrays:
            assert arrays["x"].tolist() == [4, 8]
        for key, arrays, words_said in (
            ("secret", {"y": np.array([1])}, "no input 'y'"),
            ("secret", {"x": np.array([1.5])}, "'x' is FP64, the model takes INT64"),
            ("secret", {"x": np.array([-1])}, "x is negative"),
            ("wrong", {"x": np.array([1])}, "401: Incorrect API key"),
        ):
            with pytest.raises(InputError, match=words_said):
                run_over_http(url, arrays, key)


def test_the_inputs_for_a_head_elsewhere_are_held_against_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = write_build(tmp_path, addresses={"a": "127.0.0.1", "b": "127.0.0.1"}, kind="graph")
    with serving() as (url, _, _):
        monkeypatch.setattr(status, "find_head", lambda _: (url, None, "a"))
        path = str(save(tmp_path / "in.npz", x=np.array([1])))
        words = ["--output", str(tmp_path / "out.npz"), "--input", path]
        for line in (["run", *words], ["run", "--url", url, *words], ["bench", "--url", url, "--input", path]):
            found = CliRunner().invoke(cli, [*line, str(manifest)])
            assert isinstance(found.exception, InputError)
            assert found.exception.ref == "input-unknown"  # the manifest of this build has no inputs
        found = CliRunner().invoke(cli, ["run", str(manifest), "--prompt", "hello"])
        assert isinstance(found.exception, UsageError)
        assert found.exception.ref == "wrong-kind"


def test_a_decoder_takes_no_tensors_from_the_command_line(tmp_path: Path) -> None:
    tokenizer = Tokenizer(write_head(tmp_path, byte_level()))
    with (
        served(build_app(ScriptedDriver(), tokenizer, manifest_of(), api_keys={}, context=9)) as url,
        pytest.raises(InputError, match="tiny is a decoder"),
    ):
        run_over_http(url, {"x": X}, None)
