"""Cost tables as files: those of earlier versions, those that are none, and where one is written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ruvrun.costs import (
    CostTable,
    LinkCost,
    NodeCost,
    Overhead,
    Point,
    Rate,
    UnitCost,
    dump_costs,
    load_costs,
    merge,
    table_at,
    write_costs,
)
from ruvrun.errors import InputError, MachineError
from tests.runtime.cost_rows import HERE, THERE, row

OLD = """
format = 1

[[provenance]]
machine = "x86_64, 2 cores"
cpu = "AMD EPYC"
software = "ruvrun 0.1.0, onnxruntime 1.32.0, Python 3.11.9"
date = "2026-09-01"

[[unit]]
key = "aa"
label = "layers.*.mlp"
target = "host"
backend = "onnxruntime"
threads = 1
ms = 0.5
source = 0
spread = 0.1
ms_per_token = 0.1
depth = 256
chunk = 128
"""


def test_a_table_of_an_earlier_version(tmp_path: Path) -> None:
    (tmp_path / "costs.toml").write_text(OLD)
    table = load_costs(tmp_path / "costs.toml")
    (unit,) = table.rows(["aa"], "host", "onnxruntime", 1, 1)
    assert unit is not None
    assert (unit.beside, unit.curve, unit.step_ms(), unit.prompt_ms(10)) == (1, [], 0.5, 1.0)
    assert (table.overhead, table.link) == ([], [])
    assert "curve" not in dump_costs(table).decode()


def test_no_tables_make_an_empty_one() -> None:
    assert merge([]) == CostTable()


BAD = {
    "negative": ("ms = 1.0", "ms = -1.0", "cost-wrong"),
    "nan": ("ms = 1.0", "ms = nan", "cost-wrong"),
    "infinite": ("ms = 1.0", "ms = inf", "cost-wrong"),
    "longer than time itself": ("ms = 1.0", "ms = 1e300", "cost-wrong"),
    "more memory than there is": ("weight_bytes = 9", "weight_bytes = 9223372036854775807", "cost-wrong"),
    "more memory than weights can take": (
        "weight_bytes = 9",
        "weight_bytes = 9\nresident_bytes = 67109765",
        "cost-wrong",
    ),
    "no whole number": ("weight_bytes = 9", "weight_bytes = 9223372036854775808", "toml-invalid"),
    "more digits than can be read": ("weight_bytes = 9", f"weight_bytes = {'9' * 5000}", "toml-invalid"),
    "deeper than can be read": ("weight_bytes = 9", f"weight_bytes = {'[' * 5000}", "toml-invalid"),
    "an overhead of no kind of model": ('kind = "graph"', 'kind = "grpah"', "cost-wrong"),
    "negative node": ("ms = 0.5", "ms = -0.5", "cost-wrong"),
    "no such source": ("source = 0", "source = 1", "cost-source"),
    "negative source": ("source = 0", "source = -1", "cost-source"),
    "missing": ("ms = 1.0\n", "", "toml-wrong"),
    "text": ("ms = 1.0", 'ms = "fast"', "toml-wrong"),
    "unknown key": ("\nms = 1.0\n", "\nms = 1.0\nmillis = 2\n", "toml-wrong"),
    "format": ("format = 1", "format = 7", "format-unknown"),
    "negative point": ("ms = 2.5", "ms = -2.5", "cost-wrong"),
    "point that is no number": ("ms = 2.5", "ms = nan", "cost-wrong"),
    "no threads": ("threads = 1", "threads = 0", "cost-wrong"),
    "no rows": ("rows = 2", "rows = 0", "cost-wrong"),
    "a point twice": ("rows = 2", "rows = 1", "cost-twice"),
    "negative bytes": ("weight_bytes = 9", "weight_bytes = -9", "cost-wrong"),
    "negative overhead": ("hop_ms = 0.25", "hop_ms = -0.25", "cost-wrong"),
    "overhead without source": ("source = 0\nhead_ms", "source = 3\nhead_ms", "cost-source"),
    "a link that carries nothing": ("bytes_per_s = 5.0", "bytes_per_s = 0.0", "cost-wrong"),
    "a link that carries next to nothing": ("bytes_per_s = 5.0", "bytes_per_s = 5e-324", "cost-wrong"),
    "a link of no latency": ("latency_ms = 1.0", "latency_ms = nan", "cost-wrong"),
    "no TOML": ("[[unit]]", "[[unit", "toml-invalid"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_no_cost_table(tmp_path: Path, what: str) -> None:
    old, new, ref = BAD[what]
    unit = UnitCost(
        key="a", label="unit a", target="host", backend="b", threads=1, ms=1.0, source=0,
        node=[NodeCost(name="n", op="Relu", ms=0.5)], weight_bytes=9, curve=[Point(ms=1.5), Point(ms=2.5, rows=2)],
    )  # fmt: skip
    overhead = Overhead(kind="graph", target="host", backend="b", threads=1, source=0, hop_ms=0.25, head_ms=0.75)
    link = LinkCost(sender="a", receiver="b", latency_ms=1.0, bytes_per_s=5.0, source=0)
    text = dump_costs(CostTable(provenance=[HERE], unit=[unit], overhead=[overhead], link=[link])).decode()
    assert old in text
    path = tmp_path / "costs.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError) as error:
        load_costs(path)
    assert error.value.ref == ref
    assert error.value.hint


def test_a_file_that_was_cut_off_is_no_shorter_table(tmp_path: Path) -> None:
    """At any line, and within the numbers of its last: after the header all of it is there or it is refused."""
    rates = [
        Rate(name=name, value=2.0, unit="B/s", target="host", backend="b", threads=1, source=0, spread=0.5)
        for name in "abcdefghijkl"
    ]
    path, whole = tmp_path / "costs.toml", dump_costs(CostTable(provenance=[HERE], unit=[row("a")], rate=rates))
    lines = whole.splitlines(keepends=True)
    for count in range(2, len(lines) - 1):
        path.write_bytes(b"".join(lines[:count]))
        with pytest.raises(InputError) as caught:
            load_costs(path)
        assert caught.value.ref in ("cost-cut", "toml-wrong", "toml-invalid"), count
        assert caught.value.hint
    path.write_bytes(whole[:-2])
    with pytest.raises(InputError, match="is not whole: it has 13 rows") as caught:
        load_costs(path)
    assert caught.value.context == ("it says 13 rows at its beginning and 1 rows at its end",)
    path.write_bytes(whole.replace(b"rows = 13\n", b"", 1))
    with pytest.raises(InputError, match="is not whole"):
        load_costs(path)
    path.write_bytes(whole[:-1])
    assert len(load_costs(path).rate) == 12


def test_a_file_without_one_of_its_rows_is_refused(tmp_path: Path) -> None:
    text = dump_costs(CostTable(provenance=[HERE], unit=[row("a"), row("b")])).decode()
    before, one, two = text.partition("[end]")[0].split("[[unit]]")
    (tmp_path / "costs.toml").write_text(f"{before}[[unit]]{two}{text[text.index('[end]') :]}")
    assert one != two
    with pytest.raises(InputError) as caught:
        load_costs(tmp_path / "costs.toml")
    assert caught.value.ref == "cost-cut"


def test_links_that_carry_nothing_and_machines_that_do_nothing_are_refused(tmp_path: Path) -> None:
    link = LinkCost(sender="a", receiver="b", latency_ms=0.0, bytes_per_s=0.0, source=0)
    rate = Rate(name="int4_matvec", value=0.0, unit="B/s", target="host", backend="onnxruntime", threads=1, source=0)
    for table, named in (
        (CostTable(provenance=[HERE], link=[link]), "the link from a to b has bytes_per_s = 0.0"),
        (CostTable(provenance=[HERE], rate=[rate]), "the rate int4_matvec of host has value = 0.0"),
    ):
        (tmp_path / "costs.toml").write_bytes(dump_costs(table))
        with pytest.raises(InputError, match=named) as caught:
            load_costs(tmp_path / "costs.toml")
        assert caught.value.ref == "cost-wrong"


def test_what_is_there_stays_and_what_is_new_counts(tmp_path: Path) -> None:
    output = tmp_path / "costs.toml"
    assert table_at(output) == CostTable()
    write_costs(output, [table_at(output), CostTable(provenance=[HERE], unit=[row("a", 1.0), row("b", 2.0)])])
    write_costs(output, [table_at(output), CostTable(provenance=[THERE], unit=[row("a", 3.0)])])
    assert [each.ms for each in load_costs(output).unit] == [3.0, 2.0]
    assert [path.name for path in tmp_path.iterdir()] == ["costs.toml"]


def test_a_full_disk_leaves_what_was_there_and_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "costs.toml"
    write_costs(output, [CostTable(provenance=[HERE], unit=[row("a", 1.0)])])
    before = output.read_bytes()

    def full(path: Path, _data: bytes) -> int:
        path.touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(MachineError, match=r"cannot write .*costs\.toml: No space left") as caught:
        write_costs(output, [CostTable(provenance=[THERE], unit=[row("a", 3.0)])])
    assert caught.value.ref == "output-unwritable"
    assert output.read_bytes() == before
    assert list(tmp_path.iterdir()) == [output]


def test_where_no_table_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text("x = 1\n")
    (tmp_path / "folder").mkdir()
    for name, ref in (
        ("none/costs.toml", "output-folder-missing"),
        ("folder", "output-not-ours"),
        ("other.toml", "output-not-ours"),
    ):
        with pytest.raises(InputError) as error:
            table_at(tmp_path / name)
        assert error.value.ref == ref
        assert error.value.hint
    assert (tmp_path / "other.toml").read_text() == "x = 1\n"


def test_a_row_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "costs.toml"
    path.write_bytes(dump_costs(CostTable(provenance=[HERE], unit=[row("a", 1.0), row("b"), row("a", 2.0)])))
    with pytest.raises(InputError, match=r"two rows of \[\[unit\]\] are of the same") as caught:
        load_costs(path)
    assert caught.value.ref == "cost-twice"
    assert caught.value.context == ("key a, target host, backend onnxruntime, threads 1, beside 1",)


def test_where_nothing_can_be_written_is_known_before_anything_is_measured() -> None:
    with pytest.raises(MachineError, match="/proc may not be written to") as caught:
        table_at(Path("/proc/costs.toml"))
    assert caught.value.ref == "output-unwritable"


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "costs.toml")
    with pytest.raises(InputError, match="is no file") as caught:
        table_at(tmp_path / "costs.toml")
    assert caught.value.ref == "output-not-ours"
    assert (tmp_path / "costs.toml").is_fifo()
