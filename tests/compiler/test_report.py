"""The report: one file that needs nothing else, the same for the same build, with a run beside the plan."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from ruvcompile import cli
from ruvcompile import compile as steps
from ruvcompile.errors import InputError, MachineError
from ruvrun.manifest import load_manifest
from tests.compiler.builds import build, snapshot
from tests.models import write_tiny_gguf

NAME = "<b>A & B</b>"
V1 = Path(__file__).parents[1] / "data" / "formats" / "v1"
RUN: dict[str, Any] = {
    "tokens_per_s": 1234.5678,
    "ttft_ms": {"p50": 1.0, "p95": 2.0},
    "streams": 4,
    "tokens": 256,
    "stages": [
        {"node": "host-0", "busy": 0.914, "wait": 0.086, "predicted_ms": 1.0, "measured_ms": 7.6543},
        {"node": "host-1", "busy": None, "wait": None, "predicted_ms": 1.0, "measured_ms": None},
    ],
    "bubble": 0.1,
    "verdict": "stage 0 on host-0 is the slowest",
}


class Text(HTMLParser):
    """All text, all tags that are left open, and all that a page would fetch."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.open, self.fetched = "", list[str](), list[str]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [f"{tag} {value}" for name, value in attrs if name in ("src", "href", "srcset", "action")]
        if tag not in ("meta", "br", "hr", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("report")
    model = write_tiny_gguf(folder / "tiny.gguf")
    return folder / "dist", build(model, folder / "dist", stages=2, name=NAME, measured=True, backend="onnxruntime")


@pytest.fixture(scope="module")
def run(built) -> dict[str, Any]:
    """``RUN``, on the nodes that the plan has chosen."""
    placed = load_manifest(built[0] / "manifest.toml").pipeline[0].stages
    stages = [stage | {"node": each.node} for stage, each in zip(RUN["stages"], placed, strict=True)]
    return RUN | {"stages": stages}


@pytest.fixture
def run_file(tmp_path, run) -> Path:
    (tmp_path / "bench.json").write_text(json.dumps(run))
    return tmp_path / "bench.json"


def read(output: Path) -> str:
    return (output / "report.html").read_text("utf-8")


def test_it_tells_the_plan(built) -> None:
    output, result = built
    page = Text(read(output))
    assert page.open == []
    for told in (result["verdict"], "host-0", "host-1", "onnxruntime", result["id"][:16], "Costs: measured. Links: "):
        assert told in page.text
    for stage in result["stages"]:
        assert f"{stage['predicted_ms']:.3f}" in page.text
    for label in ("embed", "layers.*.attn", "layers.*.mlp", "head", "GroupQueryAttention"):
        assert label in page.text
    assert f"KL {result['loss']['kl']:.4f}" in page.text
    assert "sends per token" in page.text


def test_it_needs_nothing_else(built) -> None:
    page = read(built[0])
    assert [where for where in Text(page).fetched if not where.startswith("a #")] == []
    for link in ("http:", "https:", "//", "@import", "<script"):
        assert link not in page.replace("<!doctype html>", "")
    assert set(re.findall(r"url\((.)", page)) <= {"#"}


def test_names_are_text_and_no_markup(built) -> None:
    assert "<b>" not in read(built[0])
    assert "<b>A & B</b>" in Text(read(built[0])).text


def test_written_again_it_is_the_same(built) -> None:
    output, _ = built
    before, figures = read(output), (output / "plan.json").read_bytes()
    assert steps.report(output / "manifest.toml", None) == output / "report.html"
    assert read(output) == before
    assert (output / "plan.json").read_bytes() == figures


def test_a_measured_build_from_its_own_table_is_the_same_to_the_byte(built, tmp_path) -> None:
    """Manifest, plan and report included. It is built into the place of a copy, so that it finds the keys."""
    copy = Path(shutil.copytree(built[0], tmp_path / "dist"))
    steps.report(copy / "manifest.toml", None)
    first = snapshot(copy)
    costs = shutil.copy(copy / "costs.toml", tmp_path / "given.toml")
    build(built[0].parent / "tiny.gguf", copy, stages=2, name=NAME, costs=(costs,), measured=True)
    second = snapshot(copy)
    assert second.keys() == first.keys()
    assert [name for name in first if second[name] != first[name]] == []


def test_a_run_stands_beside_the_plan(built, run_file) -> None:
    output, _ = built
    plain = read(output)
    assert "7.654" not in plain
    steps.report(output / "manifest.toml", run_file)
    page = Text(read(output))
    for told in ("7.654", "91 %", "unknown", "1,235", "4 streams", RUN["verdict"]):
        assert told in page.text
    assert page.open == []
    steps.report(output / "manifest.toml", None)
    assert read(output) == plain


@pytest.mark.parametrize(
    ("content", "ref"),
    [
        ("{", "json-wrong"),
        ("[]", "json-wrong"),
        ('{"runs": []}', "json-wrong"),
        ('{"stages": [{"busy": 1}]}', "json-wrong"),
        ('{"stages": []}', "run-of-another-build"),
        (lambda run: run | {"tokens_per_s": -1.0}, "json-wrong"),
        (lambda run: run | {"streams": 0}, "json-wrong"),
        (lambda run: run | {"ttft_ms": {"p50": -0.5, "p95": 1.0}}, "json-wrong"),
        (lambda run: run | {"stages": [stage | {"measured_ms": -2.0} for stage in run["stages"]]}, "json-wrong"),
        (lambda run: run | {"stages": [stage | {"busy": 1.5} for stage in run["stages"]]}, "json-wrong"),
        (lambda run: run | {"stages": run["stages"][::-1]}, "run-of-another-build"),
        (lambda run: run | {"stages": run["stages"][:1]}, "run-of-another-build"),
        (lambda run: run | {"id": "0" * 64}, "run-of-another-build"),
        (lambda run: run | {"tokens_per_s": None, "items_per_s": 5.0}, "run-of-another-build"),
    ],
)
def test_what_is_no_run_of_this_build(built, run, tmp_path, content, ref) -> None:
    before = read(built[0])
    (tmp_path / "bench.json").write_text(content if isinstance(content, str) else json.dumps(content(run)))
    with pytest.raises(InputError) as error:
        steps.report(built[0] / "manifest.toml", tmp_path / "bench.json")
    assert error.value.ref == ref
    assert error.value.hint
    assert read(built[0]) == before


def test_a_run_of_this_build_is_known_by_its_id(built, run, tmp_path) -> None:
    output, result = built
    (tmp_path / "bench.json").write_text(json.dumps(run | {"id": result["id"]}))
    steps.report(output / "manifest.toml", tmp_path / "bench.json")
    assert RUN["verdict"] in Text(read(output)).text
    steps.report(output / "manifest.toml", None)


def test_missing_files(built, tmp_path) -> None:
    for manifest, run in ((built[0] / "manifest.toml", tmp_path / "none.json"), (tmp_path / "none.toml", None)):
        with pytest.raises(InputError) as error:
            steps.report(manifest, run)
        assert error.value.ref == "file-missing"


def test_a_report_that_cannot_be_written_leaves_the_old_one(built, monkeypatch) -> None:
    before = read(built[0])

    def full(path: Path, _data: bytes) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(MachineError, match=r"cannot write .*report\.html: No space left"):
        steps.report(built[0] / "manifest.toml", None)
    assert read(built[0]) == before
    assert not list(built[0].glob(".*"))


def test_the_command_says_where_it_is(built, run_file, capsys) -> None:
    arguments = ["report", str(built[0] / "manifest.toml"), "--run", str(run_file), "--json"]
    assert cli.run(arguments) == 0
    assert json.loads(capsys.readouterr().out) == {"report": str(built[0] / "report.html")}


def test_a_build_of_the_first_version_is_reported(tmp_path) -> None:
    """``tests/data/formats/v1``: its plan.json has the figures of the plan and nothing else."""
    for name in ("manifest.toml", "costs.toml", "plan.json"):
        (tmp_path / name).write_bytes((V1 / name).read_bytes())
    steps.report(tmp_path / "manifest.toml", None)
    page = read(tmp_path)
    assert Text(page).open == []
    for told in ("tiny", "stage 1 · pi-1", "12,048", "slower", "layers.*.attn"):
        assert told in Text(page).text
    assert re.findall(r'<figure id="(\w+)"', page) == ["times", "memory", "choices"]
    stages = [{"node": name, "measured_ms": 7.6543} for name in ("pi-0", "pi-1")]
    (tmp_path / "bench.json").write_text(json.dumps({"tokens_per_s": 1234.5678, "stages": stages}))
    steps.report(tmp_path / "manifest.toml", tmp_path / "bench.json")
    assert "7.654" in Text(read(tmp_path)).text
    steps.report(tmp_path / "manifest.toml", None)
    assert read(tmp_path) == page
