"""Costs and fleets that cannot be right, given on the command line: one error each, that says what to do instead."""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper

from ruvcompile.cli import run
from ruvrun.costs import dump_costs, load_costs
from tests.compiler.builds import build
from tests.graphs import make_model, tensor, weight
from tests.models import write_tiny_gguf

NODE = "[[node]]\nname = '{}'\ntarget = 'host'\n{}\n"
A, B = NODE.format("a", "{}"), NODE.format("b", "{}")


def chain(path: Path, *operators: str, width: int = 640) -> Path:
    """Some operators one after the other, and a product with a matrix of ``width`` x ``width`` floats in the middle."""
    nodes, value = [], "x"
    for number, operator in enumerate([*operators[:1], "MatMul", *operators[1:]]):
        inputs = [value, "w"] if operator == "MatMul" else [value]
        value = f"v{number}"
        nodes.append(helper.make_node(operator, inputs, [value], name=f"/part{number}/{operator.lower()}"))
    weights = [weight("w", np.ones((width, width)) / width)]
    onnx.save(make_model(nodes, [tensor("x", [1, width])], [tensor(value, [1, width])], weights), path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and a table of its costs."""
    folder = tmp_path_factory.mktemp("bad")
    model = chain(folder / "model.onnx", "Relu", "Exp", "Neg")
    # A machine of its own, so that nothing is run as a pipeline afterwards.
    (folder / "fleet.toml").write_text(A.format("address = 'a.lan'\nthreads = 1"))
    build(model, folder / "built", fleet=str(folder / "fleet.toml"))
    (folder / "costs.toml").write_bytes((folder / "built/costs.toml").read_bytes())
    return folder


def refused(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, dict[str, object]]:
    """The exit code, what a person is told, and the same for a script."""
    line = ["plan", str(folder / "model.onnx"), *arguments]
    code = run(line)
    told = capsys.readouterr()
    assert told.out == ""
    assert "Traceback" not in told.err
    assert run([*line, "--json"]) == code
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["exit_code"] == code
    assert error["hint"]
    return code, told.err, error


def priced(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> tuple[int, str, dict[str, object]]:
    (tmp_path / "given.toml").write_text(text)
    return refused(folder, capsys, "--target", "host", "--costs", str(tmp_path / "given.toml"))


def fleeted(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> tuple[int, str, dict[str, object]]:
    (tmp_path / "fleet.toml").write_text(text)
    costs = str(folder / "costs.toml")
    return refused(folder, capsys, "--fleet", str(tmp_path / "fleet.toml"), "--costs", costs)


# Costs


def test_costs_of_another_model(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = chain(tmp_path / "other.onnx", "Tanh", "Sqrt", width=320)
    build(other, tmp_path / "other", fleet=str(folder / "fleet.toml"))
    text = (tmp_path / "other/costs.toml").read_text()
    code, told, error = priced(folder, tmp_path, capsys, text)
    assert (code, error["ref"]) == (3, "costs-of-another-model")
    assert "given.toml is of another model: none of its 3 parts is one of this" in told
    assert "it has /part0/tanh, /part1/matmul, /part2/sqrt" in told


@pytest.mark.parametrize("text", ["", "format = 1\n"])
def test_a_table_without_costs(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    code, told, error = priced(folder, tmp_path, capsys, text)
    assert (code, error["ref"]) == (3, "costs-empty")
    assert "given.toml holds no costs" in told


def test_costs_of_a_back_end_that_there_is_not(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody would ever ask for them, and all would be measured anew without a word."""
    known = (folder / "costs.toml").read_text()
    right, wrong = 'backend = "onnxruntime"', 'backend = "onxruntime"'
    for kind, text in (("unit", known.replace(right, wrong)), ("overhead", known.replace(right, wrong, 1))):
        code, told, error = priced(folder, tmp_path, capsys, text)
        assert (code, error["ref"]) == (3, "costs-backend-unknown")
        assert f"[[{kind}]] 0 is of the unknown back end 'onxruntime'" in told
        assert error["hint"] == "did you mean 'onnxruntime'?"


def test_costs_of_another_version_of_the_file(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (folder / "costs.toml").read_text().replace("format = 1", "format = 2")
    code, told, error = priced(folder, tmp_path, capsys, text)
    assert (code, error["ref"]) == (3, "format-unknown")
    assert "has format 2, this version reads 1" in told


def test_costs_of_another_version_of_the_back_end_are_told_of(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = re.sub(r'software = "[^"]*"', 'software = "onnxruntime 0.1"', (folder / "costs.toml").read_text())
    (tmp_path / "given.toml").write_text(text)
    line = ["plan", str(folder / "model.onnx"), "--fleet", str(folder / "fleet.toml")]
    line += ["--costs", str(tmp_path / "given.toml")]
    assert run(line) == 0
    assert "given.toml: measured with onnxruntime 0.1, here is " in capsys.readouterr().err


def test_costs_of_a_machine_of_another_kind_are_told_of(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (folder / "costs.toml").read_text()
    line = ["plan", str(folder / "model.onnx"), "--fleet", str(folder / "fleet.toml")]
    line += ["--costs", str(tmp_path / "given.toml")]
    for machine, told in ((platform.machine(), False), ("sparc64", True)):
        (tmp_path / "given.toml").write_text(re.sub(r'machine = "[^"]*"', f'machine = "{machine}, 2 cores"', given))
        assert run(line) == 0
        assert ("of host were measured on sparc64, 2 cores, and it has" in capsys.readouterr().err) is told


@pytest.mark.parametrize(
    ("old", "new", "ref", "says"),
    [
        (r"\nms = [\d.e-]+", "\nms = -1.0", "cost-wrong", "ms = -1.0"),
        (r"\nms = [\d.e-]+", "\nms = nan", "cost-wrong", "ms = nan"),
        (r"\nms = [\d.e-]+", "\nms = inf", "cost-wrong", "ms = inf"),
        (r"\nms = [\d.e-]+", "\nms = 1e300", "cost-wrong", "ms = 1e+300"),
        (r"\nms = [\d.e-]+", f"\nms = {'[' * 5000}", "toml-invalid", "not valid TOML"),
        (r"\nms = [\d.e-]+", "\nms = 'fast'", "toml-wrong", "given.toml"),
        (r"\nms = [\d.e-]+", "", "toml-wrong", "`ms`"),
        (r"\nms = ", "\nmilliseconds = ", "toml-wrong", "milliseconds"),
        (r"\nsource = 0", "\nsource = 7", "cost-source", "provenance 7"),
        (r"\nsource = 0", "\nresident_bytes = -5\nsource = 0", "cost-wrong", "resident_bytes = -5"),
        (r"^", "not toml\n", "toml-invalid", "not valid TOML"),
        (r"(?s)\n\[\[(?!.*\n\[\[).*", "", "cost-cut", "given.toml is not whole"),
    ],
)
def test_costs_that_are_none(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, ref: str, says: str
) -> None:
    text, count = re.subn(old, new, (folder / "costs.toml").read_text(), count=1)
    assert count == 1
    code, told, error = priced(folder, tmp_path, capsys, text)
    assert (code, error["ref"]) == (3, ref)
    assert says in told


def test_no_table_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told, error = refused(folder, capsys, "--target", "host", "--costs", "nowhere.toml")
    assert (code, error["ref"]) == (3, "file-missing")
    assert "nowhere.toml" in told


def test_a_table_that_lacks_a_part_is_completed_and_not_believed_to_be_free(folder: Path, tmp_path: Path) -> None:
    table = load_costs(folder / "costs.toml")
    kept = [row for row in table.unit if "matmul" not in row.label]
    assert len(kept) == len(table.unit) - 1
    (tmp_path / "given.toml").write_bytes(dump_costs(msgspec.structs.replace(table, unit=kept)))
    fleet = str(folder / "fleet.toml")
    build(folder / "model.onnx", tmp_path / "dist", fleet=fleet, costs=(str(tmp_path / "given.toml"),))
    found = {row.label: row for row in load_costs(tmp_path / "dist/costs.toml").unit}
    assert found["/part1/matmul"].ms > 0
    given = {row.label: row for row in load_costs(tmp_path / "given.toml").unit}
    assert found["/part0/relu"].ms == given["/part0/relu"].ms


# Fleets


@pytest.mark.parametrize(
    ("text", "code", "ref", "says"),
    [
        (A.format("memroy = '8GiB'"), 3, "key-unknown", "did you mean 'memory'?"),
        (A.format("") + "[[lonk]]\nlatency = '1ms'", 3, "key-unknown", "did you mean 'link'?"),
        (A.format("") + A.format(""), 3, "node-twice", "node 'a' is there twice"),
        (A.format("") + "[[link]]\nfrom = 'a'\nto = 'pi-9'", 3, "fleet-node-unknown", "'pi-9' is not a node"),
        (A.format("") + "[[link]]\nfrom = 'a'\nto = 'a'", 3, "fleet-wrong", "no link to itself"),
        (A.format("memory = '8 gigs'"), 3, "fleet-wrong", "'8 gigs' is not a number with a unit"),
        (A.format("") + "[[link]]\nbandwidth = 'fast'", 3, "fleet-wrong", "'fast' is not a number with a unit"),
        (A.format("") + "[[link]]\nlatency = '-1ms'", 3, "fleet-wrong", "'-1ms' is not a number with a unit"),
        (A.format("") + "[[link]]\nbandwidth = '0Mbit'", 3, "fleet-wrong", "'0Mbit' is not more than zero"),
        (A.format("") + f"[[link]]\nbandwidth = '0.{'0' * 300}1bit'", 3, "fleet-wrong", "less than 8bit/s"),
        (A.format("memory = '0'"), 3, "fleet-wrong", "'0' is not more than zero"),
        (
            A.format("zone = 'lab'") + "[require]\nzone = ['street']\n[[place]]\nmatch = '/part0/*'\nzone = 'lab'",
            4,
            "fleet-rejected",
            "a: require.zone, wanted street, has lab",
        ),
        (A.format("").replace("host", "hsot"), 2, "target-unknown", "did you mean 'host'?"),
        (A.format("") + "[[place]]\nmatch = '/prat0/*'\non = ['a']", 3, "place-unmatched", "did you mean '/part0/*'?"),
        (A.format("cpus = [0, 9999]"), 3, "cpus-missing", "node a is a process of this machine on core 9999, which"),
        (A.format("") + "[require]\nzone = 'lab'", 4, "fleet-rejected", "a: require.zone, wanted lab, has nothing"),
    ],
)
def test_fleets_that_cannot_be(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, code: int, ref: str, says: str
) -> None:
    found, told, error = fleeted(folder, tmp_path, capsys, text)
    assert (found, error["ref"]) == (code, ref)
    assert says in told


def test_cores_of_another_machine_are_its_own(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(A.format("address = 'a.lan'\nthreads = 1\ncpus = [9999]"))
    line = ["plan", str(folder / "model.onnx"), "--fleet", str(tmp_path / "fleet.toml")]
    assert run([*line, "--costs", str(folder / "costs.toml")]) == 0


def test_several_mistakes_are_one_error(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = A.format("memroy = '8GiB'") + A.format("port = 0") + "[[link]]\nfrom = 'a'\nto = 'c'\n"
    code, told, _ = fleeted(folder, tmp_path, capsys, text)
    assert code == 3
    assert told.count("error[") == 1
    for says in ("did you mean 'memory'?", "port = 0", "there twice", "'c' is not a node"):
        assert says in told


def test_too_few_nodes_are_left(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = A.format("zone = 'lab'") + B.format("") + "[require]\nzone = 'lab'"
    (tmp_path / "fleet.toml").write_text(text)
    code, told, error = refused(folder, capsys, "--fleet", str(tmp_path / "fleet.toml"), "--stages", "2")
    assert (code, error["ref"]) == (4, "stages-over-nodes")
    assert "2 stages need 2 nodes, the fleet has 1 that may be used" in told
    assert "b: require.zone, wanted lab, has nothing" in told


def test_rules_that_no_cut_keeps(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first and the last part on a, the one between on b: a node holds one stage."""
    ends = "".join(f"[[place]]\nmatch = '/part{part}/*'\non = ['a']\n" for part in (0, 3))
    text = A.format("") + B.format("") + ends + "[[place]]\nmatch = '/part1/*'\non = ['b']\n"
    code, told, error = fleeted(folder, tmp_path, capsys, text)
    assert (code, error["ref"]) == (4, "fleet-rejected")
    assert "no cut of this model has every part where it may be" in told
    assert "a: place /part1/*, wanted b, has a" in told
    assert "b: place /part3/*, wanted a, has b" in told


def test_a_fleet_that_cannot_hold_the_model(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is missing, on which node, and what would make it fit."""
    model = chain(tmp_path / "large.onnx", "Relu", "Exp", width=2048)  # 16 MiB of weights
    text = A.format("address = 'a.lan'\nmemory = '80MiB'\nreserve = '1MiB'")
    (tmp_path / "fleet.toml").write_text(text)
    code = run(["plan", str(model), "--fleet", str(tmp_path / "fleet.toml")])
    told = capsys.readouterr().err
    assert code == 4
    assert "error[fleet-memory-short]: stage 0 needs " in told
    assert " on a, which has 79.0 MiB usable" in told
    assert "80.0 MiB installed, 1.0 MiB reserved" in told
    assert "hint: use nodes with more memory" in told


def test_what_would_make_it_fit_is_found_by_trying(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf", layers=3, context=4096)
    text = A.format("address = 'a.lan'\nthreads = 1\nmemory = '181MiB'\nreserve = '1MiB'")
    (tmp_path / "fleet.toml").write_text(text)
    build(model, tmp_path / "built", fleet=str(tmp_path / "fleet.toml"), context=64)
    line = ["plan", str(model), "--costs", str(tmp_path / "built/costs.toml"), "--fleet", str(tmp_path / "fleet.toml")]
    line += ["--context", "4096"]
    capsys.readouterr()
    assert run([*line, "--streams", "64"]) == 4
    told = capsys.readouterr().err
    assert re.search(r"key/value [\d.]+ MiB \(64 streams x 4096 tokens\)", told)
    hint = told[told.index("hint: ") :]
    context, streams = re.search(r"--context (\d+)", hint), re.search(r"--streams (\d+)", hint)
    more = re.search(r"(\d+) more nodes? like a", hint)
    assert context and streams and more
    assert run([*line[:-1], context.group(1), "--streams", "64"]) == 0
    assert run([*line, "--streams", streams.group(1)]) == 0
    grown = [text.replace("'a", f"'a{number}") for number in range(1 + int(more.group(1)))]
    (tmp_path / "fleet.toml").write_text("".join(grown))
    assert run([*line, "--streams", "64"]) == 0


def test_only_what_works_here_is_measured_here(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["profile", str(folder / "model.onnx"), "-o", str(tmp_path / "costs.toml")]
    for nodes, said in (
        (["host", "--nodes", "a,b"], "a is another machine, a host"),
        (["pi5"], "another machine, a pi5"),
    ):
        assert run([*line, "--target", *nodes]) == 2
        told = capsys.readouterr().err
        assert "error[profile-elsewhere]" in told
        assert said in told
        assert "hint: say how many work here, as in --target host --nodes " in told


# Options of other models


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["--context", "64"], "--context says nothing about"),
        (["--prompt-tokens", "8"], "--prompt-tokens says nothing about"),
        (["--kv-type", "f32"], "--kv-type says nothing about"),
        (["--link-type", "f16"], "--link-type says nothing about"),
        (["--quant", "int8"], "--quant int8 says nothing about"),
        (["--activations", "float"], "--activations says nothing about"),
        (["--simulate", "--max-tokens", "3", "--context", "9"], "--context, --max-tokens says nothing about"),
    ],
)
def test_what_only_decoders_have_is_not_passed_over_for_a_graph(
    folder: Path, capsys: pytest.CaptureFixture[str], asked: list[str], says: str
) -> None:
    code, told, error = refused(folder, capsys, "--target", "host", "--costs", str(folder / "costs.toml"), *asked)
    assert (code, error["ref"]) == (2, "option-of-other-models")
    assert says in told
    assert "which is no decoder" in told


def test_a_decoder_has_no_open_shapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf", layers=1)
    assert run(["plan", str(model), "--target", "host", "--shape", "ids=1x8"]) == 2
    assert "--shape says nothing about" in capsys.readouterr().err
