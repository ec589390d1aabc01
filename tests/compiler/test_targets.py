"""Targets are data: what comes with the compiler is sound, and unsound data is refused with its reason."""

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
from ruvcompile.render import render_node
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
from tests.nodes import STAGE

ROOT = Path(__file__).parents[2]
GIB = 2**30


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder of targets with one in it, ``mine``, a copy of ``pi5``."""
    shutil.copytree(data_root() / "pi5", tmp_path / "mine")
    return tmp_path


def _edit(folder: Path, before: str, after: str) -> None:
    path = folder / "mine" / "target.toml"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


ALL = ("host", "x86-64", "arm64", "pi5", "pi4", "intel-cpu", "intel-gpu", "intel-npu", "pi5-hailo10h")


def test_all_are_there_and_sound() -> None:
    assert target_names().keys() == set(ALL)
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


def test_a_folder_of_ones_own_comes_first(own: Path) -> None:
    shutil.copytree(own / "mine", own / "host")
    assert load_target("mine", own).title == "Raspberry Pi 5"
    assert load_target("host", own).arch == "aarch64"
    assert load_target("x86-64", own).arch == "x86_64"


def test_a_template_of_ones_own_comes_first(own: Path) -> None:
    template = own / "mine" / "templates" / "ruvrun.env.j2"
    template.parent.mkdir()
    template.write_text("")
    assert load_target("mine", own).template("ruvrun.env.j2") == template
    assert load_target("mine", own).template("install.sh.j2").parent.parent.name == "_shared"


def test_nodes_could_not_be_named_after_a_name_with_spaces(own: Path) -> None:
    (own / "mine").rename(own / "my pi")
    (told,) = check_targets(own)
    assert "my pi: a folder of that name is no target" in str(told)
    with pytest.raises(InputError, match="no target"):
        load_target("my pi", own)


def test_a_folder_without_data_is_found(own: Path) -> None:
    (own / "mine" / "target.toml").rename(own / "mine" / "targte.toml")
    (own / "notes.txt").write_text("")
    (told,) = check_targets(own)
    assert "mine has no target.toml" in str(told)


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no directory"):
        target_names(tmp_path / "none")


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ('title = "Raspberry Pi 5"', "", "title is missing"),
        ('kv_types = ["f32"]', 'kv_types = ["f23"]', "unknown key/value type 'f23'"),
        ("backend =", "bakend =", "did you mean 'backends'?"),
        ('backend = "onnxruntime"', 'backends = ["onnxruntime", "opnvino"]', "unknown back end 'opnvino'"),
        ('backend = "onnxruntime"', "backends = []", "backends is empty"),
        ('quants = ["none", "int8", "int4"]', "quants = []", "quants is empty"),
        ('"2GiB"', '"2 gigs"', "'2 gigs' is not a number with a unit"),
        ('memory = ["8GiB", "2GiB", "4GiB", "16GiB"]', 'memory = "8GiB"', "memory = '8GiB' is not a list of sizes"),
        ('arch = "aarch64"', "arch = 64", "arch = 64 is not text in quotes"),
        ("golden_bound = 5e-2", 'golden_bound = "small"', "golden_bound = 'small'"),
        ("golden_bound = 5e-2", "golden_bound = 0", "golden_bound = 0"),
        ("cores = 4", "cores = 4.5", "cores = 4.5"),
        ("features = [", "features = [1, ", "features"),
        ('kind = "theoretical"', 'kind = "guessed"', "guessed"),
        ("source = ", "sauce = ", "say where a number is from"),
        ('date = "2026-11-30"', 'date = ""', "date is empty"),
        ('date = "2026-11-30"', 'date = "lately"', "date 'lately' is no day"),
        ('name = "int4_matvec"', 'name = "int4_matvek"', "did you mean 'int4_matvec'?"),
        ('name = "int4_matvec"', 'name = "int4_matmat"', "figure int4_matmat is there twice"),
        ('unit = "FLOP/s"', 'unit = "GFLOP/s"', "it is FLOP/s"),
        ("pythons = [", 'pythons = ["3", ', "pythons has '3'"),
        ('glibc = "2.36"', 'glibc = "new"', "glibc has 'new'"),
        ('pages = ["16KiB"]', 'pages = ["16KB"]', "pages has 16000 bytes"),
        ('packages = ["ruvrun[onnxruntime]"]', 'packages = ["ruvrun onnxruntime"]', "packages has"),
        ("value = 17.07e9", "value = 0", "value 0"),
        ("value = 17.07e9", "value = nan", "value nan"),
        ("format = 1", "format = 9", "format"),
        ("format = 1", "format = ", "not valid TOML"),
    ],
)
def test_unsound_data_is_refused(own: Path, before: str, after: str, says: str) -> None:
    _edit(own, before, after)
    with pytest.raises(InputError) as caught:
        load_target("mine", own)
    assert says in str(caught.value)
    assert [problem.ref for problem in check_targets(own)] == [caught.value.ref]


ACCELERATOR = (data_root() / "pi5-hailo10h" / "target.toml").read_text()


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("opset = 17", "", "accelerator: opset is missing"),
        ("opset = 17", "opsets = 17", "did you mean 'opset'?"),
        ('worth = ["Conv"', 'worth = ["Cnov"', "did you mean 'Conv'?"),
        ('result = "{part}.hef"', 'result = "out.hef"', "names no part"),
        ('command = "hailo"', 'command = ""', "command is empty"),
        ("[accelerator]", "[[accelerator]]", "accelerator is not a table"),
        ('source = "Hailo Dataflow', 'sauce = "Hailo Dataflow', "source is missing"),
    ],
)
def test_an_unsound_accelerator_is_refused(own: Path, before: str, after: str, says: str) -> None:
    (own / "mine" / "target.toml").write_text(ACCELERATOR)
    _edit(own, before, after)
    with pytest.raises(InputError) as caught:
        load_target("mine", own)
    assert says in str(caught.value)


# Targets of one's own


def test_one_of_ones_own_is_a_folder_where_the_command_is_given(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.move(own / "mine", own / "targets" / "mine")
    monkeypatch.chdir(own)
    assert target_names()["mine"] == Path("targets/mine")
    assert target_names().keys() == {*ALL, "mine"}
    assert run(["targets", "--check"]) == 0
    assert "mine" in capsys.readouterr().out
    (own / "targets" / "mine" / "target.toml").write_text("format = 1\nbackend = 'onnx-runtime'\n")
    assert run(["targets", "--check"]) == 3
    assert "did you mean 'onnxruntime'?" in capsys.readouterr().err


def test_a_template_with_a_hole_is_found(own: Path) -> None:
    folder = own / "mine" / "templates"
    folder.mkdir()
    (folder / "ruvrun.env.j2").write_text("PORT={{ prot }}\n")
    (problem,) = check_targets(own)
    assert problem.ref == "template-wrong"
    assert "'prot' is undefined" in str(problem)


def test_a_template_that_nothing_renders_is_found(own: Path) -> None:
    folder = own / "mine" / "templates"
    folder.mkdir()
    (folder / "ruvrun.evn.j2").write_text("")
    (problem,) = check_targets(own)
    assert (problem.ref, problem.hint) == ("template-unknown", "did you mean 'ruvrun.env.j2'?")


def test_what_is_the_whole_fleets_is_no_targets_own(own: Path) -> None:
    folder = own / "mine" / "templates" / "fleet"
    folder.mkdir(parents=True)
    (folder / "deliver.sh.j2").write_text("")
    (problem,) = check_targets(own)
    assert problem.ref == "template-unknown"


def test_files_of_ones_own_are_rendered(own: Path) -> None:
    _edit(own, "cores = 4", 'cores = 4\ndeploy = ["90-camera.rules"]')
    (problem,) = check_targets(own)
    assert problem.ref == "template-missing"
    (own / "mine" / "templates").mkdir()
    (own / "mine" / "templates" / "90-camera.rules.j2").write_text("# for {{ node }}\n")
    assert check_targets(own) == []
    assert render_node(load_target("mine", own), STAGE)["90-camera.rules"] == b"# for pi5-1\n"


def test_a_figure_is_scaled_from_a_target_that_there_is(own: Path) -> None:
    shutil.copy(data_root() / "pi4" / "target.toml", own / "mine" / "target.toml")
    assert check_targets(own) == []
    _edit(own, "pi5: int4_matmat", "pi6: int4_matmat")
    (problem,) = check_targets(own)
    assert "scaled from 'pi6', which is no target" in problem.message


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


def test_packages_of_ones_own_stay_as_they_are(own: Path) -> None:
    _edit(own, 'packages = ["ruvrun[onnxruntime]"]', 'packages = ["onnxruntime>=1.32,<2"]')
    found = requirements(load_target("mine", own), head=False)
    assert found == (f"ruvrun=={ruvrun.__version__}", "onnxruntime>=1.32,<2")


def test_figures_that_are_no_list_of_tables(own: Path) -> None:
    path = own / "mine" / "target.toml"
    path.write_text("figure = 5\n" + path.read_text().split("[[figure]]")[0])
    with pytest.raises(InputError, match="figure is not a list of tables"):
        load_target("mine", own)


def test_all_that_is_wrong_is_told_at_once(own: Path) -> None:
    _edit(own, "cores = 4", 'cores = "four"')
    _edit(own, 'title = "Raspberry Pi 5"', "")
    with pytest.raises(InputError) as caught:
        load_target("mine", own)
    assert len(caught.value.context) == 2


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
