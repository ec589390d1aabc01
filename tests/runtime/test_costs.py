"""The cost table: round trips, merging, and what is refused."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruvrun.costs import (
    CostTable,
    LinkCost,
    NodeCost,
    Overhead,
    Point,
    Provenance,
    Rate,
    StageCost,
    UnitCost,
    along,
    costs_json,
    costs_text,
    dump_costs,
    load_costs,
    merge,
    table_at,
    write_costs,
)
from ruvrun.errors import InputError, MachineError

HERE = Provenance(
    machine="x86_64, 2 cores", cpu="this", software="ruvrun 1", date="2026-01-01", features=("avx2",), threads=2
)
THERE = Provenance(machine="aarch64, 4 cores", cpu="that", software="ruvrun 1", date="2026-01-02")


def row(key: str, ms: float = 1.0, *, target: str = "host", threads: int = 1, source: int = 0) -> UnitCost:
    return UnitCost(
        key=key, label=f"unit {key}", target=target, backend="onnxruntime", threads=threads, ms=ms, source=source
    )


TIMES = st.floats(0, 1e6, allow_subnormal=False)
POINTS = st.lists(
    st.builds(Point, ms=TIMES, rows=st.integers(1, 8), tokens=st.integers(1, 4), depth=st.integers(0, 3)),
    max_size=4,
    unique_by=lambda point: (point.rows, point.tokens, point.depth),
)
KIND = {
    "target": st.sampled_from(["host", "pi5"]),
    "backend": st.just("onnxruntime"),
    "threads": st.integers(1, 2),
    "beside": st.integers(1, 2),
    "source": st.integers(0, 1),
    "spread": TIMES,
}
ROWS = st.builds(
    UnitCost,
    key=st.text("abcdef0123456789", min_size=1, max_size=4),
    label=st.text(max_size=8),
    ms=TIMES,
    ms_per_token=TIMES,
    depth=st.integers(0, 4096),
    chunk=st.integers(0, 512),
    curve=POINTS,
    weight_bytes=st.integers(0, 1 << 40),
    resident_bytes=st.integers(0, 1 << 40),
    node=st.lists(st.builds(NodeCost, name=st.text(max_size=5), op=st.text(max_size=5), ms=TIMES), max_size=2),
    **KIND,
)
OVERHEADS = st.builds(
    Overhead,
    kind=st.sampled_from(["decoder", "graph"]),
    stage_ms=TIMES,
    stage_row_ms=TIMES,
    head_ms=TIMES,
    head_row_ms=TIMES,
    byte_ms=TIMES,
    hop_ms=TIMES,
    runtime_bytes=st.integers(0, 1 << 40),
    **KIND,
)
STAGES = st.builds(StageCost, key=st.sampled_from("ab"), ms=TIMES, rows=st.integers(1, 4), **KIND)
NAMES = st.sampled_from(["a", "b", "c"])
LINKS = st.builds(
    LinkCost,
    sender=NAMES,
    receiver=NAMES,
    latency_ms=TIMES,
    bytes_per_s=st.floats(1, 1e10),
    source=st.integers(0, 1),
)
RATES = st.builds(
    Rate,
    name=NAMES,
    value=st.floats(1, 1e12),
    unit=st.just("B/s"),
    target=st.just("host"),
    backend=st.just("b"),
    threads=st.integers(1, 2),
    source=st.integers(0, 1),
)
TABLES = st.builds(
    CostTable,
    provenance=st.just([HERE, THERE]),
    unit=st.lists(ROWS, max_size=5),
    overhead=st.lists(OVERHEADS, max_size=3),
    stage=st.lists(STAGES, max_size=3),
    link=st.lists(LINKS, max_size=3),
    rate=st.lists(RATES, max_size=3),
)
IDENTITY = {
    "unit": ("key", "target", "backend", "threads", "beside"),
    "overhead": ("kind", "target", "backend", "threads", "beside"),
    "stage": ("key", "target", "backend", "threads", "beside", "rows", "depth"),
    "link": ("sender", "receiver"),
    "rate": ("name", "target", "backend", "threads"),
}


@given(TABLES)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, table: CostTable) -> None:
    path = tmp_path_factory.mktemp("costs") / "costs.toml"
    table = merge([table])  # no row twice
    path.write_bytes(dump_costs(table))
    assert load_costs(path) == table


def named(table: CostTable) -> dict[tuple[object, ...], tuple[object, Provenance]]:
    """Every row by what makes it this row and not another, without its source's number, and that source."""
    return {
        (field, *(getattr(row, name) for name in names)): (
            msgspec.structs.replace(row, source=0),
            table.provenance[row.source],
        )
        for field, names in IDENTITY.items()
        for row in getattr(table, field)
    }


