"""The command line's own part: names, defaults, errors and exit codes; nothing here loads a stage."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ruvrun import machine
from ruvrun.cli import cli, main
from ruvrun.errors import UNREAD
from ruvrun.ports import free_ports
from ruvrun.supervise import Process, Supervisor
from tests.commands.served import unread
from tests.runtime.builds import write_build


def ruvrun(*words: object) -> int:
    with pytest.raises(SystemExit) as caught:
        main([str(word) for word in words])
    return int(str(caught.value.code))


def failure(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """Exit code and standard error of a command that fails in the one form."""
    code = ruvrun(*words)
    out, err = capsys.readouterr()
    assert out == ""
    err = "".join(line for line in err.splitlines(True) if "(default)" not in line)
    assert err.startswith("error["), err
    assert "Traceback" not in err
    return code, err


@pytest.mark.parametrize("name", ["serve", "run", "bench", "doctor", "status"])
def test_every_command_has_help_with_an_example_and_a_version(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert name in cli.commands
    assert ruvrun(name, "--help") == 0
    assert f"Example: ruvrun {name}" in capsys.readouterr().out
    assert ruvrun(name, "--version") == 0
    assert "ruvrun" in capsys.readouterr().out


def test_help_hides_what_is_for_children(capsys: pytest.CaptureFixture[str]) -> None:
    assert ruvrun("serve", "--help") == 0
    assert "--role" not in capsys.readouterr().out


def test_no_command_shows_help_and_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert ruvrun() == 2
    assert "serve" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("serv",), "serve"),
        (("serve", "m.toml", "--hots", "x"), "--host"),
        (("serve",), "--help"),
        (("serve", "m.toml", "--port", "many"), "--help"),
        (("bench", "m.toml", "--streams", "two"), "1,2,4,8"),
        (("run", "m.toml"), "--help"),
        (("run", "m.toml", "--prompt", "a", "--input", "b.npz"), "--help"),
        (("run", "m.toml", "--input", "b.npz"), "--output"),
        (("run", "--prompt", "a"), "--help"),
        (("run", "m.toml", "--prompt", "a", "--seed", str(2**63)), "--help"),
        (("run", "m.toml", "--prompt", "a", "--temperature", "nan"), "--help"),
        (("run", "m.toml", "--prompt", "a", "--top-p", "NaN"), "--help"),
        (("run", "m.toml", "--prompt", "a\udcff"), "UTF-8"),
        (("bench", "m.toml", "--seconds", "nan"), "--help"),
        (("serve", "m.toml", "--request-seconds", "nan"), "--help"),
    ],
)
def test_wrong_usage_is_2_with_a_hint(words: tuple[str, ...], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = failure(capsys, *words)
    assert code == 2
    assert "hint:" in err
    assert hint in err.split("hint:")[1]


@pytest.mark.parametrize("command", ["serve", "bench", "doctor", "status"])
def test_a_missing_manifest_is_3(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, err = failure(capsys, command, tmp_path / "manifest.toml")
    assert code == 3
    assert "file-missing" in err


def test_json_has_one_object_also_for_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = ruvrun("run", tmp_path / "manifest.toml", "--prompt", "a", "--json")
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert (code, error["exit_code"], error["ref"]) == (3, 3, "file-missing")
    assert "error[" not in err
    assert sorted(error) == ["context", "exit_code", "hint", "message", "ref"]
    assert ruvrun("bench", "--json", "--streams") == 2
    assert json.loads(capsys.readouterr().out)["error"]["exit_code"] == 2


def test_doctor_json_is_one_object_and_its_exit_code_the_worst(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = write_build(tmp_path)
    assert ruvrun("doctor", manifest, "--json") == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    (tmp_path / "bundles" / "b" / "stage.onnx").write_bytes(b"other")
    assert ruvrun("doctor", manifest) == 5
    assert "fail  bundle b" in capsys.readouterr().out


def test_other_machines_are_let_in_only_with_keys_or_on_purpose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = write_build(tmp_path)
    code, err = failure(capsys, "serve", manifest, "--host", "0.0.0.0")
    assert code == 2
    assert "--api-key-file" in err
    assert failure(capsys, "serve", manifest, "--no-auth", "--api-key-file", tmp_path / "keys")[0] == 2
    monkeypatch.setattr(Supervisor, "run", lambda _: None)
    assert ruvrun("serve", manifest, "--host", "0.0.0.0", "--no-auth") == 0
    assert ruvrun("serve", manifest, "--host", "localhost") == 0


def test_a_key_file_that_is_missing_is_3_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = failure(capsys, "serve", write_build(tmp_path), "--api-key-file", tmp_path / "keys")
    assert code == 3


def test_key_value_space_that_does_not_fit_is_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "memory_available", lambda: 300 << 20)
    code, err = failure(capsys, "serve", write_build(tmp_path), "--streams", "100000")
    assert code == 4
    assert "100000 streams x 64 tokens" in err


def test_defaults_are_told_and_what_was_said_is_not_called_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Process] = []

    def run(supervisor: Supervisor) -> None:
        started.extend(child.process for child in supervisor._children)

    monkeypatch.setattr(Supervisor, "run", run)
    assert ruvrun("serve", write_build(tmp_path), "--port", "8123") == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert (
        "--host 127.0.0.1 (default), --port 8123, --context 64 (default), --streams 4 (default), --queue 256 (default)"
        in err
    )
    assert [process.name for process in started] == ["stage on a", "stage on b", "head"]
    assert all("--endpoints" in process.argv for process in started)
    assert started[2].argv[started[2].argv.index("--port") + 1] == "8123"


def test_one_node_starts_only_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(Supervisor, "run", lambda self: started.extend(c.process.name for c in self._children))
    assert ruvrun("serve", write_build(tmp_path), "--node", "b") == 0
    assert started == ["stage on b"]


def test_an_unreachable_head_is_6_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = write_build(tmp_path, ("pi-0", "pi-1"), addresses={"pi-0": "127.0.0.1", "pi-1": "127.0.0.1"})
    port = free_ports(1)[0]
    code, _ = failure(capsys, "run", "--url", f"127.0.0.1:{port}", "--prompt", "a")
    assert code == 6
    assert ruvrun("status", f"127.0.0.1:{port}", "--check") == 6
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    assert err == ""
    assert manifest.is_file()


def test_one_answer_and_every_change_are_not_asked_for_together(capsys: pytest.CaptureFixture[str]) -> None:
    """Or cron would wait for ever."""
    code, err = failure(capsys, "status", "127.0.0.1:1", "--check", "--watch")
    assert (code, err.startswith("error[watch-or-check]: ")) == (2, True)


def test_a_graph_takes_no_prompt_and_a_decoder_no_tensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    decoder, graph = write_build(tmp_path / "d"), write_build(tmp_path / "g", kind="graph")
    np.savez(tmp_path / "in.npz", x=np.zeros(3))
    assert failure(capsys, "run", graph, "--prompt", "a")[0] == 2
    assert failure(capsys, "run", decoder, "--input", tmp_path / "in.npz", "--output", tmp_path / "o.npz")[0] == 2
    assert failure(capsys, "bench", graph)[0] == 2
    assert failure(capsys, "bench", decoder, "--input", tmp_path / "in.npz")[0] == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("run", "G", "--input", "IN", "--output", "o.npz", "--max-tokens", "4"),
            "--max-tokens says nothing about a graph",
        ),
        (("run", "G", "--input", "IN", "--output", "o.npz", "--chat", "--seed", "1"), "--chat, --seed says nothing"),
        (("run", "G", "--input", "IN", "--output", "o.npz", "--context", "9"), "--context says nothing about a graph"),
        (("run", "D", "--prompt", "a", "--output", "o.npz"), "--output says nothing about a decoder"),
        (("bench", "G", "--input", "IN", "--prompt-tokens", "8"), "--prompt-tokens says nothing about a graph"),
        (("bench", "G", "--input", "IN", "--context", "8"), "--context says nothing about a graph"),
        (("bench", "G", "--input", "IN", "--reuse"), "--reuse says nothing about a graph"),
        (("bench", "D", "--url", "http://h", "--reuse"), "--reuse says nothing about a head that runs elsewhere"),
        (("bench", "D", "--url", "http://h", "--cpus", "0"), "--cpus says nothing about a head that runs elsewhere"),
        (("serve", "G", "--context", "8", "--streams", "2"), "--context, --streams says nothing about a graph"),
    ],
)
def test_what_says_nothing_about_such_a_model_is_not_passed_over(
    words: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "in.npz", x=np.zeros(3))
    paths: dict[str, object] = {"IN": tmp_path / "in.npz"}
    paths |= {"D": write_build(tmp_path / "d"), "G": write_build(tmp_path / "g", kind="graph")}
    code, err = failure(capsys, *(paths.get(word, word) for word in words))
    assert code == 2
    assert says in err


def test_a_context_that_cuts_the_answers_of_a_measurement_short_is_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("bench", write_build(tmp_path), "--prompt-tokens", "20", "--max-tokens", "20", "--context", "32")
    code, err = failure(capsys, *words)
    assert code == 4
    assert "context of 32" in err


def test_our_own_bug_is_1_with_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(_: Supervisor) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(Supervisor, "run", bug)
    assert ruvrun("serve", write_build(tmp_path)) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "error[bug]" in err


def test_a_child_says_its_error_as_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ruvrun("serve", tmp_path / "none.toml", "--node", "a", "--role", "stage", "--endpoints", "{}") == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["error"]["ref"] == "file-missing"


@pytest.mark.parametrize("words", ["--help", "doctor MANIFEST -q --json", "status none.toml --json"])
def test_where_nobody_reads_on_it_ends_without_a_word(words: str, tmp_path: Path) -> None:
    """As a program that SIGPIPE ends; an error keeps its own exit code, and is told where somebody still reads."""
    line = [str(write_build(tmp_path)) if word == "MANIFEST" else word for word in words.split()]
    done = unread("ruvrun", *line)
    if "status" in words:
        assert (done.returncode, done.stderr.startswith("error[file-missing]: ")) == (3, True)
    else:
        assert (done.returncode, done.stderr) == (UNREAD, "")


@pytest.mark.parametrize("command", ["serve", "doctor", "status", "bench"])
def test_a_path_that_cannot_be_looked_at_is_the_machines_refusal(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, err = failure(capsys, command, tmp_path / ("n" * 300) / "manifest.toml")
    assert code == 7
    assert "File name too long" in err


def test_a_bundle_file_that_may_not_be_read_is_the_machines_refusal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = write_build(tmp_path, ("pi-0", "pi-1"))

    def forbidden(path: Path) -> bool:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", forbidden)
    code, err = failure(capsys, "serve", manifest)
    assert code == 7
    assert "Permission denied" in err


def test_an_error_keeps_its_exit_code_when_standard_output_is_full() -> None:
    command = [sys.executable, "-m", "ruvrun", "status", "nowhere/manifest.toml", "--json"]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("error[file-missing]")
    assert "Traceback" not in done.stderr
