"""The command lines of children, and what a child is told; nothing is started here."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette

from ruvrun import launch, machine
from ruvrun.errors import UsageError
from ruvrun.launch import Http, Settings, processes, threads_of, with_endpoints
from ruvrun.manifest import Space
from ruvrun.pipeline.aloud import await_ready
from ruvrun.pipeline.health import NO_ANSWER
from ruvrun.placement import Endpoints, Placement, place
from ruvrun.supervise.child import LOADED
from ruvrun.supervise.vigil import STARTING, alive_line
from tests.runtime.builds import write_build

SPACE = Space(context=32, streams=2)


def option(argv: Sequence[str], name: str) -> str:
    return argv[list(argv).index(name) + 1]


def endpoints_of(argv: Sequence[str]) -> Endpoints:
    return msgspec.json.decode(option(argv, "--endpoints"), type=Endpoints)


def with_node(placement: Placement, **facts: Any) -> Placement:
    """The placement with these facts about every node."""
    nodes = [msgspec.structs.replace(node, **facts) for node in placement.manifest.node]
    return replace(placement, manifest=msgspec.structs.replace(placement.manifest, node=nodes))


def test_stages_and_head_get_all_they_need(tmp_path: Path) -> None:
    placement = place(write_build(tmp_path))
    stage_a, stage_b, head = processes(
        placement, Settings(SPACE, voice=("-q",)), Http("127.0.0.1", 8123, queue=7, request_seconds=1.5)
    )
    for process, node, role in ((stage_a, "a", "stage"), (stage_b, "b", "stage"), (head, "a", "head")):
        assert (option(process.argv, "--node"), option(process.argv, "--role")) == (node, role)
        assert (option(process.argv, "--context"), option(process.argv, "--streams")) == ("32", "2")
        assert endpoints_of(process.argv) == placement.endpoints
        assert process.within == STARTING
        assert "-q" in process.argv
        assert "--cpus" not in process.argv
        assert with_endpoints(placement, option(process.argv, "--endpoints")) == placement
    assert "--no-auth" in head.argv
    assert option(head.argv, "--port") == "8123"
    assert (option(head.argv, "--queue"), option(head.argv, "--request-seconds")) == ("7", "1.5")
    assert "--port" not in stage_a.argv


def test_a_command_that_is_the_head_itself_starts_only_stages(tmp_path: Path) -> None:
    found = processes(place(write_build(tmp_path)), Settings(SPACE), None)
    assert [process.name for process in found] == ["stage on a", "stage on b"]


def test_every_stage_of_every_pipeline_is_started_with_its_share(tmp_path: Path) -> None:
    placement = place(write_build(tmp_path, ("a", "b", "c", "d"), pipelines=2))
    found = processes(placement, Settings(SPACE), Http("127.0.0.1", 8123))
    assert [process.name for process in found] == [*(f"stage on {name}" for name in "abcd"), "head"]
    for process in found:
        assert option(process.argv, "--streams") == "4", "of both together, as a person says it"


def test_keys_are_handed_on_by_their_file(tmp_path: Path) -> None:
    http = Http("0.0.0.0", 8123, tmp_path / "keys")
    head = processes(place(write_build(tmp_path)), Settings(SPACE), http)[-1]
    assert option(head.argv, "--api-key-file") == str(tmp_path / "keys")
    assert "--no-auth" not in head.argv


def test_cores_come_from_the_command_before_the_manifest(tmp_path: Path) -> None:
    placement = with_node(place(write_build(tmp_path)), cpus=[0, 1])
    stage_a, stage_b = processes(placement, Settings(SPACE, {"b": [3]}), None)
    assert (option(stage_a.argv, "--cpus"), option(stage_b.argv, "--cpus")) == ("0,1", "3")


@pytest.mark.parametrize(
    ("facts", "cpus", "threads"),
    [
        ({}, {}, 4),  # eight cores, two stages
        ({"cpus": [0, 1, 2]}, {}, 3),
        ({"threads": 2}, {}, 2),
        ({"threads": 2, "cpus": [0, 1, 2, 3]}, {}, 2),
        ({"threads": 4}, {"a": [5]}, 1),
    ],
)
def test_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], cpus: dict[str, list[int]], threads: int
) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 8)
    placement = with_node(place(write_build(tmp_path)), **facts)
    assert threads_of(placement, Settings(SPACE, cpus), "a") == threads
    process = processes(placement, Settings(SPACE, cpus), None)[0]
    assert option(process.argv, "--threads") == process.env["OMP_NUM_THREADS"] == str(threads)


def test_who_must_be_reached_listens_on_all_addresses_and_connects_by_name(tmp_path: Path) -> None:
    manifest = write_build(tmp_path, addresses={"a": "pi-0.local", "b": "pi-1.local"})
    stage, head = processes(place(manifest, "a"), Settings(SPACE), Http("127.0.0.1", 8123))
    told = endpoints_of(stage.argv)
    assert (told.nodes["a"].host, told.nodes["b"].host, told.head.host) == ("0.0.0.0", "pi-1.local", "pi-0.local")
    told = endpoints_of(head.argv)
    assert (told.nodes["a"].host, told.nodes["b"].host, told.head.host) == ("pi-0.local", "pi-1.local", "0.0.0.0")


def test_endpoints_that_cannot_be_read_are_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        with_endpoints(place(write_build(tmp_path)), "{}")


def test_who_does_not_answer_is_named_now_and_then() -> None:
    waits: list[float | None] = []

    class Slow:
        def wait_ready(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return len(waits) == 4

        def health(self) -> dict[str, Any]:
            why = NO_ANSWER if len(waits) < 3 else "the name b.local is not known"
            return {
                "nodes": [{"node": "a", "state": "ready", "why": ""}, {"node": "b", "state": "waiting", "why": why}]
            }

    lines: list[str] = []
    await_ready(Slow(), lines.append)  # type: ignore[arg-type] # a double
    assert waits == [5.0, 10.0, 20.0, 40.0]
    assert len(lines) == 3
    assert all(line.startswith("waiting: b, no answer for ") for line in lines)
    assert [line.endswith(" s (the name b.local is not known)") for line in lines] == [False, False, True]
    assert lines[0].endswith(" s")


def test_a_node_that_never_comes_does_not_fill_a_log() -> None:
    waits: list[float | None] = []

    class Never:
        def wait_ready(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return len(waits) == 24 * 60

        def health(self) -> dict[str, Any]:
            return {"nodes": [{"node": "b", "pipeline": 0, "state": "waiting", "why": ""}]}

    lines: list[str] = []
    await_ready(Never(), lines.append)  # type: ignore[arg-type] # a double
    assert waits[-1] == 60.0
    assert 10 < len(lines) < 20, "a day of it"


def test_what_serves_meanwhile_is_told_once() -> None:
    waits: list[float | None] = []

    class Half:
        def wait_ready(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            return len(waits) == 3

        def health(self) -> dict[str, Any]:
            nodes = [("a", 0, "ready"), ("b", 1, "waiting")]
            return {"nodes": [{"node": n, "pipeline": p, "state": s, "why": ""} for n, p, s in nodes]}

    lines: list[str] = []
    await_ready(Half(), lines.append)  # type: ignore[arg-type] # a double
    assert [line.split(",")[0] for line in lines] == [
        "serving: 1 of 2 pipelines", "waiting: b", "waiting: b",
    ]  # fmt: skip


def test_a_stage_says_that_it_goes_on_while_it_loads_that_it_is_loaded_and_that_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    monkeypatch.setattr(launch, "end_with_parent", lambda: None)

    def serve(*_: object, loaded: Callable[[Callable[[], int | None]], None], **__: object) -> None:
        assert heard.get(timeout=20) == alive_line(STARTING)
        assert left == [], "it may load what is garbage later"
        loaded(lambda: None)

    left: list[int] = []
    monkeypatch.setattr(launch, "leave_be", lambda: left.append(1))
    monkeypatch.setattr("ruvrun.stage.serve", serve)
    placement = place(write_build(tmp_path, addresses={"a": "10.0.0.1", "b": "10.0.0.2"}), "b")
    launch.run_stage(placement, Settings(SPACE), 1, print, heard.put)
    assert [heard.get(timeout=20), heard.get(timeout=20)] == [LOADED, alive_line()]
    assert left == [1], "what is loaded is no garbage"


def test_a_head_says_that_it_goes_on_while_it_loads_that_it_answers_and_that_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    told: list[str] = []

    class Ready:
        looked = 0

        def start(self) -> None: ...

        def stop(self) -> None: ...

        def health(self) -> dict[str, Any]:
            self.looked += 1
            return {}

        def wait_ready(self, _timeout: float | None = None) -> bool:
            return True

        def wait_end(self) -> None:
            told.extend(heard.get(timeout=20) for _ in range(2))

    driver = Ready()

    def open_driver(*_: object, **__: object) -> Ready:
        assert heard.get(timeout=20) == alive_line(STARTING)
        return driver

    monkeypatch.setattr(launch, "end_with_parent", lambda: None)
    left: list[int] = []
    monkeypatch.setattr(launch, "leave_be", lambda: left.append(1))
    monkeypatch.setattr(launch, "open_driver", open_driver)
    monkeypatch.setattr("ruvrun.server.build_app", lambda *_, **__: Starlette())
    placement = place(write_build(tmp_path, kind="graph"), "a")
    launch.run_head(placement, Settings(SPACE), Http("127.0.0.1", 0), print, lambda _: None, heard.put)
    assert told == [LOADED, alive_line()]
    assert driver.looked, "a driver that hangs with its lock would not have let it say so"
    assert left == [1], "what is loaded is no garbage"


@pytest.mark.parametrize("reuse", [False, True])
def test_a_command_says_whether_known_prompts_are_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reuse: bool
) -> None:
    given: list[bool] = []

    def open_driver(*_: object, reuse: bool) -> None:
        given.append(reuse)
        raise UsageError("enough", "it was asked", hint=None)

    monkeypatch.setattr(launch, "open_driver", open_driver)
    monkeypatch.setattr(launch, "processes", lambda *_: [])
    with pytest.raises(UsageError), launch.hosted(place(write_build(tmp_path)), Settings(SPACE, reuse=reuse), print):
        pass
    assert given == [reuse]


@pytest.mark.parametrize(("backend", "longest"), [("onnxruntime", 2 * 15.12), ("openvino-npu", 2 * 15.12 + 600)])
def test_a_stage_hangs_after_longer_than_any_step_and_any_device_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, longest: float
) -> None:
    """Two stages of 5 ms a row: a step of a whole chunk may take the ring 10 s + 512 x 2 x 5 ms."""
    given: list[float] = []

    class Told:
        def start(self, _say: object) -> None: ...

        def look(self, _turn: object, longest: float) -> None:
            given.append(longest)

    monkeypatch.setattr(launch, "end_with_parent", lambda: None)
    monkeypatch.setattr(launch, "Pulse", Told)
    monkeypatch.setattr("ruvrun.stage.serve", lambda *_, loaded, **__: loaded(lambda: None))
    placement = place(write_build(tmp_path, addresses={"a": "10.0.0.1", "b": "10.0.0.2"}), "b")
    stages = [msgspec.structs.replace(stage, backend=backend) for stage in placement.manifest.stage]
    placement = replace(placement, manifest=msgspec.structs.replace(placement.manifest, stage=stages))
    launch.run_stage(placement, Settings(SPACE), 1, print)
    assert given == [pytest.approx(longest)]