@given(st.lists(TABLES, max_size=3))
def test_merging_keeps_every_row_and_where_it_is_from(tables: list[CostTable]) -> None:
    merged = merge(tables)
    wanted: dict[tuple[object, ...], tuple[object, Provenance]] = {}
    for table in tables:
        wanted |= named(table)
    assert named(merged) == wanted
    assert sum(len(getattr(merged, field)) for field in IDENTITY) == len(wanted)
    assert len(merged.provenance) == len(set(merged.provenance))
    used = {row.source for field in IDENTITY for row in getattr(merged, field)}
    assert used == set(range(len(merged.provenance))), "no source that nobody names"
    assert merge([merged]) == merged


def test_the_last_of_equal_rows_counts() -> None:
    one = CostTable(provenance=[HERE], unit=[row("a", 1.0), row("b", 2.0)])
    two = CostTable(provenance=[THERE], unit=[row("a", 3.0)])
    assert [each.ms for each in merge([one, two]).unit] == [3.0, 2.0]
    assert [each.ms for each in merge([two, one]).unit] == [1.0, 2.0]
    assert merge([two, one]).provenance == [HERE]


def test_rows_of_one_kind_of_machine() -> None:
    table = CostTable(provenance=[HERE], unit=[row("a"), row("a", 2.0, threads=2), row("b", 3.0, target="pi5")])
    assert table.rows("ab", "host", "onnxruntime", 1) == [table.unit[0], None]
    assert table.rows("a", "host", "onnxruntime", 2) == [table.unit[1]]
    assert table.rows("ba", "pi5", "onnxruntime", 1) == [table.unit[2], None]
    assert table.rows("a", "host", "openvino", 1) == [None]


def test_rows_of_one_company() -> None:
    alone, together = row("a", 1.0), msgspec.structs.replace(row("a", 2.0), beside=2)
    table = CostTable(provenance=[HERE], unit=[alone, together])
    assert table.rows("a", "host", "onnxruntime", 1, 1) == [alone]
    assert table.rows("a", "host", "onnxruntime", 1, 2) == [together]
    assert table.rows("a", "host", "onnxruntime", 1, 3) == [None]
    assert table.rows("a", "host", "onnxruntime", 1) == [together], "in any company, the last one"
    overheads = [
        Overhead(kind="decoder", target="host", backend="b", threads=1, source=0, beside=beside) for beside in (1, 2)
    ]
    table = CostTable(provenance=[HERE], overhead=overheads)
    assert table.overhead_of("decoder", "host", "b", 1, 1) == overheads[0]
    assert table.overhead_of("decoder", "host", "b", 1) == overheads[1]
    assert table.overhead_of("graph", "host", "b", 1) is None


# Curves


def curved(*points: tuple[int, int, int, float]) -> UnitCost:
    """A row with points of (rows, tokens, depth, ms)."""
    made = [Point(ms=ms, rows=rows, tokens=tokens, depth=depth) for rows, tokens, depth, ms in points]
    return msgspec.structs.replace(row("a", 7.0), depth=100, ms_per_token=0.25, curve=made)


GRIDS = st.dictionaries(
    st.integers(0, 2000),
    st.dictionaries(st.integers(1, 64), st.floats(0.001, 1e4), min_size=1, max_size=4),
    min_size=1,
    max_size=3,
)


@given(GRIDS)
def test_what_was_measured_is_met_exactly(grid: dict[int, dict[int, float]]) -> None:
    unit = curved(*((rows, 1, depth, ms) for depth, line in grid.items() for rows, ms in line.items()))
    for depth, line in grid.items():
        for rows, ms in line.items():
            assert unit.step_ms(rows, depth) == pytest.approx(ms, rel=1e-12)


