"""What OpenVINO's counters tell of the kernels of the last run, where a stage was opened with them (``PERF_COUNT``)."""

from __future__ import annotations

from typing import Any, NamedTuple

import openvino as ov


class Ran(NamedTuple):
    """A kernel that ran: its name and kind, and how many microseconds it took."""

    name: str
    kind: str
    microseconds: float


def kernels(*requests: Any) -> list[Ran]:
    """The kernels of the last run of each of ``requests``, in the order in which they ran."""
    found = [each for request in requests for each in request.get_profiling_info()]
    ran = [each for each in found if each.status == ov.ProfilingInfo.Status.EXECUTED and each.real_time]
    return [Ran(each.node_name, each.node_type, each.real_time.total_seconds() * 1e6) for each in ran]
