"""The command line: what it prints where, and how every failure ends. The compiler behind it is a stand-in."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import ruvcompile
from ruvcompile import __version__
from ruvcompile.cli import root, run
from ruvcompile.cli.listing import PLATFORM
from ruvcompile.cli.results import build_text
from ruvcompile.errors import UNREAD, FitError
from ruvcompile.options import Options
from ruvcompile.progress import Progress
from tests.commands.served import unread
from tests.plans import PLAN

BUILD = PLAN | {"manifest": "dist/manifest.toml", "seconds": 12.5, "peak_rss_bytes": 2**30}
VERIFY = {
    "identical": True,
    "max_abs_diff": 0.0,
    "tokens": 64,
    "cases": 3,
    "vs_source": {"kl": 0.0046, "top1": 0.952, "tokens": 256},
}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Puts a compiler of canned answers in place and returns the list of calls it got."""
    made: list[Any] = []

    def build(options: Options, progress: Progress) -> dict[str, Any]:
        made.append(options)
        with progress.step("measure", total=2) as bar:
            bar.advance()
        progress.note("context 4096 (default)")
        return BUILD

    def plan(options: Options, progress: Progress) -> dict[str, Any]:
        made.append(options)
        return PLAN

    def verify(manifest: Path, model: Path | None, progress: Progress, tokens: int | None) -> dict[str, Any]:
        del progress, tokens
        made.append((manifest, model))
        return VERIFY

    def report(manifest: Path, bench: Path | None) -> Path:
        made.append((manifest, bench))
        return manifest.parent / "report.html"

    steps = SimpleNamespace(build=build, plan=plan, verify=verify, report=report)
    monkeypatch.setitem(sys.modules, "ruvcompile.compile", steps)
    monkeypatch.setattr(ruvcompile, "compile", steps, raising=False)
    return made


