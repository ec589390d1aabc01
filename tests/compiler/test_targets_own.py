"""Targets of one's own: a folder each and no code; unsound data is refused with its reason."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import ruvrun
from ruvcompile.cli import run
from ruvcompile.errors import InputError
from ruvcompile.render import render_node
from ruvcompile.targets import (
    data_root,
    load_target,
    requirements,
    target_names,
)
from ruvcompile.whole_targets import check_targets
from tests.nodes import STAGE, TARGETS


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


def test_a_folder_without_data_is_found_where_the_command_is_given(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.move(own / "mine", own / "targets" / "mine")
    monkeypatch.chdir(own)
    assert check_targets() == []
    (own / "targets/mine/target.toml").rename(own / "targets/mine/targte.toml")
    for extra in (None, Path("targets")):
        (told,) = check_targets(extra)
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


def test_one_of_ones_own_is_a_folder_where_the_command_is_given(
    own: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.move(own / "mine", own / "targets" / "mine")
    monkeypatch.chdir(own)
    assert target_names()["mine"] == Path("targets/mine")
    assert target_names().keys() == {*TARGETS, "mine"}
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
