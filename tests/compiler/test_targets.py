"""The targets that come with the compiler are data, and that is sound; what a fleet and a node make of it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

import ruvrun
from ruvcompile.cli import run
from ruvcompile.cli.listing import targets_markdown
from ruvcompile.errors import InputError, RuvError, UsageError
from ruvcompile.fleet import Fleet, FleetNode, make_fleet
from ruvcompile.measure.scale import LIKE
from ruvcompile.options import Options
from ruvcompile.targets import (
    FIGURE_KINDS,
    FIGURES,
    Target,
    data_root,
    fleet_targets,
    load_target,
    requirements,
    target_names,
)
from ruvcompile.whole_targets import check_targets
from ruvrun.backends import BACK_ENDS
from tests.nodes import TARGETS

ROOT = Path(__file__).parents[2]
GIB = 2**30


def test_all_are_there_and_sound() -> None:
    assert target_names().keys() == set(TARGETS)
    assert check_targets() == []


def test_the_table_in_the_readme_is_theirs(capsys: pytest.CaptureFixture[str]) -> None:
    table = targets_markdown([load_target(name) for name in sorted(target_names())])
    assert f"\n{table}\n" in (ROOT / "README.md").read_text("utf-8"), "ruvcompile targets --markdown, into README.md"
    assert run(["targets", "--markdown"]) == 0
    assert capsys.readouterr().out == f"{table}\n"


@pytest.mark.parametrize("name", sorted(target_names()))
def test_what_a_target_says_can_be_done(name: str) -> None:
    target = load_target(name)
    assert set(target.backends) <= BACK_ENDS.keys()
    assert "none" in target.quants
    assert "int4" in target.quants or target.accelerator is not None
    assert target.installed > GIB
    for file in ("install.sh", "uninstall.sh", "ruvrun.service", "ruvrun.env", "README.md"):
        assert target.template(file + ".j2").is_file()
    for figure in target.figures:
        assert figure.source
        assert figure.date
        assert figure.kind in FIGURE_KINDS
        assert figure.unit == FIGURES[figure.name]
    if name != "host":
        assert target.pythons
        assert target.glibc
        assert target.pages
        assert target.figures, "say `scaled` from another target where nothing is known"


@pytest.mark.parametrize("name", sorted(target_names()))
def test_no_figure_of_any_target_goes_without_its_source_and_date(name: str, tmp_path: Path) -> None:
    shutil.copytree(data_root() / name, tmp_path / "mine")
    path = tmp_path / "mine" / "target.toml"
    text = path.read_text()
    told = list(re.finditer(r"^(source|date) = .*\n", text, re.MULTILINE))
    target = load_target("mine", tmp_path)
    assert len(told) == 2 * (len(target.figures) + (target.accelerator is not None))
    for line in told:
        for without in ("", f'{line[1]} = " "\n'):
            path.write_text(text[: line.start()] + without + text[line.end() :])
            with pytest.raises(InputError) as caught:
                load_target("mine", tmp_path)
            assert caught.value.ref == "target-wrong"


def test_the_pi_is_described_by_figures_with_a_source() -> None:
    target = load_target("pi5")
    assert (target.machine, target.cores) == ("aarch64", 4)
    peak, read = target.figure("memory_bandwidth_peak"), target.figure("memory_bandwidth")
    assert peak is not None
    assert read is not None
    assert (peak.kind, read.kind) == ("theoretical", "published")
    assert peak.value == pytest.approx(4267e6 * 4, rel=1e-2)
    assert read.value < peak.value
    assert {figure.name for figure in target.figures} & LIKE.keys() >= {"int4_matvec", "int4_matmat", "f32_matmat"}
    assert target.figure("wishes") is None


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        load_target("p15")
    assert caught.value.ref == "target-unknown"
    assert caught.value.hint == "did you mean 'pi5'?"


@pytest.mark.parametrize(
    ("backend", "head", "expected"),
    [
        ("onnxruntime", False, ["ruvrun[onnxruntime]"]),
        ("openvino", True, ["ruvrun[openvino]", "ruvrun[head]"]),
    ],
)
def test_a_node_installs_the_release_that_built_for_it(backend: str, head: bool, expected: list[str]) -> None:
    found = requirements(load_target("x86-64").on(backend), head=head)
    assert list(found) == [f"{each}=={ruvrun.__version__}" for each in expected]


# What a fleet asks of its targets


def _options(fleet: Fleet, **changes: object) -> Options:
    return replace(Options(Path("model.gguf"), fleet), **changes)  # type: ignore[arg-type]


def test_targets_of_a_fleet() -> None:
    fleet = Fleet((FleetNode("a", "pi5", "a"), FleetNode("b", "host")), "a")
    assert set(fleet_targets(_options(fleet, quant="int4"))) == {"pi5", "host"}


@pytest.mark.parametrize(
    ("changes", "ref"), [({"quant": "int2"}, "quant-unsupported"), ({"kv_type": "u8"}, "kv-type-unsupported")]
)
def test_what_a_target_cannot_do_is_refused(changes: dict[str, object], ref: str) -> None:
    with pytest.raises(RuvError) as caught:
        fleet_targets(_options(make_fleet("pi5", "2"), **changes))
    assert (caught.value.ref, caught.value.exit_code) == (ref, 2)
    assert "it has: " in (caught.value.hint or "")


def test_a_wheel_carries_the_targets(tmp_path: Path) -> None:
    program = (
        "import sys; from hatchling.builders.wheel import WheelBuilder;"
        "print(next(WheelBuilder(sys.argv[1]).build(directory=sys.argv[2], versions=['standard'])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(ROOT), str(tmp_path)], capture_output=True, text=True, check=True
    )
    names = zipfile.ZipFile(done.stdout.strip().splitlines()[-1]).namelist()
    assert "ruvcompile/_targets/pi5/target.toml" in names
    assert "ruvcompile/_targets/_shared/templates/install.sh.j2" in names
    assert not [name for name in names if name.startswith(("targets/", "tests/", "runtime/"))]


def test_a_target_with_one_of_its_back_ends_has_what_that_needs() -> None:
    both = load_target("x86-64")
    assert (both.backends, both.backend) == (("onnxruntime", "openvino"), "onnxruntime")
    one, other = both.on("onnxruntime"), both.on("openvino")
    assert (one.packages, one.kv_types) == (("ruvrun[onnxruntime]",), ("f32",))
    assert (other.packages, other.kv_types) == (("ruvrun[openvino]",), ("f32", "u8", "f16"))
    assert other.on("openvino") == other


def test_a_target_is_a_value() -> None:
    assert load_target("pi5") == load_target("pi5")
    assert isinstance(load_target("pi5"), Target)
