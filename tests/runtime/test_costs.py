"""The cost table: round trips, merging, which rows there are of what, and what it says in short."""

from __future__ import annotations

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
    costs_json,
    costs_text,
    dump_costs,
    load_costs,
    merge,
)
from tests.runtime.cost_rows import HERE, THERE, curved, row

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
    weight_bytes=st.integers(1 << 30, 1 << 40),
    resident_bytes=st.integers(0, 1 << 36),
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