@given(
    st.lists(st.tuples(st.integers(0, 500), st.floats(0, 1e4)), min_size=2, unique_by=lambda pair: pair[0]), st.data()
)
def test_a_line_is_straight_between_its_points(points: list[tuple[int, float]], data: st.DataObject) -> None:
    points.sort()
    number = data.draw(st.integers(0, len(points) - 2))
    (x0, y0), (x1, y1) = points[number : number + 2]
    at = data.draw(st.floats(x0, x1))
    assert min(y0, y1) - 1e-9 * (1 + y0 + y1) <= along(points, at) <= max(y0, y1) + 1e-9 * (1 + y0 + y1)
    assert along(points, x0) == y0
    assert along(points, x1) == y1


@given(
    st.lists(st.integers(1, 64), min_size=2, max_size=5, unique=True),
    st.lists(st.floats(0, 100), min_size=5, max_size=5),
    st.floats(0.5, 100),
    st.floats(0, 10),
)
def test_more_never_costs_less_where_it_was_measured_so(
    rows: list[int], steps: list[float], at: float, more: float
) -> None:
    ms, line = 0.0, []
    for count, step in zip(sorted(rows), steps, strict=False):
        ms += step
        line.append((float(count), ms))
    low, high = along(line, at), along(line, at + more)
    assert 0 <= low <= high + 1e-9 * (1 + high)


def test_between_depths_and_beyond_what_was_measured() -> None:
    unit = curved((1, 1, 0, 1.0), (3, 1, 0, 2.0), (1, 1, 200, 2.0), (3, 1, 200, 4.0))
    assert unit.step_ms(2, 100) == pytest.approx((1.5 + 3.0) / 2)
    assert unit.step_ms(2) == unit.step_ms(2, 100), "as deep as it was measured, where nobody says"
    assert unit.step_ms(5, 0) == pytest.approx(3.0)
    assert unit.step_ms(1, 400) == pytest.approx(3.0)
    falling = curved((1, 1, 0, 2.0), (2, 1, 0, 1.0))
    assert falling.step_ms(9, 0) == 0.0, "no time is below nothing"


def test_chunks_of_a_prompt() -> None:
    unit = curved((1, 32, 0, 4.0), (1, 128, 0, 10.0), (1, 32, 1000, 90.0))
    assert unit.prompt_ms(32) == 4.0
    assert unit.prompt_ms(80) == pytest.approx(7.0)
    assert unit.prompt_ms(256) == pytest.approx(18.0)
    old = msgspec.structs.replace(unit, curve=[])
    assert (old.prompt_ms(8), old.step_ms(5, 77)) == (2.0, 7.0)


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


def test_what_a_table_says_in_short() -> None:
    unit = curved((1, 1, 100, 7.0), (8, 1, 100, 20.0))
    overhead = Overhead(
        kind="decoder", target="host", backend="b", threads=1, source=0, stage_ms=0.5, head_row_ms=0.125
    )
    link = LinkCost(sender="a", receiver="b", latency_ms=0.25, bytes_per_s=5e6, source=0)
    told = costs_json(CostTable(provenance=[HERE], unit=[unit], overhead=[overhead], link=[link]))
    assert (told["units"][0]["rows"], told["units"][0]["ms_rows"]) == (8, 20.0)
    lines = costs_text(told).splitlines()
    assert lines[0] == "unit a: 7.000 ms, 20.000 ms with 8 rows, 0.2500 ms a prompt token, spread 0 %"
    assert "0.500 + 0.000 a row in the stage, 0.000 + 0.125 a row in the head" in lines[1]
    assert lines[2] == "a to b: 0.250 ms, 5.0 MB/s"


def test_a_table_of_several_back_ends_says_which_is_which() -> None:
    units = [msgspec.structs.replace(row("a"), backend=backend) for backend in ("onnxruntime", "openvino")]
    own = Overhead(kind="decoder", target="host", backend="openvino", threads=1, source=0)
    lines = costs_text(costs_json(CostTable(provenance=[HERE], unit=units, overhead=[own]))).splitlines()
    assert [line.partition(", ")[0] for line in lines] == ["onnxruntime", "openvino", "openvino"]


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