def _fail(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def build(options: Options, progress: Progress) -> dict[str, Any]:
        raise error

    monkeypatch.setattr(ruvcompile, "compile", SimpleNamespace(build=build), raising=False)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    return "model.gguf"


# Results


def test_build_says_what_it_did_and_what_is_next(
    calls: list[Any], model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["build", model, "--target", "host", "--nodes", "2"]) == 0
    out, err = capsys.readouterr()
    assert "host-0" in out
    assert "host-1" in out
    assert "next: ruvrun serve dist/manifest.toml" in out
    assert "--quant auto (default)" in err
    assert "--nodes" not in err
    assert "context 4096 (default)" in err
    assert len(calls[0].fleet.nodes) == 2


def test_no_default_is_told_that_does_not_matter(
    calls: list[Any], model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan writes nothing, and what holds for decoders is told once the model is known to be one."""
    assert run(["plan", model, "--target", "host"]) == 0
    err = capsys.readouterr().err
    assert "--quant auto (default)" in err
    assert "--output" not in err
    assert "--prompt-tokens" not in err
    assert dict(calls[0].defaults)["prompt-tokens"] == "512"
    assert run(["build", model, "--target", "host"]) == 0
    assert "--output dist (default)" in capsys.readouterr().err


def test_what_is_next_for_other_machines_is_to_copy_the_bundles(
    calls: list[Any], model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["build", model, "--target", "pi5", "--nodes", "2"]) == 0
    out, _ = capsys.readouterr()
    assert "next: copy each directory of dist/bundles to its machine" in out
    assert "addresses: as in dist/nodes.toml; after a change, copy it into node/ of each bundle" in out
    assert "ruvrun serve" not in out


def test_what_is_next_for_a_graph_is_to_give_it_tensors() -> None:
    graph = BUILD | {"predicted_tokens_per_s": None, "predicted_items_per_s": 18.0, "predicted_latency_ms": 110.0}
    assert build_text(graph).endswith("next: ruvrun run dist/manifest.toml --input in.npz --output out.npz")


def test_json_is_one_object_and_nothing_else(calls: list[Any], model: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command, expected in (("build", BUILD), ("plan", PLAN)):
        assert run([command, model, "--target", "host", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == expected
    assert run(["targets", "--json"]) == 0
    assert {entry["name"] for entry in json.loads(capsys.readouterr().out)["targets"]} >= {"host", "pi5"}
    assert run(["report", "dist/manifest.toml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"report": "dist/report.html"}


def test_quiet_says_nothing_beside_the_result(calls: list[Any], model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", model, "--target", "host", "-q"]) == 0
    assert capsys.readouterr().err == ""


def test_verbose_says_how_long_steps_took(calls: list[Any], model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["build", model, "--target", "host", "-v"]) == 0
    assert "measure: " in capsys.readouterr().err


def test_all_flags_arrive(calls: list[Any], model: str) -> None:
    Path("c.toml").write_text("")
    Path("in.npz").write_bytes(b"")
    flags = (
        "--target host --nodes 3 --stages 3 --replicas 1 --cut a,b --quant int4 --kv-type f32 --context 128"
        " --activations float"
        " --streams 5 --prompt-tokens 7 --objective latency --inputs in.npz --shape x=1x2 --shape y=3"
        " --costs c.toml --name n --new-keys -o out"
    )
    assert run(["build", model, *flags.split()]) == 0
    (options,) = calls
    assert options == Options(
        model=Path(model),
        fleet=options.fleet,
        stages=3,
        replicas=1,
        cut=("a", "b"),
        quant="int4",
        activations="float",
        kv_type="f32",
        context=128,
        streams=5,
        prompt_tokens=7,
        objective="latency",
        inputs=Path("in.npz"),
        shapes={"x": (1, 2), "y": (3,)},
        costs=(Path("c.toml"),),
        name="n",
        new_keys=True,
        output=Path("out"),
    )


@pytest.mark.parametrize("flag", ["--wheels 3.11", "--new-keys", "-o out"])
def test_a_plan_is_not_told_what_to_write(
    calls: list[Any], model: str, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    assert run(["plan", model, "--target", "host", *flag.split()]) == 2
    err = capsys.readouterr().err
    assert "error[usage]: No such option" in err
    assert flag.split()[0] in err
    assert not calls


def test_verify_ends_with_5_when_results_differ(
    calls: list[Any], model: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["verify", "dist/manifest.toml", "--model", model]) == 0
    assert "identical (3 cases, 64 tokens" in capsys.readouterr().out
    assert calls == [(Path("dist/manifest.toml"), Path(model))]
    for key, value in {"identical": False, "max_abs_diff": None, "vs_source": None}.items():
        monkeypatch.setitem(VERIFY, key, value)
    assert run(["verify", "dist/manifest.toml"]) == 5
    assert "NOT identical (3 cases, 64 tokens)" in capsys.readouterr().out
    assert run(["verify", "dist/manifest.toml", "--json"]) == 5
    out, err = capsys.readouterr()
    assert json.loads(out)["identical"] is False
    assert "error[verify-differs]" in err


def test_report_takes_a_run(calls: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "dist/manifest.toml", "--run", "bench.json"]) == 0
    assert calls == [(Path("dist/manifest.toml"), Path("bench.json"))]
    assert "dist/report.html" in capsys.readouterr().out


def test_targets_are_listed_and_checked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["targets", "--check"]) == 0
    out = capsys.readouterr().out
    assert "Raspberry Pi 5" in out
    assert PLATFORM in out
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "target.toml").write_text("format = 1\n")
    assert run(["targets", "--check", "--targets-dir", str(tmp_path)]) == 3


# Failures


@pytest.mark.parametrize(
    ("line", "ref", "code"),
    [
        ("build model.gguf --tagret host", "usage", 2),
        ("build model.gguf --target host --stages two", "usage", 2),
        ("build model.gguf extra --target host", "usage", 2),
        ("build --target host --quant", "usage", 2),
        ("verify", "usage", 2),
        ("verify dist/manifest.toml --tokens 99999999999999999999", "usage", 2),
        ("bild model.gguf", "command-unknown", 2),
        ("probe model.gguf", "target-missing", 2),
        ("profile model.gguf", "target-missing", 2),
        ("build model.gguf --target hots", "target-unknown", 2),
        ("build model.gguf", "target-missing", 2),
        ("build model.gguf --target host --sign k", "not-in-this-version", 2),
        ("plan model.gguf --target host --users 30", "users-alone", 2),
        ("build model.gguf --target pi5 --quant int2", "quant-unsupported", 2),
        ("build none.gguf --target host", "file-missing", 3),
        ("plan model.gguf --fleet none.toml", "file-missing", 3),
        ("targets --targets-dir none", "file-missing", 3),
    ],
)
def test_one_error_in_one_form(
    calls: list[Any], model: str, capsys: pytest.CaptureFixture[str], line: str, ref: str, code: int
) -> None:
    assert run(line.split()) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error[{ref}]: ")
    assert "hint: " in err
    assert "Traceback" not in err
    assert run([*line.split(), "--json"]) == code
    error = json.loads(capsys.readouterr().out)["error"]
    if "--quant" not in line.split()[-1]:  # there --json became the value of --quant
        assert (error["ref"], error["exit_code"]) == (ref, code)
    assert set(error) == {"ref", "message", "context", "hint", "exit_code"}
    assert calls == []


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (FitError("fleet-memory-short", "too small", hint="add a node"), 4, "error[fleet-memory-short]"),
        (PermissionError(errno.EACCES, "Permission denied", "/root/x"), 7, "/root/x: Permission denied"),
        (OSError(errno.ENOSPC, "No space left on device", "dist"), 7, "No space left"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_goes_wrong_below(
    monkeypatch: pytest.MonkeyPatch,
    model: str,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    says: str,
) -> None:
    _fail(monkeypatch, error)
    assert run(["build", model, "--target", "host"]) == code
    err = capsys.readouterr().err
    assert says in err
    assert "Traceback" not in err


@pytest.mark.parametrize("words", ["--help", "targets", "targets --json"])
def test_where_nobody_reads_on_it_ends_without_a_word(words: str) -> None:
    """As a program that SIGPIPE ends."""
    done = unread("ruvcompile", *words.split())
    assert (done.returncode, done.stderr) == (UNREAD, "")


def test_an_error_that_nobody_reads_keeps_its_exit_code() -> None:
    done = unread("ruvcompile", "targets", "--targets-dir", "none", "--json")
    assert (done.returncode, done.stderr.startswith("error[file-missing]: ")) == (3, True)


def test_only_our_own_bugs_show_a_traceback(
    monkeypatch: pytest.MonkeyPatch, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _fail(monkeypatch, ZeroDivisionError("oh"))
    assert run(["build", model, "--target", "host", "--json"]) == 1
    out, err = capsys.readouterr()
    assert "Traceback" in err
    assert json.loads(out)["error"]["exit_code"] == 1


# Help


@pytest.mark.parametrize("command", sorted(root.commands))
def test_every_command_has_help_with_an_example_and_a_version(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"Example:\n      ruvcompile {command} " in text
    for option in ("--json", "-q, --quiet", "-v, --verbose"):
        assert option in text
    assert run([command, "--version"]) == 0
    assert __version__ in capsys.readouterr().out


def test_no_command_is_answered_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Usage: ruvcompile")


def test_help_and_wrong_flags_need_no_compiler() -> None:
    program = (
        "import sys; from ruvcompile.cli import run; code = run(['build', '--target', 'hots', 'x']);"
        "print([m for m in ('onnx', 'onnx_ir', 'numpy', 'onnxruntime', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("command", ["build", "probe", "profile"])
def test_an_empty_place_is_not_the_default(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, str(tmp_path), "--target", "host", "-o", ""]) == 2
    assert "error[output-missing]: -o says nothing" in capsys.readouterr().err
