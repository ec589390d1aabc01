"""Flags over ruvcompile.toml over defaults, and every mistake as one clear error."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruvcompile.errors import InputError, RuvError, UsageError
from ruvcompile.options import Options, resolve
from ruvcompile.quantities import parse_rate, parse_size, parse_time, show_bytes

GIB = 2**30


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return str(path)


def _resolve(tmp_path: Path, **flags: Any) -> Options:
    return resolve(flags, tmp_path)


def _fleet(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text("format = 1\n" + text)
    return path


# Merging


def test_defaults_are_applied_and_noted(tmp_path: Path, model: str) -> None:
    options = _resolve(tmp_path, model=model, target="host")
    assert (options.quant, options.objective, options.prompt_tokens) == ("auto", "throughput", 512)
    assert (options.context, options.streams, options.kv_type, options.stages) == (None, None, None, None)
    assert options.output == Path("dist")
    assert dict(options.defaults) == {
        "nodes": "1",
        "quant": "auto",
        "activations": "int8",
        "objective": "throughput",
        "prompt-tokens": "512",
        "output": "dist",
    }


def test_what_was_given_is_not_noted_as_a_default(tmp_path: Path, model: str) -> None:
    options = _resolve(tmp_path, model=model, target="host", nodes="2", quant="int4", output="out")
    assert {name for name, _ in options.defaults} == {"objective", "prompt-tokens", "activations"}


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path: Path, model: str) -> None:
    (tmp_path / "ruvcompile.toml").write_text(
        'model = "model.gguf"\ntarget = "pi5"\nnodes = 4\nquant = "int8"\nprompt-tokens = 64\ncosts = "c.toml"\n'
    )
    (tmp_path / "c.toml").write_text("")
    options = _resolve(tmp_path, quant="none")
    assert options.model == tmp_path / "model.gguf"
    assert [node.name for node in options.fleet.nodes] == ["pi5-0", "pi5-1", "pi5-2", "pi5-3"]
    assert (options.quant, options.prompt_tokens) == ("none", 64)
    assert options.costs == (tmp_path / "c.toml",)


def test_a_fleet_flag_sets_aside_the_target_of_the_file(tmp_path: Path, model: str) -> None:
    (tmp_path / "ruvcompile.toml").write_text('target = "pi5"\nnodes = 4\n')
    fleet = _fleet(tmp_path, '[[node]]\nname = "a"\ntarget = "host"\n')
    options = _resolve(tmp_path, model=model, fleet=str(fleet))
    assert [node.name for node in options.fleet.nodes] == ["a"]


def test_keys_lie_beside_the_fleet_file_else_in_the_build(tmp_path: Path, model: str) -> None:
    fleet = _fleet(tmp_path, '[[node]]\nname = "a"\ntarget = "host"\n')
    assert _resolve(tmp_path, model=model, fleet=str(fleet)).keys == tmp_path / "fleet.keys"
    assert _resolve(tmp_path, model=model, target="host", output="out").keys == Path("out/fleet.keys")


def test_shapes(tmp_path: Path, model: str) -> None:
    options = _resolve(tmp_path, model=model, target="host", shape=("x=1x3x640x640", "n=scalar", "y=7"))
    assert options.shapes == {"x": (1, 3, 640, 640), "n": (), "y": (7,)}


@pytest.mark.parametrize(
    ("flags", "ref", "code", "says"),
    [
        ({}, "target-missing", 2, "--target host"),
        ({"target": "host", "model": ""}, "model-missing", 2, "ruvcompile build MODEL"),
        ({"target": "host", "model": "nowhere.gguf"}, "file-missing", 3, "nowhere.gguf"),
        ({"target": "host", "model": "org/name"}, "file-missing", 3, "hub"),
        ({"target": "host", "model": "https://host/org/name"}, "file-missing", 3, "hub"),
        ({"target": "host", "quant": "int5"}, "quant-unknown", 2, "did you mean 'int"),
        ({"target": "host", "objective": "latenzy"}, "objective-unknown", 2, "did you mean 'latency'"),
        ({"target": "host", "nodes": "0"}, "nodes-invalid", 2, "at least 1"),
        ({"target": "host", "nodes": "-2"}, "nodes-invalid", 2, "at least 1"),
        ({"target": "host", "nodes": "99999"}, "nodes-invalid", 2, "more than one fleet may have"),
        ({"target": "host", "nodes": "1.5"}, "nodes-invalid", 2, "'1.5' is not a host name"),
        ({"target": "host", "nodes": "2,5"}, "nodes-invalid", 2, "'2' is not a host name"),
        ({"target": "host", "nodes": "10.0.0.300"}, "nodes-invalid", 2, "host name"),
        ({"target": "host", "nodes": "a,a"}, "nodes-invalid", 2, "twice"),
        ({"target": "host", "nodes": "a,,b"}, "nodes-invalid", 2, "host name"),
        ({"target": "host", "nodes": "--2"}, "nodes-invalid", 2, "host name"),
        ({"target": "host", "nodes": "\u00b2"}, "nodes-invalid", 2, "host name"),
        ({"target": "host", "stages": 0}, "stages-invalid", 2, "1 or more"),
        ({"target": "host", "name": "a\nb"}, "name-invalid", 2, "nothing invisible"),
        ({"target": "host", "name": "x" * 3000}, "name-invalid", 2, "at most 200"),
        ({"target": "host", "context": -1}, "context-invalid", 2, "--context -1"),
        ({"target": "host", "streams": 100_001}, "streams-invalid", 2, "--streams 100001 is more than 100000"),
        ({"target": "host", "stages": 10**400}, "stages-invalid", 2, "is more than 2147483647"),
        ({"target": "host", "costs": ("none.toml",)}, "file-missing", 3, "none.toml"),
        ({"target": "host", "inputs": "none.npz"}, "file-missing", 3, "none.npz"),
        ({"target": "host", "shape": ("x:1",)}, "shape-invalid", 2, "NAME=SIZES"),
        ({"target": "host", "fleet": "fleet.toml"}, "fleet-and-target", 2, "contradict"),
        ({"fleet": "no.toml"}, "file-missing", 3, "no.toml"),
        ({"target": "host", "sign": "key"}, "not-in-this-version", 2, "--sign"),
        ({"target": "host", "wheels": "3.11,4"}, "wheels-invalid", 2, "--wheels '4'"),
        ({"target": "host", "allow_download": True}, "not-in-this-version", 2, "--allow-download"),
        ({"target": "host", "users": 30}, "users-alone", 2, "--simulate"),
        ({"target": "host", "max_tokens": 64}, "max-tokens-alone", 2, "--simulate"),
        ({"target": "host", "simulate": True, "max_tokens": 0}, "max-tokens-invalid", 2, "1 or more"),
        ({"target": "host", "simulate": True, "users": 0}, "users-invalid", 2, "1 or more"),
        ({"target": "host", "simulate": True, "users": 10**9}, "users-invalid", 2, "100000"),
        ({"target": "host", "cut": ""}, "cut-missing", 2, "--cut says nothing"),
        ({"target": "host", "output": ""}, "output-missing", 2, "-o says nothing"),
        ({"target": "host", "output": "dist\udcff"}, "path-not-text", 2, "-o is '"),
        ({"target": "host", "output": "a\udcff/dist"}, "path-not-text", 2, "/a\\udcff/dist', which is no text"),
    ],
)
def test_one_clear_error(tmp_path: Path, model: str, flags: dict[str, Any], ref: str, code: int, says: str) -> None:
    with pytest.raises(RuvError) as caught:
        resolve({"model": model} | flags, tmp_path)
    assert (caught.value.ref, caught.value.exit_code) == (ref, code)
    assert says in str(caught.value)


def test_all_problems_are_told_at_once(tmp_path: Path, model: str) -> None:
    with pytest.raises(UsageError) as caught:
        _resolve(tmp_path, model=model, target="host", quant="int5", objective="speed", streams=0)
    assert len(caught.value.context) == 3


def test_an_unknown_key_of_the_file_is_not_ignored(tmp_path: Path, model: str) -> None:
    (tmp_path / "ruvcompile.toml").write_text('qant = "int4"\n')
    with pytest.raises(InputError, match="qant") as caught:
        _resolve(tmp_path, model=model, target="host")
    assert caught.value.hint == "did you mean 'quant'?"


@pytest.mark.parametrize(("kind", "ref"), [("folder", "file-unreadable"), ("link", "file-missing")])
def test_a_file_that_cannot_be_read_is_not_ignored(tmp_path: Path, model: str, kind: str, ref: str) -> None:
    path = tmp_path / "ruvcompile.toml"
    if kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("nowhere")
    with pytest.raises(InputError, match=str(path)) as caught:
        _resolve(tmp_path, model=model, target="host")
    assert caught.value.ref == ref


def test_a_simulation_is_asked_for_with_its_users(tmp_path: Path, model: str) -> None:
    (tmp_path / "ruvcompile.toml").write_text("simulate = true\nusers = 30\n")
    options = _resolve(tmp_path, model=model, target="host")
    assert (options.simulate, options.users) == (True, 30)
    assert _resolve(tmp_path, model=model, target="host", users=3).users == 3


@pytest.mark.parametrize(
    "line",
    [
        "cut = 5",
        "simulate = 1",
        "costs = [1]",
        "inputs = 5",
        "name = 7",
        "new-keys = 'no'",
        "shape = 5",
        "nodes = 2.0",
        "target = ['a']",
        "cut = ''",
        "cut = []",
        "quant = ''",
        "nodes = []",
    ],
)
def test_a_value_of_the_wrong_kind_in_the_file_is_told(tmp_path: Path, model: str, line: str) -> None:
    (tmp_path / "ruvcompile.toml").write_text(line + "\n")
    with pytest.raises(InputError) as caught:
        _resolve(tmp_path, model=model, target="host")
    assert caught.value.ref == "configuration-wrong"
    assert line.split(" =")[0] in caught.value.message


# Units


def test_units() -> None:
    assert parse_size("8GiB") == 8 * GIB
    assert parse_size("2 GB") == 2_000_000_000
    assert parse_size(4096) == 4096
    assert parse_rate("1Gbit") == parse_rate("1Gbit/s") == 125e6
    assert parse_time("0.2ms") == pytest.approx(2e-4)
    assert parse_time("0ms") == 0
    assert show_bytes(3.6 * GIB) == "3.6 GiB"


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "1e3GiB", "8GiBs", "1Gbit", "1 2GiB", "0", "9" * 400])
def test_what_is_not_a_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"not"):
        parse_size(text)


@pytest.mark.parametrize(
    ("parse", "text", "says"),
    [
        (parse_size, "2000000TiB", "more than any machine has"),
        (parse_rate, "7bit", "less than 8bit/s"),
        (parse_rate, f"0.{'0' * 300}1Gbit", "less than 8bit/s"),
        (parse_time, "3601s", "more than an hour"),
        (parse_time, f"{'9' * 300}ns", "more than an hour"),
    ],
)
def test_what_no_machine_and_no_link_has(parse: Callable[[str], float], text: str, says: str) -> None:
    """Sums and shares of such numbers would be no numbers."""
    with pytest.raises(ValueError, match=says):
        parse(text)
    assert (parse_size("1048576TiB"), parse_rate("8bit"), parse_time("3600s")) == (2**60, 1.0, 3600.0)


@given(st.text(max_size=12))
def test_no_text_breaks_the_parsers(text: str) -> None:
    for parse in (parse_size, parse_rate, parse_time):
        with suppress(ValueError):
            assert parse(text) >= 0


def test_pythons(tmp_path: Path, model: str) -> None:
    given = {"model": model, "target": "pi5"}
    assert resolve({**given, "wheels": "3.13,3.9, 3.11,3.13"}, tmp_path).wheels == ("3.9", "3.11", "3.13")
    assert resolve(given, tmp_path).wheels == ()
    (tmp_path / "ruvcompile.toml").write_text('wheels = ["3.12"]\n')
    assert resolve(given, tmp_path).wheels == ("3.12",)
